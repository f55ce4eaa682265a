//! The addresses of this host on the links of workloads with which BIRD speaks BGP: those that the BGP
//! configuration names, one of each family, on each of the links.
//!
//! They are wanted while the link is up: the kernel drops IPv6 ones when it goes down. None is where the
//! kernel's routes are left to others, who then speak for this host, and none that a node, a pod or services have:
//! this host would take in what is sent to that one (`obstacles.rs` tells).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipc_proto::{Link, LinkAddressKey, Op};
use ipnet::IpNet;

use super::{Kind, World, mark_workload_links};
use crate::{
    event::Event,
    index::{HeldBlock, Index},
    prefix::Family,
};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct LinkAddresses {
    desired: BTreeMap<Link, BTreeSet<IpAddr>>,
    dirty: BTreeSet<Link>,
    /// All may be other than before.
    all_dirty: bool,
}

impl Kind for LinkAddresses {
    fn on_event(&mut self, event: &Event, before: &Index) {
        mark_workload_links(&mut self.dirty, event, before);
        self.all_dirty |= match event {
            Event::Config(config) => {
                config.ipv6 != before.config.ipv6
                    || config.route_sync_disabled != before.config.route_sync_disabled
            }
            Event::Bgp(bgp) => {
                bgp.peering != before.bgp.peering || bgp.services != before.bgp.services
            }
            Event::Node(name, node) => {
                let nodes = before.nodes.get(name).into_iter().chain(node);
                let mut ends = nodes.flat_map(|node| {
                    let tunnels = node.tunnel_ends().map(|(address, _)| address);
                    node.hosts().into_iter().chain(tunnels)
                });
                ends.any(|address| is_peering(address, before))
            }
            Event::Workload(key, workload) => {
                let workloads = before.workloads.get(key).into_iter().chain(workload);
                let mut nets = workloads.flat_map(|workload| &workload.nets);
                nets.any(|net| is_peering(net.addr(), before))
            }
            Event::Pool(..) | Event::Block(..) | Event::Link(_) | Event::Links(_) => false,
        };
    }

    fn on_blocks(&mut self, blocks: &[(IpNet, Option<HeldBlock>)], before: &Index) {
        for address in peering(before) {
            self.all_dirty |= blocks.iter().any(|(cidr, _)| cidr.contains(&address));
        }
    }

    fn resolve_batch(&mut self, world: &World<'_>, ops: &mut Vec<Op>) {
        let mut dirty = std::mem::take(&mut self.dirty);
        if std::mem::take(&mut self.all_dirty) {
            dirty.extend(self.desired.keys().cloned());
            let peers = world.index.bgp_peers();
            dirty.extend(peers.map(|state| state.link.clone()));
        }
        for link in dirty {
            let desired = want(&link, world.index);
            let former = if desired.is_empty() {
                self.desired.remove(&link)
            } else {
                self.desired.insert(link.clone(), desired.clone())
            }
            .unwrap_or_default();
            for address in &former ^ &desired {
                let is_wanted = desired.contains(&address);
                let link = link.clone();
                ops.push(Op::LinkAddress(LinkAddressKey { link, address }, is_wanted));
            }
        }
    }
}

fn want(link: &Link, index: &Index) -> BTreeSet<IpAddr> {
    let state = index.links.get(link.index);
    let is_peer = |state| index.is_bgp_peer(state);
    let wanted = !index.config.route_sync_disabled
        && state.is_some_and(|state| state.link == *link && state.up && is_peer(state));
    if !wanted {
        return BTreeSet::new();
    }
    let wanted = peering(index).filter(|address| index.holder(*address).is_none());
    wanted.collect()
}

fn peering(index: &Index) -> impl Iterator<Item = IpAddr> {
    let families = Family::ALL.into_iter();
    families.filter_map(|family| index.peering(family))
}

fn is_peering(address: IpAddr, index: &Index) -> bool {
    peering(index).any(|own| own == address)
}
