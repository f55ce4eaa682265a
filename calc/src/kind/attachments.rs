//! The packet programs on both hooks of each link that a workload of this node is on, unless
//! `bpfRedirectToPeer` says that all goes through the stack.

use std::collections::BTreeSet;

use ipc_proto::{AttachmentKey, Hook, Link, Op};

use super::{Kind, World, mark_workload_links};
use crate::{event::Event, index::Index};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Attachments {
    desired: BTreeSet<Link>,
    dirty: BTreeSet<Link>,
}

impl Kind for Attachments {
    fn on_event(&mut self, event: &Event, before: &Index) {
        mark_workload_links(&mut self.dirty, event, before);
        if let Event::Config(config) = event
            && config.redirect_to_peer != before.config.redirect_to_peer
        {
            for (_, workload) in before.workloads.local() {
                let namesakes = before.links.all_named(&workload.interface);
                self.dirty.extend(namesakes.map(|state| state.link.clone()));
            }
        }
    }

    fn resolve_batch(&mut self, world: &World<'_>, ops: &mut Vec<Op>) {
        for link in std::mem::take(&mut self.dirty) {
            let index = world.index;
            let state = index.links.get(link.index);
            let attached = index.config.redirect_to_peer
                && state.is_some_and(|state| state.link == link && index.has_workload(state));
            let changed = if attached {
                self.desired.insert(link.clone())
            } else {
                self.desired.remove(&link)
            };
            if changed {
                for hook in [Hook::Ingress, Hook::Egress] {
                    let link = link.clone();
                    ops.push(Op::Attachment(AttachmentKey { link, hook }, attached));
                }
            }
        }
    }
}
