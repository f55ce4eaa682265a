//! A cluster as Calico's IPAM makes it: a pool, nodes, and a block of addresses for each route; as
//! decoded resources and as documents.

use std::{collections::BTreeMap, fmt::Write, fs, net::Ipv4Addr, path::Path};

use calc::{
    Calculator,
    event::{Block, Event, Node, Pool},
};
use ipc_proto::{BpfRoute, Op};
use ipnet::{IpNet, Ipv4Net};

/// The size of a block, as a prefix length: the default of Calico.
const BLOCK: u8 = 26;
/// The prefix length of the nodes' subnet.
const SUBNET: u8 = 12;
/// How many documents are in a file.
const FILE: usize = 1000;
const POOL: &str = "10.0.0.0/8";

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub(super) struct Cluster {
    pub(super) blocks: u32,
}

impl Cluster {
    /// How many nodes own the blocks.
    pub(super) const NODES: u32 = 1000;

    pub(super) fn node(number: u32) -> String {
        format!("node-{number}")
    }

    /// The address of a node.
    pub(super) fn address(number: u32) -> Ipv4Addr {
        Ipv4Addr::from((172 << 24) + (16 << 16) + 1 + number)
    }

    /// The address of a node with that of its subnet.
    pub(super) fn interface(number: u32) -> Ipv4Net {
        Ipv4Net::new_assert(Self::address(number), SUBNET)
    }

    /// Returns block number `number` of the pool.
    pub(super) fn block(number: u32) -> IpNet {
        let first = (10 << 24) + (number << (32 - u32::from(BLOCK)));
        Ipv4Net::new_assert(Ipv4Addr::from(first), BLOCK).into()
    }

    /// Returns the block when it belongs to that node.
    pub(super) fn owned(number: u32, node: u32) -> Event {
        let block = Block {
            owner: Some(Self::node(node % Self::NODES)),
            ..Block::default()
        };
        Event::Block(Self::block(number), Some(block))
    }

    /// Returns the move of one block to another node than it begins with; each of the first
    /// `self.blocks` moves is another block's, all over the pool.
    pub(super) fn moved(self, number: u32) -> Event {
        let block = number * 17 % self.blocks;
        Self::owned(block, block + 2)
    }

    /// Returns all resources, decoded.
    pub(super) fn events(self) -> Vec<Event> {
        let pool = Event::Pool(POOL.parse().unwrap(), Some(Pool::default()));
        let nodes = (0..Self::NODES).map(|number| {
            let node = Node {
                bgp_ipv4: Some(Self::interface(number).into()),
                ..Node::default()
            };
            Event::Node(Self::node(number), Some(node))
        });
        let blocks = (0..self.blocks).map(|number| Self::owned(number, number + 1));
        [pool].into_iter().chain(nodes).chain(blocks).collect()
    }

    /// Returns what events ask of the map of the first node.
    pub(super) fn wanted(events: &[Event]) -> BTreeMap<IpNet, BpfRoute> {
        let mut calculator = Calculator::new(Self::node(0));
        for event in events {
            calculator.handle(event.clone());
        }
        let mut wanted = BTreeMap::new();
        for op in calculator.resolve() {
            if let Op::BpfRoute(prefix, Some(route)) = op {
                wanted.insert(prefix, route);
            }
        }
        wanted
    }

    /// Writes all resources as documents; if asked, packets travel in VXLAN between nodes, so that
    /// each block has a route in the kernel as well.
    pub(super) fn write(self, directory: &Path, vxlan: bool) {
        let mode = if vxlan { "Always" } else { "Never" };
        let pool = document(
            "IPPool",
            "pool",
            &format!("cidr: {POOL}, vxlanMode: {mode}"),
        );
        let nodes = (0..Self::NODES).map(|number| {
            // The first address of the first block of this node.
            let IpNet::V4(block) = Self::block((number + Self::NODES - 1) % Self::NODES) else {
                panic!("blocks are IPv4")
            };
            let tunnel = if vxlan {
                format!(", ipv4VXLANTunnelAddr: {}", block.addr())
            } else {
                String::new()
            };
            let address = Self::interface(number);
            let spec = format!("bgp: {{ipv4Address: {address}}}{tunnel}");
            document("Node", &Self::node(number), &spec)
        });
        let blocks = (0..self.blocks).map(|number| Self::block_document(number, number + 1));
        let all: Vec<String> = [pool].into_iter().chain(nodes).chain(blocks).collect();
        for (number, file) in all.chunks(FILE).enumerate() {
            fs::write(directory.join(format!("{number}.yaml")), file.concat()).unwrap();
        }
    }

    /// Returns the document of a block that belongs to a node.
    pub(super) fn block_document(number: u32, node: u32) -> String {
        let owner = Self::node(node % Self::NODES);
        let spec = format!("cidr: {}, affinity: 'host:{owner}'", Self::block(number));
        document("IPAMBlock", &format!("block-{number}"), &spec)
    }
}

fn document(kind: &str, name: &str, spec: &str) -> String {
    let mut text = String::new();
    writeln!(
        text,
        "---\n{{apiVersion: projectcalico.org/v3, kind: {kind}, metadata: {{name: {name}}}, spec: {{{spec}}}}}"
    )
    .unwrap();
    text
}
