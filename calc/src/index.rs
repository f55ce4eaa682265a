//! The resources as they are, with the look-ups that the rest asks for.
//!
//! A look-up tells what the present resources say, whatever came before. Nothing is decided here.

mod blocks;
mod links;
mod nodes;
mod pools;
mod workloads;

use std::collections::BTreeSet;

use ipc_proto::{LinkRole, LinkState};
use ipnet::IpNet;

pub(crate) use self::{
    blocks::{Blocks, address, others},
    links::Links,
    nodes::{Nodes, Vtep},
    pools::Pools,
    workloads::Workloads,
};
use crate::{
    event::{Config, Event, Node, RouteSource, Services, Workload},
    prefix::{Family, single},
    route::{NodeName, Tunnels},
};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Index {
    /// This node.
    pub(crate) name: NodeName,
    names: Names,
    pub(crate) nodes: Nodes,
    pub(crate) pools: Pools,
    pub(crate) blocks: Blocks,
    pub(crate) workloads: Workloads,
    pub(crate) links: Links,
    pub(crate) config: Config,
    pub(crate) services: Services,
}

/// Who uses a prefix: a workload, or else the ends of tunnels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) node: NodeName,
    pub(crate) workload: bool,
    /// Which tunnels, where it is not a workload.
    pub(crate) tunnels: Tunnels,
}

impl Index {
    pub(crate) fn new(node: String) -> Self {
        let mut names = Names::default();
        Self {
            name: names.get(&node),
            names,
            nodes: Nodes::default(),
            pools: Pools::default(),
            blocks: Blocks::default(),
            workloads: Workloads::new(node),
            links: Links::default(),
            config: Config::default(),
            services: Services::default(),
        }
    }

    /// Returns whether the event tells what is known already.
    pub(crate) fn holds(&self, event: &Event) -> bool {
        match event {
            Event::Node(name, node) => self.nodes.get(name) == node.as_ref(),
            Event::Pool(cidr, pool) => self.pools.get(cidr) == pool.as_ref(),
            Event::Block(cidr, block) => self.blocks.holds(cidr, block.as_ref()),
            Event::Workload(key, workload) => self.workloads.get(key) == workload.as_ref(),
            Event::Config(config) => self.config == *config,
            Event::Services(services) => self.services == *services,
            Event::Link(event) => self.links.holds(event),
            Event::Links(_) => false,
        }
    }

    /// Takes over what the event says.
    pub(crate) fn apply(&mut self, event: Event) {
        match event {
            Event::Node(name, node) => {
                let gone = node.is_none();
                self.nodes.set(&self.names.get(&name), node);
                if gone {
                    self.names.forget_unused();
                }
            }
            Event::Pool(cidr, pool) => self.pools.set(cidr, pool),
            Event::Block(cidr, block) => self.blocks.set(cidr, block, &mut self.names),
            Event::Workload(key, workload) => self.workloads.set(key, workload),
            Event::Config(config) => self.config = config,
            Event::Services(services) => self.services = services,
            Event::Link(event) => self.links.set(event),
            Event::Links(states) => {
                for event in self.links.replacements(states) {
                    self.links.set(event);
                }
            }
        }
    }

    /// Returns the resource of this node.
    pub(crate) fn own_node(&self) -> Option<&Node> {
        self.nodes.get(&self.name)
    }

    /// Returns the link that holds this node's address of the family. Of several, one that the
    /// helper calls an uplink is preferred, then one that is up.
    pub(crate) fn uplink(&self, family: Family) -> Option<&LinkState> {
        let address = self.own_node()?.main(family)?.addr();
        self.links.uplink_with(address)
    }

    /// Returns whether a workload of this node is on the interface: on the one that is meant, of
    /// several with its name.
    pub(crate) fn has_workload(&self, state: &LinkState) -> bool {
        let name = &state.link.name;
        let meant = self
            .links
            .named(name)
            .is_some_and(|other| other.link == state.link);
        state.role == LinkRole::Workload && meant && self.workloads.on(name).next().is_some()
    }

    /// Returns the endpoint of this node that a prefix leads to: one whose link is up before others,
    /// then the one with the greatest key (V15).
    pub(crate) fn endpoint(&self, cidr: &IpNet) -> Option<&Workload> {
        // Of equals, max_by_key takes the last.
        self.workloads
            .local_with_net(cidr)
            .max_by_key(|(_, workload)| self.links.up(&workload.interface).is_some())
            .map(|(_, workload)| workload)
    }

    /// Returns the node that IPAM says owns exactly this prefix.
    pub(crate) fn block_owner(&self, cidr: &IpNet) -> Option<&NodeName> {
        match self.config.route_source {
            RouteSource::CalicoIpam => self.blocks.owner(cidr),
            RouteSource::WorkloadIps => None,
        }
    }

    /// Returns the first node, by name, that uses exactly this prefix, and how.
    pub(crate) fn user(&self, cidr: &IpNet) -> Option<User> {
        let workload = match self.config.route_source {
            RouteSource::CalicoIpam => {
                let local = self
                    .workloads
                    .with_net(cidr)
                    .any(|(key, _)| *key.node == *self.name);
                local.then_some(&*self.name)
            }
            RouteSource::WorkloadIps => self
                .workloads
                .with_net(cidr)
                .next()
                .map(|(key, _)| key.node.as_str()),
        };
        let tunnel = single(cidr).and_then(|address| self.nodes.tunnel_owner(address));
        match (workload, tunnel) {
            (Some(node), tunnel) if tunnel.as_ref().is_none_or(|(name, _)| node <= &**name) => {
                Some(User {
                    node: self.names.shared(node),
                    workload: true,
                    tunnels: Tunnels::default(),
                })
            }
            (_, Some((node, tunnels))) => Some(User {
                node,
                workload: false,
                tunnels,
            }),
            (_, None) => None,
        }
    }
}

/// The names of nodes, each kept once.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeSet<NodeName>);

impl Names {
    /// Returns the name, to be shared from then on.
    fn get(&mut self, name: &str) -> NodeName {
        if let Some(known) = self.0.get(name) {
            return NodeName::clone(known);
        }
        let new = NodeName::from(name);
        self.0.insert(NodeName::clone(&new));
        new
    }

    /// Returns the name, shared if it is known.
    fn shared(&self, name: &str) -> NodeName {
        self.0
            .get(name)
            .map_or_else(|| name.into(), NodeName::clone)
    }

    fn forget_unused(&mut self) {
        self.0.retain(|name| NodeName::strong_count(name) > 1);
    }
}
