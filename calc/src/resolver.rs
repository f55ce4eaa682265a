//! From resources to the graph's routes, for each prefix that a resource names.
//!
//! A route follows from the present resources at its prefix and at those around it, never from
//! their history: when a resource comes, goes or changes, everything in its prefix is computed
//! again. Rules L1 to L20 are those of Calico's route resolver.

mod building;
mod by_node;
mod walk;

use std::{cell::OnceCell, collections::BTreeSet, mem};

use ipnet::IpNet;

use self::{
    by_node::{ByNode, Moves},
    walk::{Path, Record},
};
use crate::{
    event::{Config, Event, Node, Workload, WorkloadKey},
    index::{HeldBlock, Index, NodeId},
    prefix::{Family, Marks, PrefixMap, Run},
    route::Route,
};

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    records: PrefixMap<Record>,
    by_node: OnceCell<ByNode>,
    /// The prefixes that a changed resource names.
    touched: Marks,
    /// The prefixes to compute again, with all in them.
    dirty: Marks,
    /// The routes that are computed elsewhere, as told since the last time; then nothing follows from
    /// resources.
    told: Option<Told>,
}

/// A prefix and its route, if it has one.
pub(crate) type Changed = (IpNet, Option<Route<NodeId>>);

/// Which routes have changed.
#[derive(Debug)]
pub(crate) enum Changes {
    /// All that there are: there were none.
    All,
    /// These, as they are now, in order.
    These(Vec<Changed>),
}

/// Routes that were told.
#[derive(Debug, Default)]
struct Told {
    /// The prefix of each.
    cidrs: Vec<IpNet>,
    routes: Vec<Option<Route<NodeId>>>,
}

impl Resolver {
    /// Starts one whose routes are told by [`tell`](Self::tell), whatever the resources.
    pub(crate) fn told() -> Self {
        Self {
            told: Some(Told::default()),
            ..Self::default()
        }
    }

    /// Notes what the event touches; `before` does not include it.
    pub(crate) fn on_event(&mut self, event: &Event, before: &Index) {
        if self.told.is_some() {
            return;
        }
        match event {
            Event::Node(name, node) => self.on_node(name, node.as_ref(), before),
            Event::Pool(cidr, _) => {
                self.touched.insert(*cidr);
            }
            Event::Workload(key, workload) => self.on_workload(key, workload.as_ref(), before),
            Event::Config(config) => self.on_config(config, before),
            // Of blocks it hears by themselves.
            Event::Block(..) | Event::Bgp(_) | Event::Link(_) | Event::Links(_) => {}
        }
    }

    fn on_node(&mut self, name: &str, node: Option<&Node>, before: &Index) {
        let former = before.nodes.get(name);
        for node in former.into_iter().chain(node) {
            self.touched
                .extend(node.hosts().into_iter().map(IpNet::from));
            self.touched
                .extend(node.tunnel_ends().map(|(address, _)| IpNet::from(address)));
        }
        for family in Family::ALL {
            let main = |node: Option<&Node>| node.and_then(|node| node.main(family));
            if main(former) == main(node) {
                continue;
            }
            if *name == *before.name {
                // Whether another node is in our subnet may have changed for any of them.
                self.dirty.insert(family.whole());
            } else if let Some(id) = before.names.find(name) {
                let routes = self.by_node().get(id);
                let routes: Vec<_> = routes
                    .filter(|cidr| Family::of_net(cidr) == family)
                    .collect();
                self.dirty.extend(routes);
            }
        }
    }

    /// As [`on_event`](Self::on_event), of blocks, which come in order.
    pub(crate) fn on_blocks(&mut self, blocks: &[(IpNet, Option<HeldBlock>)], before: &Index) {
        if self.told.is_some() {
            return;
        }
        for (cidr, block) in blocks {
            self.touched.insert(*cidr);
            self.touched.extend(before.blocks.addresses(cidr));
            let addresses = block.iter().flat_map(|block| block.addresses(cidr));
            self.touched.extend(addresses);
        }
    }

    fn on_workload(&mut self, key: &WorkloadKey, workload: Option<&Workload>, before: &Index) {
        for workload in before.workloads.get(key).into_iter().chain(workload) {
            self.touched.extend(&workload.nets);
        }
    }

    fn on_config(&mut self, config: &Config, before: &Index) {
        if config.route_source == before.config.route_source {
            return;
        }
        for cidr in before.blocks.cidrs() {
            self.touched.insert(cidr);
            self.touched.extend(before.blocks.addresses(&cidr));
        }
        for (_, workload) in before.workloads.iter() {
            self.touched.extend(&workload.nets);
        }
    }

    /// Brings the routes up to date, and returns which changed.
    pub(crate) fn resolve(&mut self, index: &Index) -> Changes {
        if let Some(told) = &mut self.told {
            let told = mem::take(told);
            return Changes::These(self.take_over(&told));
        }
        if self.is_new() {
            let mut building = self.build(index);
            building.add(usize::MAX, |_, _| {});
            building.end();
            return Changes::All;
        }
        self.refresh(index);
        let roots = self.dirty.take();
        let mut changed = Vec::with_capacity(roots.len());
        let mut vacant = Vec::new();
        let mut moves = Moves::new(self.by_node.get_mut());
        let mut path = Path::new(index);
        let mut done: Option<IpNet> = None;
        for root in roots {
            if done.is_some_and(|done| done.contains(&root)) {
                continue;
            }
            done = Some(root);
            path.enter(root, &self.records);
            for (cidr, record) in self.records.subtree_mut(root) {
                let desired = path.visit(cidr, record);
                if record.is_vacant() {
                    vacant.push(cidr);
                }
                if record.route == desired {
                    continue;
                }
                let former = mem::replace(&mut record.route, desired);
                moves.note(cidr, former.as_ref(), record.route.as_ref());
                changed.push((cidr, record.route));
            }
        }
        moves.finish();
        for cidr in vacant {
            self.records.remove(&cidr);
        }
        Changes::These(changed)
    }

    /// Reads again what the resources say of each touched prefix, and marks it where that has
    /// changed.
    fn refresh(&mut self, index: &Index) {
        let mut fresh = Run::default();
        let mut owners = index.block_owners();
        for cidr in self.touched.take() {
            let owner = owners.as_mut().and_then(|owners| owners.of(&cidr));
            let desired = Record::read(&cidr, owner, index);
            match self.records.get_mut(&cidr) {
                Some(record) => {
                    if record.update(desired) {
                        self.dirty.insert(cidr);
                    }
                }
                None if desired.is_vacant() => {}
                None => {
                    fresh.push(cidr, desired);
                    self.dirty.insert(cidr);
                }
            }
        }
        self.records.absorb(fresh);
    }

    /// Takes over a route that is computed elsewhere.
    pub(crate) fn tell(&mut self, cidr: IpNet, route: Option<Route<NodeId>>) {
        if let Some(told) = &mut self.told {
            told.cidrs.push(cidr);
            told.routes.push(route);
        }
    }

    /// Takes over what was told, and returns the routes that changed, in order.
    fn take_over(&mut self, told: &Told) -> Vec<Changed> {
        let mut order: Vec<(IpNet, usize)> = told.cidrs.iter().copied().zip(0..).collect();
        order.sort_unstable();
        let mut changed = Vec::with_capacity(order.len());
        let mut fresh = Run::default();
        let mut moves = Moves::new(self.by_node.get_mut());
        for of_one in order.chunk_by(|(a, _), (b, _)| a == b) {
            // Of several on one prefix the last holds.
            let Some((cidr, last)) = of_one.last().copied() else {
                continue;
            };
            let route = told.routes.get(last).copied().flatten();
            let former = match self.records.get_mut(&cidr) {
                Some(record) if route.is_some() => mem::replace(&mut record.route, route),
                Some(_) => self.records.remove(&cidr).and_then(|record| record.route),
                None => {
                    if route.is_some() {
                        fresh.push(cidr, Record::told(route));
                    }
                    None
                }
            };
            if former != route {
                moves.note(cidr, former.as_ref(), route.as_ref());
                changed.push((cidr, route));
            }
        }
        moves.finish();
        self.records.absorb(fresh);
        changed
    }

    /// Returns the route of exactly this prefix.
    pub(crate) fn route(&self, cidr: &IpNet) -> Option<&Route<NodeId>> {
        self.records.get(cidr)?.route.as_ref()
    }

    /// The routes of wider prefixes that contain this one, narrowest first.
    pub(crate) fn covering(&self, cidr: IpNet) -> impl Iterator<Item = (IpNet, &Route<NodeId>)> {
        self.records
            .covering(cidr)
            .filter_map(|(cidr, record)| Some((cidr, record.route.as_ref()?)))
    }

    /// The routes of a prefix and of those in it, in order.
    pub(crate) fn routes_in(&self, cidr: IpNet) -> impl Iterator<Item = (IpNet, &Route<NodeId>)> {
        self.records
            .subtree(cidr)
            .filter_map(|(cidr, record)| Some((cidr, record.route.as_ref()?)))
    }

    /// All routes, in order.
    pub(crate) fn routes(&self) -> impl Iterator<Item = (IpNet, &Route<NodeId>)> {
        self.records
            .iter()
            .filter_map(|(cidr, record)| Some((cidr, record.route.as_ref()?)))
    }

    /// The prefixes of the routes to any of these nodes. To many, they come in order.
    pub(crate) fn routes_to(&self, nodes: &BTreeSet<NodeId>) -> Vec<IpNet> {
        let count: usize = nodes.iter().map(|node| self.by_node().count(*node)).sum();
        if count < self.records.len() / 8 {
            let nodes = nodes.iter();
            return nodes.flat_map(|node| self.by_node().get(*node)).collect();
        }
        self.routes()
            .filter(|(_, route)| route.node.is_some_and(|node| nodes.contains(&node)))
            .map(|(cidr, _)| cidr)
            .collect()
    }

    fn by_node(&self) -> &ByNode {
        self.by_node.get_or_init(|| {
            let mut by_node = ByNode::default();
            let mut moves = Moves::new(Some(&mut by_node));
            for (cidr, route) in self.routes() {
                moves.note(cidr, None, Some(route));
            }
            moves.finish();
            by_node
        })
    }

    /// Returns whether there are routes to a node.
    pub(crate) fn leads_to(&self, node: NodeId) -> bool {
        self.by_node().count(node) > 0
    }
}
