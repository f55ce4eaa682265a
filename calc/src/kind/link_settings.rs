//! The settings of interfaces: those of workloads, tunnels, and the uplinks that hold this node's
//! addresses. Any other interface is left as it is.

use std::collections::{BTreeMap, BTreeSet};

use ipc_proto::{IfName, Link, LinkProfile, LinkRole, LinkState, Op};

use super::{Kind, World};
use crate::{event::Event, index::Index, prefix::Family};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct LinkSettings {
    desired: BTreeMap<Link, LinkProfile>,
    dirty: BTreeSet<Link>,
    /// Which links are the uplinks may have changed.
    uplinks_dirty: bool,
}

impl LinkSettings {
    fn mark_named(&mut self, name: &IfName, index: &Index) {
        let namesakes = index.links.all_named(name);
        self.dirty.extend(namesakes.map(|state| state.link.clone()));
    }
}

impl Kind for LinkSettings {
    fn on_event(&mut self, event: &Event, before: &Index) {
        match event {
            Event::Link(change) => {
                self.uplinks_dirty = true;
                for state in before.links.before_and_after(change) {
                    self.dirty.insert(state.link.clone());
                    self.mark_named(&state.link.name, before);
                }
            }
            Event::Workload(key, workload) if before.workloads.is_local(key) => {
                for workload in before.workloads.get(key).into_iter().chain(workload) {
                    self.mark_named(&workload.interface, before);
                }
            }
            Event::Node(name, _) if **name == *before.name => self.uplinks_dirty = true,
            Event::Node(..)
            | Event::Workload(..)
            | Event::Pool(..)
            | Event::Block(..)
            | Event::Config(_)
            | Event::Services(_)
            | Event::Links(_) => {}
        }
    }

    fn resolve_batch(&mut self, world: &World<'_>, ops: &mut Vec<Op>) {
        let links = &world.index.links;
        let mut dirty = std::mem::take(&mut self.dirty);
        if std::mem::take(&mut self.uplinks_dirty) {
            let former = self
                .desired
                .iter()
                .filter(|(_, p)| **p == LinkProfile::Uplink);
            dirty.extend(former.map(|(link, _)| link.clone()));
            let uplinks = Family::ALL
                .into_iter()
                .filter_map(|family| world.index.uplink(family));
            dirty.extend(uplinks.map(|state| state.link.clone()));
        }
        for link in dirty {
            let desired = links
                .get(link.index)
                .filter(|state| state.link == link)
                .and_then(|state| profile(state, world.index));
            let former = match desired {
                Some(profile) => self.desired.insert(link.clone(), profile),
                None => self.desired.remove(&link),
            };
            if former != desired {
                ops.push(Op::LinkSettings(link, desired));
            }
        }
    }
}

fn profile(state: &LinkState, index: &Index) -> Option<LinkProfile> {
    let name = &state.link.name;
    match state.role {
        LinkRole::Workload => {
            let meant = index
                .links
                .named(name)
                .is_some_and(|other| other.link == state.link);
            let used = index.workloads.on(name).next().is_some();
            (meant && used).then_some(LinkProfile::Workload)
        }
        LinkRole::Tunnel(_) => Some(LinkProfile::Tunnel),
        LinkRole::Uplink | LinkRole::Other => Family::ALL
            .into_iter()
            .filter_map(|family| index.uplink(family))
            .any(|uplink| uplink.link == state.link)
            .then_some(LinkProfile::Uplink),
    }
}
