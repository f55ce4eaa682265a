//! The kernel's routes: to local workloads, to those of other nodes, and to nowhere for addresses
//! of local blocks that are not in use.
//!
//! No route is wanted while its link is unknown or down, or its next hop is unknown. Where several
//! are wanted for one prefix, [`conflict`](crate::conflict) tells which is made.

mod ways;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
    sync::Arc,
};

use ipc_proto::{Hop, KernelRoute, LinkState, Op, Protocol, RouteKey, RouteKind, Table};
use ipnet::IpNet;

use self::ways::{Uplink, Ways};
use super::{Kind, World};
use crate::{
    conflict::{Candidate, Class, winner},
    event::{Event, MigrationRole},
    index::{Index, NodeId, WorkloadTable},
    prefix::{Family, Marks, PrefixMap, Run, single},
    route::{PoolKind, Route, Types},
};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct KernelRoutes {
    /// The one route that each prefix shall have.
    desired: PrefixMap<Shape>,
    /// What routes of each family share.
    ways: BTreeMap<Family, Ways>,
    dirty: Marks,
    /// Nodes whose end of a tunnel has changed.
    nodes_dirty: BTreeSet<String>,
    ways_dirty: bool,
    all_dirty: bool,
}

/// A route less its prefix: what can be shared, and the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    table: Table,
    metric: u32,
    shared: Arc<KernelRoute>,
    via: Option<IpAddr>,
}

impl Shape {
    fn key(&self, prefix: IpNet) -> RouteKey {
        RouteKey::new(self.table, prefix, self.metric)
    }

    fn route(&self) -> KernelRoute {
        let mut route = KernelRoute::clone(&self.shared);
        if let RouteKind::Unicast(hop) = &mut route.kind {
            hop.via = self.via;
        }
        route
    }
}

type Wanted = Candidate<Shape>;

impl KernelRoutes {
    /// Brings up to date what routes share, and marks all where that has changed.
    fn refresh_ways(&mut self, world: &World<'_>) {
        for family in Family::ALL {
            let desired = Ways::new(family, world.index);
            if self.ways.get(&family) == Some(&desired) {
                continue;
            }
            if self.ways.insert(family, desired).is_none() {
                // All that there is has just come.
                continue;
            }
            let routes = world.routes.routes_in(family.whole());
            self.dirty.extend(routes.map(|(cidr, _)| cidr));
            // Of these, not all are routes of the graph.
            for (_, workload) in world.index.workloads.local() {
                self.dirty.extend(&workload.nets);
            }
        }
    }

    fn mark_all(&mut self, world: &World<'_>) {
        self.dirty.extend(self.desired.iter().map(|(cidr, _)| cidr));
        if !world.is_first {
            let routes = world.routes.routes();
            self.dirty.extend(routes.map(|(cidr, _)| cidr));
        }
        for (_, workload) in world.index.workloads.local() {
            self.dirty.extend(&workload.nets);
        }
    }

    fn want(
        &self,
        prefix: IpNet,
        route: Option<&Route<NodeId>>,
        world: &World<'_>,
    ) -> Option<Shape> {
        let is_ours = route.is_some_and(|route| route.local_workload);
        let family = Family::of_net(&prefix);
        if !world.index.wants(family) {
            return None;
        }
        let ways = self.ways.get(&family);
        let source = ways.and_then(|ways| ways.source);
        let local = local_workload(prefix, is_ours, source, world.index);
        let others = ways.and_then(|ways| {
            let route = route?;
            let node = route.node?;
            if node == world.index.own {
                blackhole(prefix, route, ways, world.index)
            } else {
                remote(prefix, route, node, ways, world.index)
            }
        });
        winner(local.into_iter().chain(others))
    }
}

impl Kind for KernelRoutes {
    fn on_event(&mut self, event: &Event, before: &Index) {
        match event {
            Event::Node(name, _) if **name == *before.name => self.ways_dirty = true,
            Event::Node(name, node) => {
                let ends = |node: &crate::event::Node| {
                    Family::ALL.map(|family| node.vtep(name, family).map(|vtep| vtep.address))
                };
                if before.nodes.get(name).map(ends) != node.as_ref().map(ends) {
                    self.nodes_dirty.insert(name.clone());
                }
            }
            Event::Workload(key, workload) if before.workloads.is_local(key) => {
                for workload in before.workloads.get(key).into_iter().chain(workload) {
                    self.dirty.extend(&workload.nets);
                }
            }
            Event::Link(change) => {
                self.ways_dirty = true;
                for state in before.links.before_and_after(change) {
                    for (_, workload) in before.workloads.on(&state.link.name) {
                        self.dirty.extend(&workload.nets);
                    }
                }
            }
            Event::Config(_) => {
                self.ways_dirty = true;
                self.all_dirty = true;
            }
            Event::Pool(..) => self.ways_dirty = true,
            // These come as changed routes.
            Event::Workload(..) | Event::Block(..) | Event::Bgp(_) | Event::Links(_) => {}
        }
    }

    fn follows_routes(&self) -> bool {
        true
    }

    fn resolve_batch(&mut self, world: &World<'_>, ops: &mut Vec<Op>) {
        if mem::take(&mut self.ways_dirty) || self.ways.is_empty() {
            self.refresh_ways(world);
        }
        if mem::take(&mut self.all_dirty) {
            self.mark_all(world);
        }
        let nodes = mem::take(&mut self.nodes_dirty);
        if !world.is_first {
            let nodes = nodes.iter().filter_map(|name| world.index.names.find(name));
            self.dirty.extend(world.routes.routes_to(&nodes.collect()));
        }
        let marked = self.dirty.take();
        let mut fresh = Run::default();
        for (prefix, route) in world.dirty(marked, world.changed()) {
            let desired = self.want(prefix, route, world);
            match (self.desired.get_mut(&prefix), desired) {
                (None, None) => {}
                (None, Some(desired)) => {
                    ops.push(Op::KernelRoute(
                        desired.key(prefix),
                        Some(Box::new(desired.route())),
                    ));
                    fresh.push(prefix, desired);
                }
                (Some(former), Some(desired)) => {
                    if *former == desired {
                        continue;
                    }
                    let former = mem::replace(former, desired.clone()).key(prefix);
                    let key = desired.key(prefix);
                    let moves = key != former;
                    ops.push(Op::KernelRoute(key, Some(Box::new(desired.route()))));
                    if moves {
                        ops.push(Op::KernelRoute(former, None));
                    }
                }
                (Some(former), None) => {
                    ops.push(Op::KernelRoute(former.key(prefix), None));
                    self.desired.remove(&prefix);
                }
            }
        }
        self.desired.absorb(fresh);
    }
}

/// The route to the endpoint of this node that the prefix leads to, in the BPF maps as well (V15); to
/// the target of a live migration only where the prefix `is_ours`.
fn local_workload(
    prefix: IpNet,
    is_ours: bool,
    source: Option<IpAddr>,
    index: &Index,
) -> Option<Wanted> {
    let (state, route) = to_endpoint(prefix, is_ours, source, index)?;
    state.up.then_some(Candidate {
        class: Class::LocalWorkload,
        link: state.link.index,
        carrier: state.carrier,
        route,
    })
}

/// Returns the routes to endpoints of this node that wait for their link: it is there, but down.
pub(crate) fn waiting_for_links(world: &World<'_>) -> Vec<(RouteKey, KernelRoute)> {
    let index = world.index;
    let nets = index
        .workloads
        .local()
        .flat_map(|(_, workload)| &workload.nets);
    let nets: BTreeSet<IpNet> = nets.copied().collect();
    let waiting = nets.into_iter().filter_map(|net| {
        let family = Family::of_net(&net);
        let route = world.routes.route(&net);
        let is_ours = route.is_some_and(|route| route.local_workload);
        let (state, route) = to_endpoint(net, is_ours, index.source(family), index)?;
        (!state.up && index.wants(family)).then(|| (route.key(net), route.route()))
    });
    waiting.collect()
}

/// The same, whether the link is up or not.
fn to_endpoint(
    prefix: IpNet,
    is_ours: bool,
    source: Option<IpAddr>,
    index: &Index,
) -> Option<(&LinkState, Shape)> {
    let table = match index.workload_table {
        WorkloadTable::Main => Table::Main,
        WorkloadTable::Second { .. } => Table::Second,
    };
    let config = &index.config;
    let (normal, elevated) = match Family::of_net(&prefix) {
        Family::V4 => (config.workload_metric_v4, config.elevated_metric_v4),
        Family::V6 => (config.workload_metric_v6, config.elevated_metric_v6),
    };
    let workload = index.endpoint(&prefix)?;
    let metric = match workload.migration {
        MigrationRole::Target if !is_ours => return None,
        MigrationRole::None | MigrationRole::Source => normal,
        MigrationRole::Target | MigrationRole::Moved => elevated,
    };
    let state = index.links.named(&workload.interface)?;
    let shape = Shape {
        table,
        metric,
        shared: Arc::new(KernelRoute {
            kind: RouteKind::Unicast(Hop {
                link: state.link.clone(),
                via: None,
                onlink: false,
            }),
            protocol: Protocol::Device,
            source,
            mtu: None,
        }),
        via: None,
    };
    Some((state, shape))
}

/// The route to a workload, or a block, of another node.
fn remote(
    prefix: IpNet,
    route: &Route<NodeId>,
    node: NodeId,
    ways: &Ways,
    index: &Index,
) -> Option<Wanted> {
    let workload = route.types.contains(Types::REMOTE_WORKLOAD);
    let tunnel_end = route.types.contains(Types::REMOTE_TUNNEL);
    if tunnel_end && route.tunnels.vxlan && ways.must_attach(route) {
        return Some(ways.attached.as_ref()?.to(Class::VxlanTunnel, None));
    }
    match route.pool {
        PoolKind::Vxlan if !index.config.vxlan => None,
        PoolKind::Vxlan if workload || tunnel_end && route.borrowed => {
            if route.same_subnet {
                match &ways.uplink {
                    Uplink::Up(way) => {
                        return Some(way.to(Class::VxlanSameSubnet, Some(route.node_ip?)));
                    }
                    Uplink::Down => return None,
                    // The tunnel leads there too.
                    Uplink::Unknown => {}
                }
            }
            // Were its next hop itself, the kernel could not resolve it.
            if tunnel_end && route.tunnels.vxlan {
                return Some(ways.attached.as_ref()?.to(Class::VxlanTunnel, None));
            }
            let tunnel = ways.tunnel.as_ref()?;
            let vtep = index.nodes.vtep(node, Family::of_net(&prefix))?;
            Some(tunnel.to(Class::VxlanTunnel, Some(vtep.address)))
        }
        PoolKind::NoEncap if workload && index.config.program_no_encap => match &ways.uplink {
            Uplink::Up(way) => Some(way.to(Class::NoEncap, Some(route.node_ip?))),
            Uplink::Down | Uplink::Unknown => None,
        },
        PoolKind::Vxlan | PoolKind::NoEncap | PoolKind::None | PoolKind::Ipip => None,
    }
}

/// The end of packets to addresses of a block of this node that are not in use: by a wider route
/// they would leave the node and come back.
fn blackhole(prefix: IpNet, route: &Route<NodeId>, ways: &Ways, index: &Index) -> Option<Wanted> {
    let block = route.types.contains(Types::LOCAL_WORKLOAD)
        && !route.local_workload
        && single(&prefix).is_none();
    let class = match route.pool {
        PoolKind::Vxlan if index.config.vxlan => Class::VxlanBlackhole,
        PoolKind::NoEncap if index.config.program_no_encap => Class::NoEncapBlackhole,
        PoolKind::Vxlan | PoolKind::NoEncap | PoolKind::None | PoolKind::Ipip => return None,
    };
    block.then(|| ways.blackhole.to(class, None))
}
