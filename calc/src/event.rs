//! What `calc`'s core hears: typed resources of the datastore, and interfaces.
//!
//! A datastore turns documents into these; validation by Calico's rules has already happened, so
//! an invalid resource arrives as its removal. Nothing here parses or does I/O.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use ipc_proto::{IfName, LinkEvent, LinkState, Mac};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A change of one input. An update replaces the former value as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A node, by name.
    Node(String, Option<Node>),
    /// An IP pool, by CIDR (without host bits).
    Pool(IpNet, Option<Pool>),
    /// An IPAM block, by CIDR (without host bits).
    Block(IpNet, Option<Block>),
    /// A workload endpoint.
    Workload(WorkloadKey, Option<Workload>),
    /// The settings that routes depend on.
    Config(Config),
    /// The BGP configuration.
    Bgp(Bgp),
    /// A change of an interface.
    Link(LinkEvent),
    /// All interfaces that there are; others are gone.
    Links(Vec<LinkState>),
}

/// A node of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its IPv4 address with the prefix length of its subnet, from its BGP section.
    pub bgp_ipv4: Option<IpNet>,
    /// As `bgp_ipv4`.
    pub bgp_ipv6: Option<IpNet>,
    /// Its addresses of any type, in the order of the document.
    pub addresses: Vec<NodeAddress>,
    /// Its end of the IPIP tunnel.
    pub ipip: Option<IpAddr>,
    /// Its ends of the VXLAN tunnels.
    pub vxlan_v4: Option<IpAddr>,
    /// As `vxlan_v4`.
    pub vxlan_v6: Option<IpAddr>,
    /// The hardware address of its IPv4 VXLAN device, where it is not the default one.
    pub vxlan_mac_v4: Option<Mac>,
    /// As `vxlan_mac_v4`.
    pub vxlan_mac_v6: Option<Mac>,
    /// Its ends of the WireGuard tunnels.
    pub wireguard_v4: Option<IpAddr>,
    /// As `wireguard_v4`.
    pub wireguard_v6: Option<IpAddr>,
}

/// An address of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAddress {
    /// The address.
    pub address: IpAddr,
    /// Its type.
    pub kind: NodeAddressKind,
}

/// The type of a node's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeAddressKind {
    /// `InternalIP`.
    Internal,
    /// `ExternalIP`.
    External,
    /// `CalicoNodeIP` or another.
    Other,
}

/// When a pool's packets are encapsulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TunnelMode {
    /// Never.
    #[default]
    Never,
    /// Always.
    Always,
    /// Between nodes of different subnets.
    CrossSubnet,
}

/// An IP pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// When VXLAN is used.
    pub vxlan: TunnelMode,
    /// When IPIP is used.
    pub ipip: TunnelMode,
    /// Whether packets that leave the pools get the node's address.
    pub nat_outgoing: bool,
    /// Whether it is for load balancers alone.
    pub load_balancer_only: bool,
}

/// An IPAM block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The node, or virtual owner, that it belongs to.
    pub owner: Option<String>,
    /// The node of each address that is in use, by its place in the block.
    pub allocations: BTreeMap<u32, String>,
}

/// Tells workload endpoints apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WorkloadKey {
    /// The node that it is on.
    pub node: String,
    /// The orchestrator, such as `k8s`.
    pub orchestrator: String,
    /// The workload, such as `namespace/pod`.
    pub workload: String,
    /// The endpoint, such as `eth0`.
    pub endpoint: String,
}

/// A workload endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// The host's end of its link.
    pub interface: IfName,
    /// Its prefixes, usually single addresses, without host bits.
    pub nets: Vec<IpNet>,
    /// The hardware address of its own end.
    pub mac: Option<Mac>,
    /// Whether packets may not be redirected straight into it.
    pub skip_ingress_redirect: bool,
    /// Its part in a live migration.
    pub migration: MigrationRole,
    /// Whether BIRD on its node speaks BGP with it.
    pub bgp_peer: bool,
}

/// The part of a workload endpoint in a live migration: for a while two nodes have one address.
///
/// Of several migrations that it is in, the greatest part counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MigrationRole {
    /// It is in none.
    #[default]
    None,
    /// It is in none any more, but was a target a moment ago: others may not have heard of it yet.
    Moved,
    /// It is what moves away: the address is its own until it goes.
    Source,
    /// It is what takes over, and not live yet: the address is another's as long as that one has it.
    Target,
}

/// Where the owners of addresses are learned from (Felix's `routeSource`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RouteSource {
    /// From IPAM blocks, and from the endpoints of this node.
    #[default]
    CalicoIpam,
    /// From the endpoints of all nodes.
    WorkloadIps,
}

/// The source address that routes prefer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceHint {
    /// This one.
    Address(IpAddr),
    /// The lowest of the interface's addresses that others can send to; none while it has none.
    Interface(IfName),
}

/// What becomes of a packet to a service prefix that no service took (Felix's
/// `serviceLoopPrevention`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceLoopPrevention {
    /// It is dropped.
    #[default]
    Drop,
    /// It is rejected.
    Reject,
    /// Nothing is done about it.
    Disabled,
}

/// Settings, by Felix's names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one of Felix's settings"
)]
pub struct Config {
    /// `routeSource`.
    pub route_source: RouteSource,
    /// `externalNodesList`.
    pub external_nodes: Vec<IpNet>,
    /// `bpfDSROptoutCIDRs`.
    pub dsr_optout: Vec<IpNet>,
    /// `wireguardEnabled` or `wireguardEnabledV6`.
    pub wireguard: bool,
    /// `serviceLoopPrevention`.
    pub service_loop_prevention: ServiceLoopPrevention,
    /// `programClusterRoutes` has us program routes of pools without encapsulation, which Calico
    /// leaves to BIRD.
    pub program_no_encap: bool,
    /// `routeSyncDisabled`: the kernel's routes are left to others, whatever they are.
    pub route_sync_disabled: bool,
    /// `ipv6Support`: whether anything of IPv6 is wanted.
    pub ipv6: bool,
    /// `vxlanEnabled` is not false: there are tunnel devices where pools ask for them.
    pub vxlan: bool,
    /// `bpfRedirectToPeer`: packets between workloads of this node go straight, by packet programs.
    pub redirect_to_peer: bool,
    /// `vxlanVNI`.
    pub vxlan_vni: u32,
    /// `vxlanPort`.
    pub vxlan_port: u16,
    /// `vxlanMTU`; without it, the uplink's less the overhead.
    pub vxlan_mtu: Option<u32>,
    /// `vxlanMTUV6`.
    pub vxlan_mtu_v6: Option<u32>,
    /// `deviceRouteSourceAddress`: what packets of this host's own prefer as their source.
    pub source_hint_v4: Option<SourceHint>,
    /// `deviceRouteSourceAddressIPv6`.
    pub source_hint_v6: Option<SourceHint>,
    /// `ipv4NormalRoutePriority`: the metric of IPv4 routes to local workloads.
    pub workload_metric_v4: u32,
    /// `ipv6NormalRoutePriority`.
    pub workload_metric_v6: u32,
    /// `ipv4ElevatedRoutePriority`: the metric of IPv4 routes to a workload that has just moved
    /// here, which wins over the one of routes that still lead to where it was.
    pub elevated_metric_v4: u32,
    /// `ipv6ElevatedRoutePriority`.
    pub elevated_metric_v6: u32,
    /// `liveMigrationRouteConvergenceTime`: how long that metric stays once the migration is over.
    pub migration_convergence: Duration,
}

impl Default for Config {
    /// Felix's defaults.
    fn default() -> Self {
        Self {
            route_source: RouteSource::default(),
            external_nodes: Vec::new(),
            dsr_optout: Vec::new(),
            wireguard: false,
            service_loop_prevention: ServiceLoopPrevention::default(),
            program_no_encap: false,
            route_sync_disabled: false,
            ipv6: true,
            vxlan: true,
            redirect_to_peer: true,
            vxlan_vni: 4096,
            vxlan_port: 4789,
            vxlan_mtu: None,
            vxlan_mtu_v6: None,
            source_hint_v4: None,
            source_hint_v6: None,
            workload_metric_v4: 1024,
            workload_metric_v6: 1024,
            elevated_metric_v4: 512,
            elevated_metric_v6: 512,
            migration_convergence: Duration::from_secs(30),
        }
    }
}

/// What the cluster's BGP configuration says that is not for BIRD alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bgp {
    /// The prefixes of services: cluster IPs, external IPs and load balancer IPs alike, without host
    /// bits.
    pub services: Vec<IpNet>,
    /// By which addresses workloads reach the BIRD of their node.
    pub peering: Peering,
}

/// The addresses of each node towards those of its workloads that speak BGP with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peering {
    /// `localWorkloadPeeringIPV4`.
    pub v4: Option<IpAddr>,
    /// `localWorkloadPeeringIPV6`.
    pub v6: Option<IpAddr>,
}
