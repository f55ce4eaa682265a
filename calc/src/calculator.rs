//! From events to what should be. Pure: it knows the policy and no time.
//!
//! What should be follows from what is present, whatever the order in which it came. Each call
//! computes only what the changes since the last one touch.

use std::{collections::BTreeSet, mem, net::IpAddr};

use ipc_proto::{KernelRoute, Link, Op, RouteKey, Tunnel};
use ipnet::IpNet;

use crate::{
    event::{Block, Event},
    index::{Index, WorkloadTable},
    kind::{self, Kind, World},
    obstacles,
    resolver::Resolver,
    route::Route,
};

/// How many blocks are taken in at a time: what that takes besides is to be little.
const MAX_BLOCKS: usize = 131_072;

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
        match event {
            Event::Links(states) => {
                for change in self.index.links.replacements(states) {
                    self.take_in(Event::Link(change));
                }
            }
            event @ (Event::Node(..)
            | Event::Pool(..)
            | Event::Block(..)
            | Event::Workload(..)
            | Event::Config(_)
            | Event::Bgp(_)
            | Event::Link(_)) => self.take_in(event),
        }
    }

    /// As [`handle`](Self::handle), of each in turn. Blocks are many, as at a start: those that come one
    /// after the other are taken in as one run in order, which costs a fraction of one by one.
    pub fn handle_all(&mut self, events: impl IntoIterator<Item = Event>) {
        let mut blocks = Vec::new();
        for event in events {
            if let Event::Block(cidr, block) = event {
                blocks.push((cidr, block));
                if blocks.len() == MAX_BLOCKS {
                    self.take_in_blocks(mem::take(&mut blocks));
                }
            } else {
                self.take_in_blocks(mem::take(&mut blocks));
                self.handle(event);
            }
        }
        self.take_in_blocks(blocks);
    }

    fn take_in_blocks(&mut self, blocks: Vec<(IpNet, Option<Block>)>) {
        let mut news = Vec::with_capacity(blocks.len());
        for (cidr, block) in self.index.news(blocks) {
            let event = Event::Block(cidr, block);
            self.resolver.on_event(&event, &self.index);
            for kind in &mut self.kinds {
                kind.on_event(&event, &self.index);
            }
            if let Event::Block(cidr, block) = event {
                news.push((cidr, block));
            }
        }
        self.index.set_blocks(news);
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
        let changed = self.resolver.resolve(&self.index);
        let world = World {
            index: &self.index,
            routes: &self.resolver,
            changed: &changed,
            is_first: !mem::replace(&mut self.has_resolved, true),
        };
        let mut ops = Vec::new();
        for kind in &mut self.kinds {
            kind.resolve_batch(&world, &mut ops);
        }
        self.index.forget_names(|node| self.resolver.leads_to(node));
        ops
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
            changed: &[],
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
