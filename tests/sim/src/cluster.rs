//! The cluster that scripts are about: a few nodes, pools, blocks and workloads, each in variants.
//!
//! A document is a kind, a number and a variant, so that a script can be written down.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use calc::event::{
    Bgp, Block, Config, Event, MigrationRole, Node, NodeAddress, NodeAddressKind, Peering, Pool,
    RouteSource, SourceHint, TunnelMode, Workload, WorkloadKey,
};
use ipc_proto::{IfName, Mac};
use ipnet::IpNet;
use privhelper::policy::{Policy, Uplinks};

/// The interface that leads to the other nodes.
pub(super) const UPLINK: &str = "eth0";
/// How many there are.
pub(super) const NODES: u8 = 4;
/// IPv4 and IPv6, and one for load balancers.
pub(super) const POOLS: u8 = 3;
/// Four of each family.
pub(super) const BLOCKS: u8 = 8;
/// Four of this node, and one of each of two others.
pub(super) const WORKLOADS: u8 = 6;
/// Interfaces for workloads of this node.
pub(super) const CALIS: u8 = 4;
/// The bit of a workload's variant by which BIRD speaks BGP with it.
pub(super) const PEER: u16 = 1 << 9;

/// A document of the datastore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doc {
    /// A node; 0 is this one.
    Node(u8),
    /// A pool.
    Pool(u8),
    /// A block.
    Block(u8),
    /// A workload.
    Workload(u8),
    /// The settings.
    Config,
    /// The service prefixes, and the addresses towards BGP peers among the workloads.
    Services,
}

pub(super) fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    Ipv4Addr::new(a, b, c, d).into()
}

pub(super) fn v6(subnet: u8, host: u8) -> IpAddr {
    Ipv6Addr::new(0xfd00, 0x65, 0, subnet.into(), 0, 0, 0, host.into()).into()
}

pub(super) fn net(address: IpAddr, len: u8) -> IpNet {
    IpNet::new(address, len).unwrap()
}

/// The IPv6 address of a node.
fn node_v6(subnet: u8, host: u8) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, subnet.into(), 0, 0, 0, 0, host.into()).into()
}

/// This node's own addresses.
pub(super) fn own_addresses() -> [IpNet; 2] {
    [net(v4(192, 0, 2, 1), 24), net(node_v6(0, 1), 64)]
}

pub(super) fn node_name(n: u8) -> String {
    format!("node-{}", n + 1)
}

pub(super) fn name(text: &str) -> IfName {
    text.parse().unwrap()
}

/// The interface of a workload of this node.
pub(super) fn cali(n: u8) -> IfName {
    name(&format!("cali{}", n % CALIS))
}

/// What the administrator allows: Felix's defaults, or less than the cluster needs.
pub(super) fn policy(narrow: bool) -> Policy {
    let allow = [
        net(v4(10, 65, 0, 0), 23),
        net(v4(192, 0, 2, 0), 24),
        net(v6(0, 0), 32),
        net(node_v6(0, 0), 32),
    ];
    Policy {
        workload_prefixes: vec!["cali".to_owned()],
        tunnel_v4: name("vxlan.calico"),
        tunnel_v6: name("vxlan-v6.calico"),
        uplinks: Uplinks::Auto,
        excluded: Vec::new(),
        device_protocol: 3,
        safe_protocol: 80,
        former_protocols: Vec::new(),
        second_table: None,
        remove_external_routes: true,
        allow: if narrow {
            allow.iter().map(IpNet::trunc).collect()
        } else {
            Vec::new()
        },
    }
}

/// The variant of a document in a cluster where all is well.
pub(super) fn usual(doc: Doc) -> u16 {
    match doc {
        Doc::Node(_) | Doc::Config | Doc::Services => 0,
        Doc::Pool(2) => 0b1000,
        Doc::Pool(_) => 0b0101,
        Doc::Block(k) => u16::from(k % 4 + 1),
        Doc::Workload(slot) => {
            let peer = if slot == 3 { PEER } else { 0 };
            (u16::from(slot % 4) * 0b101) | peer
        }
    }
}

/// Returns what is told of a document, present or not.
pub(super) fn event(doc: Doc, variant: Option<u16>) -> Event {
    match doc {
        Doc::Node(n) => Event::Node(node_name(n), variant.map(|variant| node(n, variant))),
        Doc::Pool(p) => Event::Pool(pool_cidr(p), variant.map(pool)),
        Doc::Block(k) => Event::Block(block_cidr(k), variant.map(block)),
        Doc::Workload(slot) => Event::Workload(
            workload_key(slot),
            variant.map(|variant| workload(slot, variant)),
        ),
        Doc::Config => Event::Config(variant.map(config).unwrap_or_default()),
        Doc::Services => Event::Bgp(variant.map(services).unwrap_or_default()),
    }
}

fn has(variant: u16, bit: u8) -> bool {
    variant >> bit & 1 == 1
}

fn node(n: u8, variant: u16) -> Node {
    let host = n + 1 + 10 * u8::from(has(variant, 4));
    let (ipv4, ipv6) = if n < 2 {
        (net(v4(192, 0, 2, host), 24), net(node_v6(0, host), 64))
    } else {
        (net(v4(198, 51, 100, host), 24), net(node_v6(1, host), 64))
    };
    let end = 30 - u8::from(has(variant, 2));
    let mac = has(variant, 1).then_some(Mac([2, 0x65, 0, 0, 0, n]));
    let address = NodeAddress {
        address: ipv4.addr(),
        kind: NodeAddressKind::Internal,
    };
    Node {
        bgp_ipv4: (!has(variant, 5)).then_some(ipv4),
        bgp_ipv6: (!has(variant, 3)).then_some(ipv6),
        addresses: vec![address],
        vxlan_v4: (!has(variant, 0)).then_some(v4(10, 65, n, end)),
        vxlan_v6: (!has(variant, 3)).then_some(v6(n, end)),
        vxlan_mac_v4: mac,
        vxlan_mac_v6: mac,
        ..Node::default()
    }
}

fn pool_cidr(p: u8) -> IpNet {
    match p {
        0 => net(v4(10, 65, 0, 0), 16),
        1 => net(v6(0, 0), 48),
        _ => net(v4(10, 66, 0, 0), 24),
    }
}

fn pool(variant: u16) -> Pool {
    let (vxlan, ipip) = match variant & 3 {
        0 => (TunnelMode::Never, TunnelMode::Never),
        1 => (TunnelMode::Always, TunnelMode::Never),
        2 => (TunnelMode::CrossSubnet, TunnelMode::Never),
        _ => (TunnelMode::Never, TunnelMode::Always),
    };
    Pool {
        vxlan,
        ipip,
        nat_outgoing: has(variant, 2),
        load_balancer_only: has(variant, 3),
    }
}

pub(super) fn block_cidr(k: u8) -> IpNet {
    if k < 4 {
        net(v4(10, 65, k, 16), 28)
    } else {
        net(v6(k - 4, 16), 124)
    }
}

fn block(variant: u16) -> Block {
    let owner = u8::try_from(variant & 7)
        .ok()
        .filter(|owner| (1..=NODES).contains(owner))
        .map(|owner| node_name(owner - 1));
    let mut allocations = BTreeMap::new();
    for (bit, ordinal, node) in [(3, 2, 1), (4, 3, 2), (5, 2, 0)] {
        if has(variant, bit) {
            allocations.insert(ordinal, node_name(node));
        }
    }
    Block { owner, allocations }
}

/// Returns whether a workload is of this node.
pub(super) fn is_own(slot: u8) -> bool {
    slot < 4
}

fn workload_key(slot: u8) -> WorkloadKey {
    let node = if is_own(slot) { 0 } else { slot - 3 };
    WorkloadKey {
        node: node_name(node),
        orchestrator: "k8s".to_owned(),
        workload: format!("default/pod-{slot}"),
        endpoint: "eth0".to_owned(),
    }
}

/// The places in which workloads can be; each is an address of each family.
pub(super) fn place(place: u16) -> [IpAddr; 2] {
    let block = u8::try_from(place & 3).unwrap_or(0);
    let host = 18 + u8::try_from(place >> 2 & 1).unwrap_or(0);
    [v4(10, 65, block, host), v6(block, host)]
}

fn workload(slot: u8, variant: u16) -> Workload {
    let mut nets: Vec<IpNet> = place(variant >> 2 & 7).map(IpNet::from).to_vec();
    if has(variant, 7) {
        nets.push(net(v4(10, 65, slot, 24), 30));
    }
    if has(variant, 8) {
        nets.remove(1);
    }
    Workload {
        interface: cali(u8::try_from(variant & 3).unwrap_or(0)),
        nets,
        mac: (!has(variant, 5)).then_some(Mac([2, 0, 0, 0, 1, slot])),
        skip_ingress_redirect: has(variant, 6),
        bgp_peer: variant & PEER != 0,
        migration: MigrationRole::None,
    }
}

fn config(variant: u16) -> Config {
    let mut config = Config {
        program_no_encap: has(variant, 1),
        wireguard: has(variant, 4),
        vxlan_mtu: has(variant, 5).then_some(1400),
        source_hint_v4: has(variant, 6).then_some(SourceHint::Address(v4(192, 0, 2, 1))),
        vxlan_port: 4789 + u16::from(has(variant, 7)),
        ..Config::default()
    };
    if has(variant, 0) {
        config.route_source = RouteSource::WorkloadIps;
    }
    if has(variant, 2) {
        config.dsr_optout.push(block_cidr(0));
    }
    if has(variant, 3) {
        config.external_nodes.push(net(v4(203, 0, 113, 0), 24));
    }
    if has(variant, 8) {
        // One that there is only on the links of BGP peers.
        config.source_hint_v4 = Some(SourceHint::Address(v4(172, 31, 0, 1)));
    }
    config
}

fn services(variant: u16) -> Bgp {
    let all = [
        net(v4(10, 96, 0, 0), 16),
        net(v4(10, 66, 0, 0), 24),
        // Against the helper's policy.
        net(v4(169, 254, 7, 0), 24),
        net(v6(96, 0), 112),
    ];
    let chosen = (0..).zip(all).filter(|(bit, _)| has(variant, *bit));
    Bgp {
        services: chosen.map(|(_, prefix)| prefix).collect(),
        peering: peering(variant),
    }
}

/// The addresses towards BGP peers among the workloads; of each family the last one is a pod's or
/// another node's where there is such.
fn peering(variant: u16) -> Peering {
    let nodes = has(variant, 6);
    Peering {
        v4: match variant >> 4 & 3 {
            0 => Some(v4(169, 254, 1, 1)),
            1 => None,
            2 => Some(v4(172, 31, 0, 1)),
            _ if nodes => Some(v4(192, 0, 2, 2)),
            _ => Some(v4(10, 65, 0, 18)),
        },
        v6: match variant >> 7 & 3 {
            0 => Some(v6(200, 1)),
            1 => None,
            2 => Some(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into()),
            _ if nodes => Some(node_v6(0, 2)),
            _ => Some(v6(0, 18)),
        },
    }
}

/// Returns the interfaces of the workloads of this node with which BIRD speaks BGP.
pub(super) fn peers(documents: &BTreeMap<Doc, u16>) -> BTreeSet<IfName> {
    let peers = documents.iter().filter_map(|(doc, variant)| match doc {
        Doc::Workload(slot) if is_own(*slot) && variant & PEER != 0 => {
            Some(workload(*slot, *variant).interface)
        }
        Doc::Workload(_)
        | Doc::Node(_)
        | Doc::Pool(_)
        | Doc::Block(_)
        | Doc::Config
        | Doc::Services => None,
    });
    peers.collect()
}

/// Every address that a packet may be sent to.
pub(super) fn probes() -> Vec<IpAddr> {
    let places = (0..8).flat_map(place);
    let nodes = (1..=NODES).flat_map(|n| [v4(192, 0, 2, n), v4(198, 51, 100, n)]);
    places
        .chain(nodes)
        .chain([v4(203, 0, 113, 5), v4(10, 96, 0, 9), v4(10, 65, 1, 25)])
        .collect()
}
