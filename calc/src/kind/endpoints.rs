//! What the packet programs know of this node's workloads: the hardware addresses of both ends of
//! their links. Without an entry, packets to and from a workload go through the stack.

use std::collections::{BTreeMap, BTreeSet};

use ipc_proto::{Endpoint, Link, Op};

use super::{Kind, World, mark_workload_links};
use crate::{event::Event, index::Index};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    desired: BTreeMap<Link, Endpoint>,
    dirty: BTreeSet<Link>,
}

impl Kind for Endpoints {
    fn on_event(&mut self, event: &Event, before: &Index) {
        mark_workload_links(&mut self.dirty, event, before);
    }

    fn resolve_batch(&mut self, world: &World<'_>, ops: &mut Vec<Op>) {
        for link in std::mem::take(&mut self.dirty) {
            let desired = want(&link, world.index);
            let former = match desired.clone() {
                Some(endpoint) => self.desired.insert(link.clone(), endpoint),
                None => self.desired.remove(&link),
            };
            if former != desired {
                ops.push(Op::Endpoint(link, desired.map(Box::new)));
            }
        }
    }
}

fn want(link: &Link, index: &Index) -> Option<Endpoint> {
    let state = index.links.get(link.index)?;
    if state.link != *link || !index.has_workload(state) {
        return None;
    }
    let workloads = index.workloads.on(&link.name);
    // Of several on one link, the greatest key comes last and stays, as with neighbours.
    let workload_mac = workloads.filter_map(|(_, workload)| workload.mac).last()?;
    Some(Endpoint {
        host_mac: state.mac?,
        workload_mac,
        sources: Vec::new(),
    })
}
