//! What consumers of the routes read: plain D-Bus types that any client decodes.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use zbus::Type;

use crate::{BpfRoute, BpfTarget};

/// A BPF route, `(sussu)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct RouteRow {
    /// The destination, with its length: `10.1.2.0/26`.
    pub prefix: String,
    /// The flags of [`ebpf::flags`].
    pub flags: u32,
    /// The address of the node that it is at, or nothing.
    pub next_hop: String,
    /// The name of the interface of this node that it is at, or nothing.
    pub interface: String,
    /// The index of that interface, or 0.
    pub ifindex: u32,
}

impl RouteRow {
    /// Puts a route in D-Bus types.
    #[must_use]
    pub fn new(prefix: IpNet, route: &BpfRoute) -> Self {
        let (next_hop, interface, ifindex) = match &route.target {
            BpfTarget::None => (String::new(), String::new(), 0),
            BpfTarget::NextHop(address) => (address.to_string(), String::new(), 0),
            BpfTarget::Link(link) => (String::new(), link.name.to_string(), link.index),
        };
        Self {
            prefix: prefix.to_string(),
            flags: route.flags.0,
            next_hop,
            interface,
            ifindex,
        }
    }
}

/// Some of all that consumers are told, `(tasa(sussu)s)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct SnapshotPage {
    /// The number of the last signal before it.
    pub seq: u64,
    /// Addresses of this host, ascending.
    pub host_ips: Vec<String>,
    /// Routes, in the order of their prefixes.
    pub routes: Vec<RouteRow>,
    /// What to ask for next; nothing after the last page.
    pub next: String,
}
