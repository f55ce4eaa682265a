//! Permanent neighbours: local IPv4 workloads on their links, and the other nodes' ends of the
//! VXLAN tunnels on the tunnel devices.
//!
//! They are wanted while their link is up: the kernel drops them when it goes down, so its coming
//! up must set them again.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipc_proto::{Link, LinkRole, Mac, NeighbourKey, Op};

use super::{Kind, World};
use crate::{
    event::{Event, Node, Workload},
    index::Index,
    prefix::{Family, single},
};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    /// For each address, what it is on each link.
    desired: BTreeMap<IpAddr, BTreeMap<Link, Mac>>,
    dirty: BTreeSet<IpAddr>,
    /// Families whose tunnel device changed.
    tunnels_dirty: BTreeSet<Family>,
}

impl Neighbours {
    fn mark_workload(&mut self, workload: &Workload) {
        self.dirty.extend(workload.nets.iter().filter_map(single));
    }

    fn mark_node(&mut self, node: &Node) {
        self.dirty
            .extend([node.vxlan_v4, node.vxlan_v6].into_iter().flatten());
    }
}

impl Kind for Neighbours {
    fn on_event(&mut self, event: &Event, before: &Index) {
        match event {
            Event::Node(name, node) => {
                for node in before.nodes.get(name).into_iter().chain(node) {
                    self.mark_node(node);
                }
            }
            Event::Workload(key, workload) if before.workloads.is_local(key) => {
                for workload in before.workloads.get(key).into_iter().chain(workload) {
                    self.mark_workload(workload);
                }
            }
            Event::Link(change) => {
                for state in before.links.before_and_after(change) {
                    if let LinkRole::Tunnel(tunnel) = state.role {
                        self.tunnels_dirty.insert(tunnel.into());
                    }
                    for (_, workload) in before.workloads.on(&state.link.name) {
                        self.mark_workload(workload);
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
                    .extend(node.vtep(name, family).map(|vtep| vtep.address));
            }
        }
        for address in std::mem::take(&mut self.dirty) {
            let desired = want(address, world.index);
            let former = if desired.is_empty() {
                self.desired.remove(&address)
            } else {
                self.desired.insert(address, desired.clone())
            }
            .unwrap_or_default();
            let links: BTreeSet<&Link> = former.keys().chain(desired.keys()).collect();
            for link in links {
                let mac = desired.get(link).copied();
                if former.get(link).copied() != mac {
                    let link = link.clone();
                    ops.push(Op::Neighbour(NeighbourKey { link, address }, mac));
                }
            }
        }
    }
}

fn want(address: IpAddr, index: &Index) -> BTreeMap<Link, Mac> {
    let mut desired = BTreeMap::new();
    let family = Family::of(address);
    if !index.wants(family) {
        return desired;
    }
    let device = index.links.tunnel(family.tunnel()).filter(|state| state.up);
    if let Some(device) = device
        && let Some(mac) = other_end(address, index)
    {
        desired.insert(device.link.clone(), mac);
    }
    // IPv6 workloads are found by neighbour discovery.
    if family == Family::V4 {
        // Of several on one link, the greatest key comes last and stays.
        for (_, workload) in index.workloads.local_with_net(&address.into()) {
            if let (Some(state), Some(mac)) = (index.links.up(&workload.interface), workload.mac) {
                desired.insert(state.link.clone(), mac);
            }
        }
    }
    desired
}

/// The hardware address of the other node, the first by name, whose end of the tunnel it is.
fn other_end(address: IpAddr, index: &Index) -> Option<Mac> {
    let mut others = index
        .nodes
        .vteps_at(address)
        .filter(|name| **name != index.name);
    let vtep = |name| index.nodes.get(name)?.vtep(name, Family::of(address));
    others.find_map(|name| vtep(name)).map(|vtep| vtep.mac)
}
