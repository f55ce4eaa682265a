//! The settings of interfaces: those of workloads, tunnels, and the uplinks that hold this node's
//! addresses. Any other interface is left as it is.

use std::collections::{BTreeMap, BTreeSet};

use ipc_proto::{Link, LinkProfile, LinkRole, LinkState, Op};

use super::{Kind, World, mark_workload_links};
use crate::{event::Event, index::Index, prefix::Family};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct LinkSettings {
    desired: BTreeMap<Link, LinkProfile>,
    dirty: BTreeSet<Link>,
    /// Which links are the uplinks may have changed.
    uplinks_dirty: bool,
}

impl Kind for LinkSettings {
    fn on_event(&mut self, event: &Event, before: &Index) {
        mark_workload_links(&mut self.dirty, event, before);
        match event {
            Event::Link(_) => self.uplinks_dirty = true,
            Event::Node(name, _) if **name == *before.name => self.uplinks_dirty = true,
            Event::Node(..)
            | Event::Workload(..)
            | Event::Pool(..)
            | Event::Block(..)
            | Event::Config(_)
            | Event::Bgp(_)
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
    match state.role {
        LinkRole::Workload => index.has_workload(state).then_some(LinkProfile::Workload),
        LinkRole::Tunnel(_) => Some(LinkProfile::Tunnel),
        LinkRole::Uplink | LinkRole::Other => Family::ALL
            .into_iter()
            .filter_map(|family| index.uplink(family))
            .any(|uplink| uplink.link == state.link)
            .then_some(LinkProfile::Uplink),
    }
}
