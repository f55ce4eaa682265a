//! Permanent forwarding entries of the tunnel devices: the node behind each hardware address.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipc_proto::{FdbKey, Link, LinkRole, Mac, Op};

use super::{Kind, World};
use crate::{event::Event, index::Index, prefix::Family};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Fdb {
    desired: BTreeMap<(Family, Mac), (Link, IpAddr)>,
    dirty: BTreeSet<(Family, Mac)>,
    /// Families whose tunnel device changed.
    tunnels_dirty: BTreeSet<Family>,
}

impl Kind for Fdb {
    fn on_event(&mut self, event: &Event, before: &Index) {
        match event {
            Event::Node(name, node) => {
                for node in before.nodes.get(name).into_iter().chain(node) {
                    let vteps = node.vteps(name);
                    self.dirty
                        .extend(vteps.map(|(family, vtep)| (family, vtep.mac)));
                }
            }
            Event::Link(change) => {
                for state in before.links.before_and_after(change) {
                    if let LinkRole::Tunnel(tunnel) = state.role {
                        self.tunnels_dirty.insert(tunnel.into());
                    }
                }
            }
            Event::Config(config) => {
                if config.ipv6 != before.config.ipv6 {
                    self.tunnels_dirty.insert(Family::V6);
                }
            }
            Event::Workload(..)
            | Event::Pool(..)
            | Event::Block(..)
            | Event::Bgp(_)
            | Event::Links(_) => {}
        }
    }

    fn resolve_batch(&mut self, world: &World<'_>, ops: &mut Vec<Op>) {
        for family in std::mem::take(&mut self.tunnels_dirty) {
            for (name, node) in world.index.nodes.iter() {
                self.dirty
                    .extend(node.vtep(name, family).map(|vtep| (family, vtep.mac)));
            }
        }
        for (family, mac) in std::mem::take(&mut self.dirty) {
            let desired = want(family, mac, world.index);
            let former = match desired.clone() {
                Some(entry) => self.desired.insert((family, mac), entry),
                None => self.desired.remove(&(family, mac)),
            };
            if former == desired {
                continue;
            }
            let device = desired.as_ref().map(|(link, _)| link.clone());
            if let Some((link, _)) = former
                && Some(&link) != device.as_ref()
            {
                ops.push(Op::Fdb(FdbKey { link, mac }, None));
            }
            if let Some((link, node)) = desired {
                ops.push(Op::Fdb(FdbKey { link, mac }, Some(node)));
            }
        }
    }
}

/// The device, and the other node, the first by name, with that hardware address.
fn want(family: Family, mac: Mac, index: &Index) -> Option<(Link, IpAddr)> {
    if !index.wants(family) {
        return None;
    }
    let device = index.links.tunnel(family.tunnel())?;
    let mut others = index
        .nodes
        .vteps_of(family, mac)
        .filter(|name| **name != index.name);
    let vtep = others.find_map(|name| index.nodes.get(name)?.vtep(name, family))?;
    Some((device.link.clone(), vtep.node))
}
