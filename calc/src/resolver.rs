//! From resources to the graph's routes, for each prefix that a resource names.
//!
//! A route follows from the present resources at its prefix and at those around it, never from
//! their history: when a resource comes, goes or changes, everything in its prefix is computed
//! again. Rules L1 to L20 are those of Calico's route resolver.

mod walk;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use ipnet::IpNet;

use self::walk::{Path, Record};
use crate::{
    event::{Block, Config, Event, Node, Workload, WorkloadKey},
    index::{Index, address, others},
    prefix::{Family, Marks, PrefixMap},
    route::{NodeName, Route},
};

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    records: PrefixMap<Record>,
    /// The routes to each node.
    by_node: BTreeMap<NodeName, BTreeSet<IpNet>>,
    /// The prefixes that a changed resource names.
    touched: Marks,
    /// The prefixes to compute again, with all in them.
    dirty: Marks,
    /// Whether the routes are told, and follow from nothing here.
    told: bool,
}

impl Resolver {
    /// Starts one whose routes are told by [`tell`](Self::tell), whatever the resources.
    pub(crate) fn told() -> Self {
        Self {
            told: true,
            ..Self::default()
        }
    }

    /// Notes what the event touches; `before` does not include it.
    pub(crate) fn on_event(&mut self, event: &Event, before: &Index) {
        if self.told {
            return;
        }
        match event {
            Event::Node(name, node) => self.on_node(name, node.as_ref(), before),
            Event::Pool(cidr, _) => {
                self.touched.insert(*cidr);
            }
            Event::Block(cidr, block) => self.on_block(*cidr, block.as_ref(), before),
            Event::Workload(key, workload) => self.on_workload(key, workload.as_ref(), before),
            Event::Config(config) => self.on_config(config, before),
            Event::Services(_) | Event::Link(_) | Event::Links(_) => {}
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
            } else if let Some(routes) = self.by_node.get(name) {
                let family = routes.iter().filter(|cidr| Family::of_net(cidr) == family);
                self.dirty.extend(family);
            }
        }
    }

    fn on_block(&mut self, cidr: IpNet, block: Option<&Block>, before: &Index) {
        self.touched.insert(cidr);
        self.touched.extend(before.blocks.addresses(&cidr));
        let addresses = block.into_iter().flat_map(others);
        self.touched
            .extend(addresses.filter_map(|(ordinal, _)| address(&cidr, ordinal)));
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
            self.touched.insert(*cidr);
            self.touched.extend(before.blocks.addresses(cidr));
        }
        for (_, workload) in before.workloads.iter() {
            self.touched.extend(&workload.nets);
        }
    }

    /// Brings the routes up to date, and returns the prefixes of those that changed, in order.
    pub(crate) fn resolve(&mut self, index: &Index) -> Vec<IpNet> {
        if self.told {
            return self.touched.take();
        }
        for cidr in self.touched.take() {
            if self.refresh(cidr, index) {
                self.dirty.insert(cidr);
            }
        }
        let mut changed = Vec::new();
        let mut vacant = Vec::new();
        let mut path = Path::default();
        let mut done: Option<IpNet> = None;
        for root in self.dirty.take() {
            if done.is_some_and(|done| done.contains(&root)) {
                continue;
            }
            done = Some(root);
            path.enter(root, &self.records, index);
            for (cidr, record) in self.records.subtree_mut(root) {
                let desired = path.visit(*cidr, record, index);
                if record.is_vacant() {
                    vacant.push(*cidr);
                }
                if record.route == desired {
                    continue;
                }
                let former = mem::replace(&mut record.route, desired);
                self.by_node
                    .relocate(*cidr, former.as_ref(), record.route.as_ref());
                changed.push(*cidr);
            }
        }
        for cidr in vacant {
            self.records.remove(&cidr);
        }
        changed
    }

    /// Reads again what the resources say of exactly this prefix; returns whether that has changed.
    fn refresh(&mut self, cidr: IpNet, index: &Index) -> bool {
        let desired = Record::read(&cidr, index);
        match self.records.get_mut(&cidr) {
            Some(record) => record.update(desired),
            None if desired.is_vacant() => false,
            None => {
                self.records.insert(cidr, desired);
                true
            }
        }
    }

    /// Returns the route of exactly this prefix.
    pub(crate) fn route(&self, cidr: &IpNet) -> Option<&Route> {
        self.records.get(cidr)?.route.as_ref()
    }

    /// The routes of wider prefixes that contain this one, narrowest first.
    pub(crate) fn covering(&self, cidr: IpNet) -> impl Iterator<Item = (&IpNet, &Route)> {
        self.records
            .covering(cidr)
            .filter_map(|(cidr, record)| Some((cidr, record.route.as_ref()?)))
    }

    /// Takes over a route that is computed elsewhere.
    pub(crate) fn tell(&mut self, cidr: IpNet, route: Option<Route>) {
        if !self.told {
            return;
        }
        let former = self.records.remove(&cidr).and_then(|record| record.route);
        self.by_node.relocate(cidr, former.as_ref(), route.as_ref());
        if route.is_some() {
            self.records.insert(cidr, Record::told(route));
        }
        self.touched.insert(cidr);
    }

    /// The routes of a prefix and of those in it, in order.
    pub(crate) fn routes_in(&self, cidr: IpNet) -> impl Iterator<Item = (&IpNet, &Route)> {
        self.records
            .subtree(cidr)
            .filter_map(|(cidr, record)| Some((cidr, record.route.as_ref()?)))
    }

    /// All routes, in order.
    pub(crate) fn routes(&self) -> impl Iterator<Item = (&IpNet, &Route)> {
        self.records
            .iter()
            .filter_map(|(cidr, record)| Some((cidr, record.route.as_ref()?)))
    }

    /// The prefixes of the routes to a node.
    pub(crate) fn routes_to(&self, node: &str) -> impl Iterator<Item = &IpNet> {
        self.by_node.get(node).into_iter().flatten()
    }
}

/// Keeps the routes to each node.
trait Relocate {
    fn relocate(&mut self, cidr: IpNet, from: Option<&Route>, to: Option<&Route>);
}

impl Relocate for BTreeMap<NodeName, BTreeSet<IpNet>> {
    fn relocate(&mut self, cidr: IpNet, from: Option<&Route>, to: Option<&Route>) {
        let node = |route: Option<&Route>| route.and_then(|route| route.node.clone());
        let (from, to) = (node(from), node(to));
        if from == to {
            return;
        }
        if let Some(from) = from
            && let Some(routes) = self.get_mut(&from)
        {
            routes.remove(&cidr);
            if routes.is_empty() {
                self.remove(&from);
            }
        }
        if let Some(to) = to {
            self.entry(to).or_default().insert(cidr);
        }
    }
}
