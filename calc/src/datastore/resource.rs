//! Calico's resources as they are written, as far as routes depend on them.
//!
//! Decoding fails only on a value of the wrong type, such as a list where text belongs; unknown
//! fields are ignored, and absent ones are empty, as in Calico. What the text means is not looked
//! at here.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, Visitor},
};

/// What every object has: enough to tell it apart.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Identity {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) metadata: Name,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Name {
    pub(super) name: String,
    pub(super) namespace: String,
}

/// An object of one kind.
#[derive(Debug, Deserialize)]
#[serde(
    default,
    bound = "S: Default + Deserialize<'de>, T: Default + Deserialize<'de>"
)]
pub(super) struct Resource<S, T = IgnoredAny> {
    pub(super) metadata: Metadata,
    pub(super) spec: S,
    pub(super) status: T,
}

impl<S: Default, T: Default> Default for Resource<S, T> {
    fn default() -> Self {
        Self {
            metadata: Metadata::default(),
            spec: S::default(),
            status: T::default(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    pub(super) creation_timestamp: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeSpec {
    pub(super) bgp: Option<NodeBgp>,
    #[serde(rename = "ipv4VXLANTunnelAddr")]
    pub(super) ipv4_vxlan_tunnel_addr: String,
    #[serde(rename = "ipv6VXLANTunnelAddr")]
    pub(super) ipv6_vxlan_tunnel_addr: String,
    #[serde(rename = "vxlanTunnelMACAddr")]
    pub(super) vxlan_tunnel_mac_addr: String,
    #[serde(rename = "vxlanTunnelMACAddrV6")]
    pub(super) vxlan_tunnel_mac_addr_v6: String,
    pub(super) wireguard: NodeWireguard,
    pub(super) addresses: Vec<NodeAddress>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeBgp {
    #[serde(rename = "ipv4Address")]
    pub(super) ipv4_address: String,
    #[serde(rename = "ipv6Address")]
    pub(super) ipv6_address: String,
    #[serde(rename = "ipv4IPIPTunnelAddr")]
    pub(super) ipv4_ipip_tunnel_addr: String,
    #[serde(rename = "asNumber")]
    pub(super) as_number: Option<IgnoredAny>,
    #[serde(rename = "routeReflectorClusterID")]
    pub(super) route_reflector_cluster_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeWireguard {
    #[serde(rename = "interfaceIPv4Address")]
    pub(super) interface_ipv4_address: String,
    #[serde(rename = "interfaceIPv6Address")]
    pub(super) interface_ipv6_address: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeAddress {
    pub(super) address: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeStatus {
    pub(super) wireguard_public_key: String,
    pub(super) wireguard_public_key_v6: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PoolSpec {
    pub(super) cidr: String,
    pub(super) vxlan_mode: String,
    pub(super) ipip_mode: String,
    pub(super) nat_outgoing: bool,
    pub(super) disabled: bool,
    #[serde(rename = "disableBGPExport")]
    pub(super) disable_bgp_export: bool,
    pub(super) block_size: i64,
    pub(super) node_selector: String,
    pub(super) namespace_selector: String,
    pub(super) allowed_uses: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct BlockSpec {
    pub(super) cidr: String,
    pub(super) affinity: String,
    pub(super) allocations: Vec<Option<i64>>,
    pub(super) attributes: Vec<BlockAttributes>,
    pub(super) deleted: Flag,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct BlockAttributes {
    pub(super) secondary: BTreeMap<String, String>,
}

/// A boolean that `crd.projectcalico.org/v1` may hold as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flag(pub(super) bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FlagVisitor;

        impl Visitor<'_> for FlagVisitor {
            type Value = Flag;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true or false")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Flag, E> {
                Ok(Flag(value))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Flag, E> {
                match value {
                    "true" => Ok(Flag(true)),
                    "false" | "" => Ok(Flag(false)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(value), &self)),
                }
            }
        }

        deserializer.deserialize_any(FlagVisitor)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WorkloadSpec {
    pub(super) orchestrator: String,
    pub(super) workload: String,
    pub(super) node: String,
    #[serde(rename = "containerID")]
    pub(super) container_id: String,
    pub(super) pod: String,
    pub(super) endpoint: String,
    pub(super) ip_networks: Vec<String>,
    #[serde(rename = "ipNATs")]
    pub(super) ip_nats: Vec<WorkloadNat>,
    #[serde(rename = "ipv4Gateway")]
    pub(super) ipv4_gateway: String,
    #[serde(rename = "ipv6Gateway")]
    pub(super) ipv6_gateway: String,
    pub(super) interface_name: String,
    pub(super) mac: String,
    pub(super) ports: Vec<WorkloadPort>,
    pub(super) allow_spoofed_source_prefixes: Vec<String>,
    pub(super) qos_controls: WorkloadQos,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WorkloadNat {
    #[serde(rename = "internalIP")]
    pub(super) internal_ip: String,
    #[serde(rename = "externalIP")]
    pub(super) external_ip: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WorkloadPort {
    pub(super) name: String,
    pub(super) protocol: String,
    pub(super) host_port: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WorkloadQos {
    pub(super) ingress_bandwidth: i64,
    pub(super) ingress_packet_rate: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct FelixSpec {
    pub(super) node_selector: String,
    pub(super) route_source: String,
    pub(super) external_nodes_list: Option<Vec<String>>,
    #[serde(rename = "bpfDSROptoutCIDRs")]
    pub(super) bpf_dsr_optout_cidrs: Option<Vec<String>>,
    pub(super) wireguard_enabled: Option<bool>,
    pub(super) wireguard_enabled_v6: Option<bool>,
    pub(super) service_loop_prevention: String,
    pub(super) program_cluster_routes: String,
    pub(super) bpf_redirect_to_peer: String,
    pub(super) route_sync_disabled: Option<bool>,
    pub(super) ipv6_support: Option<bool>,
    pub(super) vxlan_enabled: Option<bool>,
    #[serde(rename = "vxlanVNI")]
    pub(super) vxlan_vni: Option<i64>,
    pub(super) vxlan_port: Option<i64>,
    #[serde(rename = "vxlanMTU")]
    pub(super) vxlan_mtu: Option<i64>,
    #[serde(rename = "vxlanMTUV6")]
    pub(super) vxlan_mtu_v6: Option<i64>,
    pub(super) device_route_source_address: String,
    #[serde(rename = "deviceRouteSourceAddressIPv6")]
    pub(super) device_route_source_address_ipv6: String,
    pub(super) ipv4_normal_route_priority: Option<i64>,
    pub(super) ipv6_normal_route_priority: Option<i64>,
    pub(super) ipv4_elevated_route_priority: Option<i64>,
    pub(super) ipv6_elevated_route_priority: Option<i64>,
    pub(super) live_migration_route_convergence_time: Option<String>,
    pub(super) workload_source_spoofing: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct BgpSpec {
    #[serde(rename = "serviceClusterIPs")]
    pub(super) cluster: Vec<ServicePrefix>,
    #[serde(rename = "serviceExternalIPs")]
    pub(super) external: Vec<ServicePrefix>,
    #[serde(rename = "serviceLoadBalancerIPs")]
    pub(super) load_balancer: Vec<ServicePrefix>,
    #[serde(rename = "localWorkloadPeeringIPV4")]
    pub(super) peering_v4: String,
    #[serde(rename = "localWorkloadPeeringIPV6")]
    pub(super) peering_v6: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct BgpPeerSpec {
    pub(super) node: String,
    pub(super) node_selector: String,
    pub(super) local_workload_selector: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ServicePrefix {
    pub(super) cidr: String,
}

/// The names of its fields also begin with capitals: so Calico itself writes them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct MigrationSpec {
    #[serde(alias = "Source")]
    pub(super) source: MigrationSource,
    #[serde(alias = "Target")]
    pub(super) target: MigrationTarget,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct MigrationSource {
    #[serde(alias = "Workload")]
    pub(super) workload: Option<EndpointName>,
    #[serde(alias = "WorkloadEndpoint")]
    pub(super) workload_endpoint: Option<EndpointName>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct MigrationTarget {
    #[serde(alias = "Selector")]
    pub(super) selector: String,
    #[serde(alias = "WorkloadEndpoint")]
    pub(super) workload_endpoint: Option<EndpointName>,
}

/// One endpoint, or all of a workload.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct EndpointName {
    #[serde(alias = "Hostname")]
    pub(super) hostname: String,
    #[serde(rename = "orchestratorID", alias = "OrchestratorID")]
    pub(super) orchestrator: String,
    #[serde(rename = "workloadID", alias = "WorkloadID")]
    pub(super) workload: String,
    #[serde(rename = "endpointID", alias = "EndpointID")]
    pub(super) endpoint: String,
}
