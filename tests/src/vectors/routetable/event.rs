//! What happens in the vectors of kernel routes, as text.

use std::{fmt, net::IpAddr};

use ipc_proto::{Mac, RouteKey};
use ipnet::IpNet;
use serde::{Deserialize, de::IgnoredAny};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Config {
    pub(super) ip_version: u8,
    pub(super) workload_iface_prefixes: Vec<String>,
    pub(super) device_route_protocol: u8,
    pub(super) remove_external_routes: bool,
    /// Of a kind of route that Cairn does not make.
    #[serde(default, rename = "program_ipip_cluster_routes")]
    _ipip: IgnoredAny,
    pub(super) vxlan_iface: String,
    pub(super) cleanup_grace_period_s: u64,
    #[serde(deserialize_with = "address")]
    pub(super) device_route_source_address: Option<IpAddr>,
    pub(super) static_arp_entries: bool,
    pub(super) conntrack_cleanup: bool,
    pub(super) links: Vec<NewLink>,
}

impl Config {
    /// Returns the metric that the kernel gives to a route that asks for this one.
    pub(super) fn metric(&self, priority: u32) -> u32 {
        match (self.ip_version, priority) {
            (6, 0) => RouteKey::IPV6_DEFAULT_METRIC,
            (_, priority) => priority,
        }
    }
}

/// An interface to be made.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewLink {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) kind: LinkKind,
    pub(super) up: bool,
    #[serde(default)]
    pub(super) addrs: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LinkKind {
    Veth,
    Vxlan,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Event {
    SetRoutes(SetRoutes),
    RouteUpdate(OneRoute),
    RouteRemove(OneRoute),
    QueueResync(Empty),
    QueueResyncIface(Name),
    AdvanceTime(AdvanceTime),
    LinkUp(LinkChange),
    LinkDown(LinkChange),
    LinkDel(LinkChange),
    LinkAdd(LinkAdd),
    KernelRouteAdd(KernelRoute),
    KernelRouteDel(KernelRoute),
    Restart(Empty),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Empty {}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SetRoutes {
    pub(super) class: Class,
    pub(super) iface: String,
    pub(super) targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OneRoute {
    pub(super) class: Class,
    pub(super) iface: String,
    pub(super) target: Target,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Name {
    pub(super) name: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdvanceTime {
    pub(super) seconds: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkChange {
    pub(super) name: String,
    /// Whether the recorded program was told. Cairn always is.
    pub(super) notify: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkAdd {
    pub(super) link: NewLink,
    pub(super) notify: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KernelRoute {
    pub(super) route: Route,
}

/// What asks for routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Class {
    LocalWorkload,
    BpfSpecial,
    VxlanSameSubnet,
    VxlanTunnel,
    NoEncap,
    BlackholeVxlan,
    BlackholeIpip,
    BlackholeNoEncap,
}

/// A route that is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Target {
    pub(super) cidr: IpNet,
    pub(super) priority: u32,
    pub(super) tos: u8,
    #[serde(rename = "type")]
    pub(super) kind: TargetKind,
    pub(super) gw: Option<IpAddr>,
    pub(super) src: Option<IpAddr>,
    #[serde(deserialize_with = "mac")]
    pub(super) mac: Option<Mac>,
    /// The number that the route shall have, 0 for that of the configuration.
    pub(super) protocol: u8,
    pub(super) mtu: u32,
    pub(super) multipath: Vec<Way>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TargetKind {
    #[default]
    #[serde(rename = "")]
    Workload,
    LocalUnicast,
    GlobalUnicast,
    Vxlan,
    Noencap,
    Onlink,
    Blackhole,
    Prohibit,
    Throw,
    Unreachable,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Way {
    pub(super) gw: IpAddr,
    pub(super) iface: String,
}

/// A route of the kernel's.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Route {
    pub(super) dst: IpNet,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) scope: u8,
    pub(super) proto: u8,
    #[serde(default)]
    pub(super) dev: String,
    #[serde(default)]
    pub(super) gw: Option<IpAddr>,
    pub(super) priority: u32,
    pub(super) tos: u8,
    #[serde(default)]
    pub(super) onlink: bool,
    #[serde(default)]
    pub(super) src: Option<IpAddr>,
    #[serde(default)]
    pub(super) mtu: u32,
    /// As `ip` writes them.
    #[serde(default)]
    pub(super) nexthops: Vec<String>,
}

impl fmt::Display for Route {
    /// Writes it as `ip` takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            dst, kind, proto, ..
        } = self;
        write!(f, "{kind} {dst} proto {proto} scope {}", self.scope)?;
        if !self.dev.is_empty() {
            write!(f, " dev {}", self.dev)?;
        }
        if let Some(gw) = self.gw {
            write!(f, " via {gw}")?;
        }
        for hop in &self.nexthops {
            write!(f, " nexthop via {hop}")?;
        }
        if self.onlink {
            f.write_str(" onlink")?;
        }
        if let Some(src) = self.src {
            write!(f, " src {src}")?;
        }
        for (what, number) in [
            ("metric", self.priority),
            ("tos", self.tos.into()),
            ("mtu", self.mtu),
        ] {
            if number > 0 {
                // A type of service is always read as hexadecimal.
                write!(f, " {what} {number:#x}")?;
            }
        }
        Ok(())
    }
}

fn address<'a, D: serde::Deserializer<'a>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

fn mac<'a, D: serde::Deserializer<'a>>(deserializer: D) -> Result<Option<Mac>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}
