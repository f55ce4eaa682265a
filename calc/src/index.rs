//! The resources as they are, with the look-ups that the rest asks for.
//!
//! A look-up tells what the present resources say, whatever came before. Nothing is decided here.

mod blocks;
mod links;
mod names;
mod nodes;
mod pools;
mod workloads;

use std::{mem, net::IpAddr};

use ipc_proto::{LinkRole, LinkState};
use ipnet::IpNet;

pub(crate) use self::{
    blocks::{Blocks, HeldBlock, Owners},
    links::Links,
    names::{Names, NodeId},
    nodes::{Nodes, Vtep},
    pools::Pools,
    workloads::Workloads,
};
use crate::{
    event::{
        Bgp, Block, Config, Event, MigrationRole, Node, RouteSource, SourceHint, Workload,
        WorkloadKey,
    },
    prefix::{Family, Prefix, is_global_unicast, single},
    route::{NodeName, Tunnels},
};

/// The table for routes to workloads of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkloadTable {
    /// The main table.
    #[default]
    Main,
    /// The helper's second table: a VRF's, whose device leads there, or another, to which a rule leads.
    Second {
        /// The priority of that rule, in each family; without one, none is made.
        rule: Option<u32>,
    },
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Index {
    /// This node.
    pub(crate) name: NodeName,
    pub(crate) own: NodeId,
    pub(crate) names: Names,
    pub(crate) nodes: Nodes,
    pub(crate) pools: Pools,
    pub(crate) blocks: Blocks,
    pub(crate) workloads: Workloads,
    pub(crate) links: Links,
    pub(crate) config: Config,
    pub(crate) bgp: Bgp,
    pub(crate) workload_table: WorkloadTable,
}

/// Who uses a prefix: a workload, or else the ends of tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) node: NodeId,
    pub(crate) workload: bool,
    /// Whether it waits for another node to give the prefix up.
    pub(crate) waits: bool,
    /// Which tunnels, where it is not a workload.
    pub(crate) tunnels: Tunnels,
}

/// Who has an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder<'a> {
    /// A node, as a host or as an end of a tunnel.
    Node(NodeName),
    Workload(&'a WorkloadKey),
    /// Whoever IPAM has given it to on that node, whose block is another's or nobody's.
    Ipam(NodeName),
    /// Services, by this prefix of theirs.
    Service(IpNet),
}

impl Index {
    pub(crate) fn new(node: String) -> Self {
        let mut names = Names::default();
        let own = names.intern(&node);
        Self {
            name: names.name(own),
            own,
            names,
            nodes: Nodes::default(),
            pools: Pools::default(),
            blocks: Blocks::default(),
            workloads: Workloads::new(node),
            links: Links::default(),
            config: Config::default(),
            bgp: Bgp::default(),
            workload_table: WorkloadTable::default(),
        }
    }

    /// Returns whether the event tells what is known already.
    pub(crate) fn holds(&self, event: &Event) -> bool {
        match event {
            Event::Node(name, node) => self.nodes.get(name) == node.as_ref(),
            Event::Pool(cidr, pool) => self.pools.get(cidr) == pool.as_ref(),
            Event::Workload(key, workload) => self.workloads.get(key) == workload.as_ref(),
            Event::Config(config) => self.config == *config,
            Event::Bgp(bgp) => self.bgp == *bgp,
            Event::Link(event) => self.links.holds(event),
            // These are compared one by one.
            Event::Block(..) | Event::Links(_) => false,
        }
    }

    /// Takes over what the event says.
    pub(crate) fn apply(&mut self, event: Event) {
        match event {
            Event::Node(name, node) => {
                let id = self.names.intern(&name);
                self.nodes.set(id, &self.names.name(id), node);
            }
            Event::Pool(cidr, pool) => self.pools.set(cidr, pool),
            Event::Block(cidr, block) => {
                let block = block.map(|block| self.held(&block));
                self.set_blocks(vec![(cidr, block)]);
            }
            Event::Workload(key, workload) => {
                self.names.intern(&key.node);
                self.workloads.set(key, workload);
            }
            Event::Config(config) => self.config = config,
            Event::Bgp(bgp) => self.bgp = bgp,
            Event::Link(event) => self.links.set(event),
            Event::Links(states) => {
                for event in self.links.replacements(states) {
                    self.links.set(event);
                }
            }
        }
    }

    /// Returns what is said of a block, as it is kept.
    pub(crate) fn held(&mut self, block: &Block) -> HeldBlock {
        HeldBlock::new(block, &mut self.names)
    }

    /// Leaves those blocks of which something else is known; of several that are said of one, the last holds.
    /// They are put in order.
    pub(crate) fn retain_news(&self, blocks: &mut Vec<(IpNet, Option<HeldBlock>)>) {
        blocks.sort_by_key(|(cidr, _)| Prefix(*cidr));
        blocks.dedup_by(|later, former| {
            let is_same = later.0 == former.0;
            if is_same {
                mem::swap(later, former);
            }
            is_same
        });
        self.blocks.retain_news(blocks);
    }

    /// Takes over what is said of blocks, each of them once and in order.
    pub(crate) fn set_blocks(&mut self, blocks: Vec<(IpNet, Option<HeldBlock>)>) {
        self.blocks.set_all(blocks);
    }

    /// Takes no more room than it must, where there may be many.
    pub(crate) fn pack(&mut self) {
        self.blocks.pack();
        self.workloads.pack();
    }

    /// Returns whether anything of the family is wanted.
    pub(crate) fn wants(&self, family: Family) -> bool {
        match family {
            Family::V4 => true,
            Family::V6 => self.config.ipv6,
        }
    }

    /// Returns whether the family has a tunnel: a pool uses one, and nobody forbids it.
    pub(crate) fn tunnels(&self, family: Family) -> bool {
        self.config.vxlan && self.wants(family) && self.pools.use_vxlan(family)
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

    /// Returns whether a workload with which BIRD speaks BGP is on the interface.
    pub(crate) fn is_bgp_peer(&self, state: &LinkState) -> bool {
        let mut workloads = self.workloads.on(&state.link.name);
        self.has_workload(state) && workloads.any(|(_, workload)| workload.bgp_peer)
    }

    /// Returns the interfaces of workloads of this node with which BIRD speaks BGP.
    pub(crate) fn bgp_peers(&self) -> impl Iterator<Item = &LinkState> {
        let peers = self
            .workloads
            .local()
            .filter(|(_, workload)| workload.bgp_peer);
        peers.filter_map(|(_, workload)| self.links.named(&workload.interface))
    }

    /// Returns the address of this host towards workloads with which BIRD speaks BGP, as it is configured.
    pub(crate) fn peering(&self, family: Family) -> Option<IpAddr> {
        let address = match family {
            Family::V4 => self.bgp.peering.v4,
            Family::V6 => self.bgp.peering.v6,
        };
        address.filter(|_| self.wants(family))
    }

    /// Returns who has an address, as far as the resources tell: what IPAM has given away within a node's own
    /// block is known by the workload alone.
    pub(crate) fn holder(&self, address: IpAddr) -> Option<Holder<'_>> {
        let host = self.nodes.host_owner(address).cloned();
        let tunnel = || Some(self.nodes.tunnel_owner(address)?.0);
        if let Some(node) = host.or_else(tunnel) {
            return Some(Holder::Node(node));
        }
        let net = IpNet::from(address);
        if let Some((key, _)) = self.workloads.with_net(&net).next() {
            return Some(Holder::Workload(key));
        }
        if let Some(node) = self.blocks.owner(&net) {
            return Some(Holder::Ipam(self.names.name(node)));
        }
        let mut services = self.bgp.services.iter();
        let service = services.find(|service| service.contains(&address))?;
        Some(Holder::Service(*service))
    }

    /// Forgets the names of nodes that neither a resource nor a route has, if there may be many.
    pub(crate) fn forget_names(&mut self, leads_to: impl Fn(NodeId) -> bool) {
        if !self.names.are_many() {
            return;
        }
        let nodes = self.nodes.iter().map(|(name, _)| &**name);
        let workloads = self.workloads.iter().map(|(key, _)| key.node.as_str());
        let mut used: Vec<NodeId> = nodes
            .chain(workloads)
            .filter_map(|name| self.names.find(name))
            .collect();
        used.push(self.own);
        used.extend(self.blocks.named());
        used.extend(self.names.all().filter(|id| leads_to(*id)));
        self.names.keep(used);
    }

    /// Returns the endpoint of this node that a prefix leads to: one that need not wait for another
    /// node before others, one whose link is up, one that has a carrier, then the one with the
    /// greatest key (V15).
    pub(crate) fn endpoint(&self, cidr: &IpNet) -> Option<&Workload> {
        // Of equals, max_by_key takes the last.
        self.workloads
            .local_with_net(cidr)
            .max_by_key(|(_, workload)| {
                let live = workload.migration != MigrationRole::Target;
                let link = self.links.up(&workload.interface);
                (live, link.is_some(), link.is_some_and(|link| link.carrier))
            })
            .map(|(_, workload)| workload)
    }

    /// Returns the source address that routes of a family prefer.
    pub(crate) fn source(&self, family: Family) -> Option<IpAddr> {
        match self.source_hint(family)? {
            SourceHint::Address(address) => Some(*address),
            SourceHint::Interface(name) => {
                let addresses = self.links.named(name)?.addresses.iter();
                addresses
                    .map(IpNet::addr)
                    .filter(|own| Family::of(*own) == family && is_global_unicast(*own))
                    .min()
            }
        }
    }

    /// Returns where that address is to be taken from.
    pub(crate) fn source_hint(&self, family: Family) -> Option<&SourceHint> {
        match family {
            Family::V4 => self.config.source_hint_v4.as_ref(),
            Family::V6 => self.config.source_hint_v6.as_ref(),
        }
    }

    /// Starts to look at whom IPAM says owns prefixes, which come in order; nobody where that is not asked.
    pub(crate) fn block_owners(&self) -> Option<Owners<'_>> {
        match self.config.route_source {
            RouteSource::CalicoIpam => Some(self.blocks.owners()),
            RouteSource::WorkloadIps => None,
        }
    }

    /// Returns who uses exactly this prefix: the first node by name, but in a live migration the one
    /// that the workload moves away from.
    pub(crate) fn user(&self, cidr: &IpNet) -> Option<User> {
        let workload = self.workload_user(cidr);
        let tunnel = single(cidr)
            .and_then(|address| self.nodes.tunnel_owner(address))
            .and_then(|(name, tunnels)| Some((self.names.find(&name)?, name, tunnels)));
        match (workload, tunnel) {
            (Some((node, role)), tunnel)
                if tunnel.as_ref().is_none_or(|(_, name, _)| *node <= **name) =>
            {
                Some(User {
                    node: self.names.find(node)?,
                    workload: true,
                    waits: role == MigrationRole::Target,
                    tunnels: Tunnels::default(),
                })
            }
            (_, Some((node, _, tunnels))) => Some(User {
                node,
                workload: false,
                waits: false,
                tunnels,
            }),
            (_, None) => None,
        }
    }

    fn workload_user(&self, cidr: &IpNet) -> Option<(&str, MigrationRole)> {
        let all = self.workloads.with_net(cidr);
        let counted = all.filter(|(key, _)| match self.config.route_source {
            RouteSource::CalicoIpam => *key.node == *self.name,
            RouteSource::WorkloadIps => true,
        });
        // Of equals, min_by_key takes the first.
        let user = counted.min_by_key(|(_, workload)| match workload.migration {
            MigrationRole::Source => 0,
            MigrationRole::None | MigrationRole::Moved => 1,
            MigrationRole::Target => 2,
        });
        user.map(|(key, workload)| (key.node.as_str(), workload.migration))
    }
}
