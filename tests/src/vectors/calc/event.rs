//! What happens in the vectors of resources, as text, and what the calculator hears of it.

use std::{collections::BTreeMap, net::IpAddr};

use ::calc::event::{
    Block, Event as Input, MigrationRole, Node, NodeAddress, NodeAddressKind, Pool, TunnelMode,
    Workload, WorkloadKey,
};
use ipc_proto::{IfName, Link, LinkEvent, LinkRole, LinkState};
use ipnet::IpNet;
use serde::Deserialize;

use crate::vectors::text;

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Event {
    Node(Box<NodeUpdate>),
    NodeRemove(Name),
    IpPool(PoolUpdate),
    IpPoolRemove(Cidr),
    Block(BlockUpdate),
    BlockRemove(Cidr),
    Wep(WepUpdate),
    WepRemove(WepRemove),
    Link(LinkUpdate),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Name {
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cidr {
    cidr: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NodeUpdate {
    name: String,
    bgp_ipv4_address: String,
    bgp_ipv6_address: String,
    ipip_tunnel_addr: String,
    vxlan_tunnel_addr_v4: String,
    vxlan_tunnel_addr_v6: String,
    wireguard_addr_v4: String,
    wireguard_addr_v6: String,
    addresses: Vec<Address>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Address {
    address: String,
    #[serde(rename = "type")]
    kind: AddressKind,
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum AddressKind {
    #[serde(rename = "InternalIP")]
    Internal,
    #[serde(rename = "ExternalIP")]
    External,
    #[serde(rename = "CalicoNodeIP")]
    Calico,
    Hostname,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PoolUpdate {
    cidr: String,
    ipip_mode: Mode,
    vxlan_mode: Mode,
    masquerade: bool,
    allowed_uses: Vec<Use>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    #[default]
    #[serde(rename = "", alias = "never")]
    Never,
    Always,
    CrossSubnet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Use {
    Workload,
    Tunnel,
    LoadBalancer,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct BlockUpdate {
    cidr: String,
    affinity: String,
    allocations: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct WepUpdate {
    host: String,
    orchestrator_id: String,
    workload_id: String,
    endpoint_id: String,
    interface: Option<String>,
    ipv4_nets: Vec<String>,
    ipv6_nets: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WepRemove {
    host: String,
    orchestrator_id: String,
    workload_id: String,
    endpoint_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkUpdate {
    index: u32,
    name: String,
    up: bool,
    addresses: Vec<String>,
}

/// What a text should be, and the text.
type Wrong<'a> = (&'static str, &'a str);

impl Event {
    /// What the calculator hears.
    pub(super) fn input(&self) -> Result<Input, Wrong<'_>> {
        Ok(match self {
            Self::Node(node) => Input::Node(node.name.clone(), Some(node.node()?)),
            Self::NodeRemove(Name { name }) => Input::Node(name.clone(), None),
            Self::IpPool(pool) => Input::Pool(
                net(&pool.cidr)?,
                Some(Pool {
                    vxlan: pool.vxlan_mode.tunnel(),
                    ipip: pool.ipip_mode.tunnel(),
                    nat_outgoing: pool.masquerade,
                    load_balancer_only: pool.allowed_uses == [Use::LoadBalancer],
                }),
            ),
            Self::IpPoolRemove(Cidr { cidr }) => Input::Pool(net(cidr)?, None),
            Self::Block(block) => Input::Block(net(&block.cidr)?, Some(block.block()?)),
            Self::BlockRemove(Cidr { cidr }) => Input::Block(net(cidr)?, None),
            Self::Wep(wep) => {
                let key = WorkloadKey {
                    node: wep.host.clone(),
                    orchestrator: wep.orchestrator_id.clone(),
                    workload: wep.workload_id.clone(),
                    endpoint: wep.endpoint_id.clone(),
                };
                let nets = wep.ipv4_nets.iter().chain(&wep.ipv6_nets);
                let workload = Workload {
                    interface: if_name(wep.interface.as_deref().unwrap_or("cali0"))?,
                    nets: nets.map(|one| net(one)).collect::<Result<_, _>>()?,
                    mac: None,
                    skip_ingress_redirect: false,
                    bgp_peer: false,
                    migration: MigrationRole::None,
                };
                Input::Workload(key, Some(workload))
            }
            Self::WepRemove(wep) => {
                let key = WorkloadKey {
                    node: wep.host.clone(),
                    orchestrator: wep.orchestrator_id.clone(),
                    workload: wep.workload_id.clone(),
                    endpoint: wep.endpoint_id.clone(),
                };
                Input::Workload(key, None)
            }
            Self::Link(link) => Input::Link(LinkEvent::Set(LinkState {
                link: Link {
                    index: link.index,
                    name: if_name(&link.name)?,
                },
                role: LinkRole::Other,
                up: link.up,
                carrier: link.up,
                mac: None,
                mtu: 1500,
                addresses: link
                    .addresses
                    .iter()
                    .map(|one| text::untruncated(one).ok_or(("a prefix", &**one)))
                    .collect::<Result<_, _>>()?,
            })),
        })
    }
}

impl NodeUpdate {
    fn node(&self) -> Result<Node, Wrong<'_>> {
        // A node may have any text as an address; what is none counts for nothing.
        let addresses = self.addresses.iter().filter_map(|one| {
            Some(NodeAddress {
                address: text::address(&one.address)?,
                kind: match one.kind {
                    AddressKind::Internal => NodeAddressKind::Internal,
                    AddressKind::External => NodeAddressKind::External,
                    AddressKind::Calico | AddressKind::Hostname => NodeAddressKind::Other,
                },
            })
        });
        Ok(Node {
            bgp_ipv4: optional(&self.bgp_ipv4_address, text::untruncated)?,
            bgp_ipv6: optional(&self.bgp_ipv6_address, text::untruncated)?,
            addresses: addresses.collect(),
            ipip: address(&self.ipip_tunnel_addr)?,
            vxlan_v4: address(&self.vxlan_tunnel_addr_v4)?,
            vxlan_v6: address(&self.vxlan_tunnel_addr_v6)?,
            wireguard_v4: address(&self.wireguard_addr_v4)?,
            wireguard_v6: address(&self.wireguard_addr_v6)?,
            ..Node::default()
        })
    }
}

impl BlockUpdate {
    fn block(&self) -> Result<Block, Wrong<'_>> {
        let mut allocations = BTreeMap::new();
        for (ordinal, node) in self.allocations.iter().filter(|(_, node)| !node.is_empty()) {
            let place = ordinal
                .parse()
                .map_err(|_not_a_number| ("a place in a block", &**ordinal))?;
            allocations.insert(place, node.clone());
        }
        let owner = match self.affinity.split_once(':') {
            Some(("host" | "virtual", owner)) => Some(owner.to_owned()),
            None if self.affinity.is_empty() => None,
            _ => return Err(("an affinity", &self.affinity)),
        };
        Ok(Block { owner, allocations })
    }
}

impl Mode {
    fn tunnel(self) -> TunnelMode {
        match self {
            Self::Never => TunnelMode::Never,
            Self::Always => TunnelMode::Always,
            Self::CrossSubnet => TunnelMode::CrossSubnet,
        }
    }
}

fn net(text: &str) -> Result<IpNet, Wrong<'_>> {
    text::net(text).ok_or(("a prefix", text))
}

fn address(text: &str) -> Result<Option<IpAddr>, Wrong<'_>> {
    optional(text, text::address)
}

/// Reads a text unless it is empty.
fn optional<'a, T>(
    text: &'a str,
    read: impl FnOnce(&'a str) -> Option<T>,
) -> Result<Option<T>, Wrong<'a>> {
    if text.is_empty() {
        return Ok(None);
    }
    read(text).map(Some).ok_or(("an address", text))
}

fn if_name(text: &str) -> Result<IfName, Wrong<'_>> {
    text.parse()
        .map_err(|_too_long| ("the name of an interface", text))
}
