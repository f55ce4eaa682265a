//! What happens in the vectors of BPF route maps, as text.

use serde::Deserialize;

use crate::vectors::route::RouteUpdate;

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Event {
    IfaceState(IfaceState),
    IfaceAddrs(IfaceAddrs),
    RouteUpdate(Box<RouteUpdate>),
    RouteRemove(RouteRemove),
    WepUpdate(WepUpdate),
    WepRemove(WepRemove),
    BgpConfig(BgpConfig),
    MapFault(MapFault),
    MapSet(MapSet),
    MapDel(MapDel),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IfaceState {
    pub(super) name: String,
    #[serde(default)]
    pub(super) index: u32,
    pub(super) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    Up,
    Down,
    NotPresent,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IfaceAddrs {
    pub(super) name: String,
    /// Absent where the interface is gone.
    #[serde(default)]
    pub(super) addrs: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RouteRemove {
    pub(super) dst: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WepUpdate {
    pub(super) id: WepId,
    pub(super) name: String,
    #[serde(default)]
    pub(super) ipv4_nets: Vec<String>,
    #[serde(default)]
    pub(super) ipv6_nets: Vec<String>,
    #[serde(default)]
    pub(super) skip_redir_ingress: bool,
    /// No entry tells of it.
    #[serde(default, rename = "skip_redir_egress")]
    _skip_redir_egress: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WepRemove {
    pub(super) id: WepId,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct WepId {
    #[serde(rename = "orchestrator_id")]
    pub(super) orchestrator: String,
    #[serde(rename = "workload_id")]
    pub(super) workload: String,
    #[serde(rename = "endpoint_id")]
    pub(super) endpoint: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct BgpConfig {
    #[serde(rename = "service_cluster_cidrs")]
    pub(super) cluster: Vec<String>,
    #[serde(rename = "service_external_cidrs")]
    pub(super) external: Vec<String>,
    #[serde(rename = "service_loadbalancer_cidrs")]
    pub(super) load_balancer: Vec<String>,
}

/// Which writes fail in the apply of the step.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct MapFault {
    pub(super) all_updates: bool,
    pub(super) all_deletes: bool,
    pub(super) update_keys: Vec<String>,
    pub(super) delete_keys: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MapSet {
    pub(super) key: String,
    pub(super) value: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MapDel {
    pub(super) key: String,
}
