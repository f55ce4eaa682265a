//! From events to what should be. Pure: it knows the policy and no time.
//!
//! What should be follows from what is present, whatever the order in which it came. Each call
//! computes only what the changes since the last one touch.

use std::{collections::BTreeSet, mem, net::IpAddr};

use ipc_proto::{KernelRoute, Link, Op, RouteKey, Tunnel};
use ipnet::IpNet;

use crate::{
    event::Event,
    index::{HeldBlock, Index, WorkloadTable},
    kind::{self, Kind, World},
    obstacles,
    resolver::{Changes, Resolver},
    route::Route,
};

/// No route has changed.
const NONE: Changes = Changes::These(Vec::new());
/// How many blocks are taken in at a time: what that takes besides is to be little.
const MAX_BLOCKS: usize = 1 << 18;

/// See the [module](self).
#[derive(Debug)]
pub struct Calculator {
    index: Index,
    resolver: Resolver,
    kinds: Vec<Box<dyn Kind>>,
    has_resolved: bool,
}

impl Calculator {
    /// Starts with an empty datastore and no interfaces, for the node of this name.
    #[must_use]
    pub fn new(node: String) -> Self {
        Self {
            index: Index::new(node),
            resolver: Resolver::default(),
            kinds: kind::all(),
            has_resolved: false,
        }
    }

    /// As [`new`](Self::new), with these kinds.
    #[cfg(test)]
    pub(crate) fn with_kinds(node: String, kinds: Vec<Box<dyn Kind>>) -> Self {
        Self {
            kinds,
            ..Self::new(node)
        }
    }

    /// Has routes to workloads of this node go to another table.
    #[must_use]
    pub fn with_workload_table(mut self, table: WorkloadTable) -> Self {
        self.index.workload_table = table;
        self
    }

    /// As [`new`](Self::new), but the graph's routes are those of [`tell`](Self::tell) and not what
    /// follows from nodes, pools, blocks and endpoints: for a feed of routes, such as Felix's.
    #[must_use]
    pub fn told_routes(node: String) -> Self {
        Self {
            resolver: Resolver::told(),
            ..Self::new(node)
        }
    }

    /// Takes over a route of the graph, by its prefix without host bits; only after
    /// [`told_routes`](Self::told_routes), else this does nothing.
    pub fn tell(&mut self, cidr: IpNet, route: Option<Route>) {
        let names = &mut self.index.names;
        let route = route.map(|route| route.map_node(|name| names.intern(&name)));
        self.resolver.tell(cidr, route);
    }

    /// Takes in a change. Nothing is computed before [`resolve`](Self::resolve).
    pub fn handle(&mut self, event: Event) {
        self.handle_all([event]);
    }

    /// As [`handle`](Self::handle), of each in turn. Blocks are many, as at a start: those that come one
    /// after the other are taken in as one run in order, which costs a fraction of one by one.
    pub fn handle_all(&mut self, events: impl IntoIterator<Item = Event>) {
        let mut blocks = Vec::new();
        for event in events {
            if let Event::Block(cidr, block) = event {
                let block = block.map(|block| self.index.held(&block));
                blocks.push((cidr, block));
                if blocks.len() == MAX_BLOCKS {
                    self.take_in_blocks(mem::take(&mut blocks));
                }
                continue;
            }
            self.take_in_blocks(mem::take(&mut blocks));
            if let Event::Links(states) = event {
                for change in self.index.links.replacements(states) {
                    self.take_in(Event::Link(change));
                }
            } else {
                self.take_in(event);
            }
        }
        self.take_in_blocks(blocks);
    }

    fn take_in_blocks(&mut self, mut blocks: Vec<(IpNet, Option<HeldBlock>)>) {
        self.index.retain_news(&mut blocks);
        if blocks.is_empty() {
            return;
        }
        self.resolver.on_blocks(&blocks, &self.index);
        for kind in &mut self.kinds {
            kind.on_blocks(&blocks, &self.index);
        }
        self.index.set_blocks(blocks);
    }

    fn take_in(&mut self, event: Event) {
        if self.index.holds(&event) {
            return;
        }
        self.resolver.on_event(&event, &self.index);
        for kind in &mut self.kinds {
            kind.on_event(&event, &self.index);
        }
        self.index.apply(event);
    }

    /// Computes what the changes since the last call touched, and returns what should be: one op
    /// for each key whose desired value has changed, kind by kind in the order in which they are to
    /// be made.
    pub fn resolve(&mut self) -> Vec<Op> {
        let changes = self.resolver.resolve(&self.index);
        self.resolve_changed(&changes)
    }

    /// Computes what follows where these routes have changed, besides what else is marked.
    fn resolve_changed(&mut self, changes: &Changes) -> Vec<Op> {
        let world = World {
            index: &self.index,
            routes: &self.resolver,
            changes,
            is_first: !mem::replace(&mut self.has_resolved, true),
        };
        let mut ops = Vec::new();
        for kind in &mut self.kinds {
            kind.resolve_batch(&world, &mut ops);
        }
        self.index.forget_names(|node| self.resolver.leads_to(node));
        ops
    }

    /// Returns whether nothing has been computed yet.
    #[must_use]
    pub fn is_new(&self) -> bool {
        !self.has_resolved && self.resolver.is_new()
    }

    /// Returns how many prefixes are named by what has changed since the last time, about.
    #[must_use]
    pub fn named(&self) -> usize {
        self.resolver.touched_len()
    }

    /// Of what [`resolve`](Self::resolve) would return, returns what must be made before what depends on routes.
    /// Only where [nothing has been computed](Self::is_new).
    pub fn resolve_first(&mut self) -> Vec<Op> {
        let world = World {
            index: &self.index,
            routes: &self.resolver,
            changes: &NONE,
            is_first: true,
        };
        let mut ops = Vec::new();
        for kind in &mut self.kinds {
            if kind.follows_routes() {
                break;
            }
            kind.resolve_batch(&world, &mut ops);
        }
        ops
    }

    /// As [`resolve`](Self::resolve) after [`resolve_first`](Self::resolve_first), but what depends on nothing
    /// but the route of a prefix of more than one address is told `early`, as it is computed, in order and in
    /// parts that follow from `size` prefixes each.
    pub fn resolve_early(&mut self, size: usize, mut early: impl FnMut(Vec<Op>)) -> Vec<Op> {
        let mut building = self.resolver.build(&self.index);
        let mut routes = Vec::with_capacity(size);
        while building.left() > 0 {
            routes.clear();
            building.add(size, |cidr, route| routes.push((cidr, route)));
            let mut ops = Vec::with_capacity(size);
            for kind in &mut self.kinds {
                kind.resolve_early(&routes, building.left(), &self.index, &mut ops);
            }
            early(ops);
        }
        building.end();
        self.resolve_changed(&Changes::All)
    }

    /// Takes no more memory than it must: after a load, what came with it is in loose order.
    pub fn pack(&mut self) {
        self.index.pack();
    }

    /// The graph's routes as of the last [`resolve`](Self::resolve), in order.
    pub fn routes(&self) -> impl Iterator<Item = (IpNet, Route)> {
        let names = &self.index.names;
        self.resolver
            .routes()
            .map(|(cidr, route)| (cidr, route.map_node(|id| names.name(id))))
    }

    /// Returns whether the datastore has this node. Without it, nothing that would be computed means
    /// anything: its own workloads would look like another node's.
    #[must_use]
    pub fn knows_own_node(&self) -> bool {
        self.index.own_node().is_some()
    }

    /// Returns whether the kernel's routes are this node's to change: the configuration may leave them
    /// to others.
    #[must_use]
    pub fn syncs_routes(&self) -> bool {
        !self.index.config.route_sync_disabled
    }

    /// Returns the tunnel devices that are wanted, be it that not all of what they are made of is
    /// known: such a one is to stay as it is.
    pub fn tunnels(&self) -> impl Iterator<Item = Tunnel> {
        kind::tunnels(&self.index)
    }

    /// Returns the links of workloads of this node with which BIRD speaks BGP.
    #[must_use]
    pub fn bgp_peers(&self) -> BTreeSet<Link> {
        let peers = self.index.bgp_peers();
        peers.map(|state| state.link.clone()).collect()
    }

    /// Returns the kernel routes to endpoints of this node that are wanted once their link is up.
    #[must_use]
    pub fn waiting_for_links(&self) -> Vec<(RouteKey, KernelRoute)> {
        if !self.syncs_routes() {
            return Vec::new();
        }
        kind::waiting_for_links(&World {
            index: &self.index,
            routes: &self.resolver,
            changes: &NONE,
            is_first: false,
        })
    }

    /// Returns whether a tunnel device is wanted but not what it is made of.
    #[must_use]
    pub fn lacks_uplink(&self) -> bool {
        kind::tunnel_unknown(&self.index)
    }

    /// Returns what keeps something from being wanted that should be, in words for the operator.
    #[must_use]
    pub fn obstacles(&self) -> Vec<String> {
        obstacles::of(&self.index)
    }

    /// Returns whether a tunnel device is wanted that has not been seen up with its address: more
    /// will be wanted then.
    #[must_use]
    pub fn awaits_tunnel(&self) -> bool {
        kind::tunnel_awaited(&self.index)
    }

    /// This host's own addresses that others can send to, ascending: node ports are served on them.
    pub fn host_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.index.links.local_addresses()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Pool;

    #[test]
    fn routes_are_told_or_follow_from_resources_but_not_both() {
        let [told, pool]: [IpNet; 2] =
            ["10.1.0.0/16", "10.2.0.0/16"].map(|net| net.parse().unwrap());
        for (mut calculator, route) in [
            (Calculator::told_routes("node-a".to_owned()), told),
            (Calculator::new("node-a".to_owned()), pool),
        ] {
            calculator.handle(Event::Pool(pool, Some(Pool::default())));
            calculator.tell(told, Some(Route::default()));
            calculator.resolve();
            let routes: Vec<_> = calculator.routes().map(|(cidr, _)| cidr).collect();
            assert_eq!(routes, [route]);
            calculator.tell(told, None);
            calculator.resolve();
            let left = calculator.routes().count();
            assert_eq!(left, usize::from(route == pool));
        }
    }
}
