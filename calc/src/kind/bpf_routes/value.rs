//! What the entry of one prefix is: the rules V8 to V20, in their order.

use std::net::{IpAddr, Ipv4Addr};

use ebpf::flags;
use ipc_proto::{BpfRoute, BpfTarget, Flags};
use ipnet::IpNet;

use super::BpfRoutes;
use crate::{
    event::{ServiceLoopPrevention, Workload},
    index::{Index, NodeId},
    kind::World,
    prefix::{Family, single},
    route::{PoolKind, Route, Types},
};

/// The flags that tell of the pool around a prefix.
const POOL: u32 = flags::IN_POOL | flags::NAT_OUT | flags::SAME_SUBNET;
const BLACKHOLE: u32 = flags::BLACKHOLE_DROP | flags::BLACKHOLE_REJECT;
const LOCAL_HOST: u32 = flags::LOCAL | flags::HOST;
const LOCAL_WORKLOAD: u32 = flags::LOCAL | flags::WORKLOAD;

impl BpfRoutes {
    /// Returns the entry that the prefix should have, by the route of exactly this prefix. What it
    /// would have by wider prefixes is read from their entries, which must be up to date.
    pub(super) fn want(
        &self,
        cidr: &IpNet,
        route: Option<&Route<NodeId>>,
        world: &World<'_>,
    ) -> Option<BpfRoute> {
        let independent = self.independent(cidr, world.index);
        self.entry(cidr, route, independent, world.index, || {
            self.unrouted(cidr, independent, world)
        })
    }

    /// As [`want`](Self::want), of a prefix whose entry depends on nothing but its route.
    pub(super) fn want_early(
        &self,
        cidr: &IpNet,
        route: &Route<NodeId>,
        index: &Index,
    ) -> Option<BpfRoute> {
        self.entry(cidr, Some(route), 0, index, BpfRoute::default)
    }

    fn entry(
        &self,
        cidr: &IpNet,
        route: Option<&Route<NodeId>>,
        independent: u32,
        index: &Index,
        unrouted: impl FnOnce() -> BpfRoute,
    ) -> Option<BpfRoute> {
        if !index.wants(Family::of_net(cidr)) {
            return None;
        }
        let mut entry = match route.copied().and_then(relevant) {
            Some(route) => routed(cidr, &route, independent, index),
            None if independent == 0 => None,
            None => Some(unrouted()),
        }?;
        // An opt-out holds for everything in it that has an entry (V9).
        if self
            .settings
            .dsr_optout
            .iter()
            .any(|optout| optout.contains(cidr))
        {
            entry.flags.0 |= flags::NO_DSR;
        }
        Some(entry)
    }

    /// The flags that follow from the prefix itself (V9).
    fn independent(&self, cidr: &IpNet, index: &Index) -> u32 {
        let mut result = 0;
        if is_local(cidr, index) {
            result |= LOCAL_HOST;
        }
        if self.settings.external_nodes.contains(cidr) {
            result |= flags::HOST;
        }
        if self.settings.dsr_optout.contains(cidr) {
            result |= flags::NO_DSR;
        }
        if self.settings.services.contains(cidr) {
            result |= match index.config.service_loop_prevention {
                ServiceLoopPrevention::Drop => flags::BLACKHOLE_DROP,
                ServiceLoopPrevention::Reject => flags::BLACKHOLE_REJECT,
                ServiceLoopPrevention::Disabled => 0,
            };
        }
        result
    }

    /// The entry of a prefix that has independent flags and no route (V12).
    fn unrouted(&self, cidr: &IpNet, independent: u32, world: &World<'_>) -> BpfRoute {
        if is_local(cidr, world.index) {
            return plain(independent);
        }
        if world.index.workloads.local_with_net(cidr).next().is_some() {
            let pool = graph_routes_around(world, *cidr)
                .find(|(_, route)| route.types.is_empty())
                .map_or(0, |(_, route)| pool_flags(&route));
            return plain(independent | pool);
        }
        let (around, wider) = self
            .desired
            .covering(*cidr)
            .next()
            .map_or((None, BpfRoute::default()), |(cidr, entry)| {
                (Some(cidr), entry.clone())
            });
        let mut entry = if wider.flags.contains(flags::LOCAL) {
            plain(wider.flags.0 & POOL)
        } else if self.settings.external_nodes.contains(cidr) {
            plain(wider.flags.0 & (POOL | BLACKHOLE))
        } else {
            wider
        };
        // A route in between has no entry, but what it says of the pool holds.
        if let Some((between, route)) = graph_routes_around(world, *cidr).next()
            && around.is_none_or(|around| between.prefix_len() > around.prefix_len())
        {
            entry.flags.0 = entry.flags.0 & !POOL | pool_flags(&route);
        }
        entry.flags.0 |= independent;
        entry
    }
}

/// The entry of a prefix that has a route (V13 to V20).
fn routed(
    cidr: &IpNet,
    route: &Route<NodeId>,
    independent: u32,
    index: &Index,
) -> Option<BpfRoute> {
    let base = independent | pool_flags(route);
    let reduced = (independent != 0).then(|| plain(base));
    let base_if_any = (base != 0).then(|| plain(base));
    let via_node = |extra: u32| {
        if is_local(cidr, index) {
            return Some(plain(base));
        }
        match next_hop(cidr, route) {
            Some(node) => Some(BpfRoute {
                flags: Flags(base | extra),
                target: BpfTarget::NextHop(node),
            }),
            None => reduced.clone(),
        }
    };
    let vxlan = if route.pool == PoolKind::Vxlan {
        flags::VXLAN
    } else {
        0
    };
    let types = route.types;
    if types.contains(Types::REMOTE_TUNNEL) {
        return via_node(flags::HOST | flags::TUNNELED | vxlan);
    }
    if route.local_workload {
        return match index.endpoint(cidr) {
            Some(workload) => Some(to_workload(base, workload, index)),
            None => base_if_any,
        };
    }
    if types.contains(Types::REMOTE_HOST) {
        return via_node(flags::HOST);
    }
    if types.contains(Types::LOCAL_HOST) {
        return Some(plain(base | LOCAL_HOST));
    }
    if types.contains(Types::REMOTE_WORKLOAD) {
        let coming = types.contains(Types::LOCAL_WORKLOAD) && route.node == Some(index.own);
        if coming {
            return base_if_any;
        }
        let tunneled = match route.pool {
            PoolKind::Vxlan | PoolKind::Ipip => flags::TUNNELED,
            PoolKind::None | PoolKind::NoEncap if index.config.wireguard => flags::TUNNELED,
            PoolKind::None | PoolKind::NoEncap => 0,
        };
        return via_node(flags::WORKLOAD | tunneled | vxlan);
    }
    if types.contains(Types::LOCAL_WORKLOAD) {
        return reduced;
    }
    base_if_any
}

/// The entry of a local workload; while its link is not up its packets fail the source check (V15).
fn to_workload(base: u32, workload: &Workload, index: &Index) -> BpfRoute {
    let skip = if workload.skip_ingress_redirect {
        flags::SKIP_INGRESS_REDIRECT
    } else {
        0
    };
    BpfRoute {
        flags: Flags(base | LOCAL_WORKLOAD | skip),
        target: index
            .links
            .up(&workload.interface)
            .map_or(BpfTarget::None, |state| BpfTarget::Link(state.link.clone())),
    }
}

fn plain(bits: u32) -> BpfRoute {
    BpfRoute {
        flags: Flags(bits),
        target: BpfTarget::None,
    }
}

/// What a route says of the pool around it (V10).
fn pool_flags(route: &Route<NodeId>) -> u32 {
    [
        (route.pool != PoolKind::None, flags::IN_POOL),
        (route.nat_outgoing, flags::NAT_OUT),
        (route.same_subnet, flags::SAME_SUBNET),
    ]
    .into_iter()
    .filter(|(set, _)| *set)
    .fold(0, |all, (_, flag)| all | flag)
}

/// Returns the node's address if packets can be sent there (V13).
fn next_hop(cidr: &IpNet, route: &Route<NodeId>) -> Option<IpAddr> {
    route.node_ip.filter(|address| {
        Family::of(*address) == Family::of_net(cidr)
            && !address.is_unspecified()
            && !address.is_loopback()
            && !address.is_multicast()
            && *address != Ipv4Addr::BROADCAST
    })
}

fn is_local(cidr: &IpNet, index: &Index) -> bool {
    single(cidr).is_some_and(|address| index.links.is_local(address))
}

/// The routes of wider prefixes as far as they matter here, narrowest first.
fn graph_routes_around(
    world: &World<'_>,
    cidr: IpNet,
) -> impl Iterator<Item = (IpNet, Route<NodeId>)> {
    world
        .routes
        .covering(cidr)
        .filter_map(|(cidr, route)| Some((cidr, relevant(*route)?)))
}

/// Leaves out this node's own tunnel ends, which are known from their interfaces (V5).
fn relevant(route: Route<NodeId>) -> Option<Route<NodeId>> {
    if !route.types.contains(Types::LOCAL_TUNNEL) {
        return Some(route);
    }
    route.local_workload.then(|| Route {
        types: route.types.without(Types::LOCAL_TUNNEL),
        ..route
    })
}
