//! The columns of each kind of table, and its keys and values as cells of them.

use ipc_proto::{
    BpfRoute, BpfTarget, Endpoint, Flags, Hook, Hop, KernelRoute, Link, LinkProfile, Observed, Op,
    Protocol, RouteKey, RouteKind, Table, Tunnel, TunnelDevice, view::Kind,
};
use serde_json::{Value, json};

/// A key and what is or should be under it. No value: nothing should be, or nothing that a request
/// could make is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cells {
    pub(super) key: Vec<Value>,
    pub(super) value: Option<Vec<Value>>,
}

/// Returns the names of the columns: those of the key, then those of the value.
pub(super) const fn columns(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::LinkSettings => &["dev", "profile"],
        Kind::TunnelDevices => &[
            "tunnel", "vni", "port", "local", "parent", "mac", "mtu", "address",
        ],
        Kind::Neighbours => &["address", "dev", "mac"],
        Kind::Fdb => &["mac", "dev", "dst"],
        Kind::LinkAddresses => &["address", "dev", "set"],
        Kind::BpfRoutes => &["prefix", "flags", "target"],
        Kind::KernelRoutes => &[
            "prefix", "table", "metric", "kind", "via", "dev", "proto", "src", "mtu",
        ],
        Kind::Rules => &["family", "priority", "mark", "invert", "table"],
        Kind::Endpoints => &["dev", "host mac", "workload mac"],
        Kind::Attachments => &["dev", "hook", "attached"],
    }
}

/// Returns what the kind is called.
pub(super) const fn title(kind: Kind) -> &'static str {
    match kind {
        Kind::LinkSettings => "link settings",
        Kind::TunnelDevices => "tunnel devices",
        Kind::Neighbours => "neighbours",
        Kind::Fdb => "forwarding entries",
        Kind::LinkAddresses => "addresses on workloads' links",
        Kind::BpfRoutes => "BPF routes",
        Kind::KernelRoutes => "kernel routes",
        Kind::Rules => "routing rules",
        Kind::Endpoints => "endpoints of the packet programs",
        Kind::Attachments => "attached packet programs",
    }
}

/// Returns what an op makes true, if it is about a table.
pub(super) fn cells(op: &Op) -> Option<Cells> {
    let (key, value) = match op {
        Op::LinkSettings(link, profile) => (vec![name(link)], profile.map(settings)),
        Op::TunnelDevice(tunnel, device) => (
            vec![tunnel_name(*tunnel)],
            device.as_deref().map(tunnel_device),
        ),
        Op::Neighbour(key, mac) => (
            vec![shown(&key.address), name(&key.link)],
            mac.map(|mac| vec![shown(&mac)]),
        ),
        Op::Fdb(key, node) => (
            vec![shown(&key.mac), name(&key.link)],
            node.map(|node| vec![shown(&node)]),
        ),
        Op::LinkAddress(key, set) => (
            vec![shown(&key.address), name(&key.link)],
            set.then(|| vec![true.into()]),
        ),
        Op::BpfRoute(prefix, route) => (vec![shown(prefix)], route.as_ref().map(bpf_route)),
        Op::KernelRoute(key, route) => (route_key(key), route.as_deref().map(kernel_route)),
        Op::Endpoint(link, endpoint) => (vec![name(link)], endpoint.as_deref().map(macs)),
        Op::Attachment(key, attached) => (
            vec![name(&key.link), hook(key.hook)],
            attached.then(|| vec![true.into()]),
        ),
        Op::Rule(rule, wanted) => (
            vec![
                json!(if rule.ipv6 { 6 } else { 4 }),
                rule.priority.into(),
                rule.mark.map_or(Value::Null, |(mark, mask)| {
                    format!("{mark:#x}/{mask:#x}").into()
                }),
                rule.invert.into(),
            ],
            wanted.then(|| vec!["second".into()]),
        ),
        Op::Vtep(..) | Op::ProgramSettings(_) | Op::Masquerade(_) | Op::FlowFlush(_) => {
            return None;
        }
    };
    Some(Cells { key, value })
}

/// Returns what is as the op that would make it so. An op without a value stands for something that
/// none could make.
pub(super) fn as_op(observed: &Observed) -> Option<Op> {
    Some(match observed.clone() {
        Observed::Link(_) | Observed::AsKnown(_) | Observed::Rivals(_) => return None,
        Observed::LinkSettings(link, profile) => Op::LinkSettings(link, Some(profile)),
        Observed::TunnelDevice(tunnel, device) => Op::TunnelDevice(tunnel, device.map(Box::new)),
        Observed::Neighbour(key, mac) => Op::Neighbour(key, Some(mac)),
        Observed::Fdb(key, node) => Op::Fdb(key, node),
        Observed::LinkAddress(key, ours) => Op::LinkAddress(key, ours),
        Observed::BpfRoute(prefix, route) => Op::BpfRoute(prefix, route),
        Observed::KernelRoute(key, route) => Op::KernelRoute(key, route.map(Box::new)),
        Observed::Endpoint(link, endpoint) => Op::Endpoint(link, endpoint.map(Box::new)),
        Observed::Attachment(key) => Op::Attachment(key, true),
        Observed::Rule(rule) => Op::Rule(rule, true),
    })
}

fn shown(value: &impl ToString) -> Value {
    value.to_string().into()
}

fn name(link: &Link) -> Value {
    shown(&link.name)
}

fn settings(profile: LinkProfile) -> Vec<Value> {
    vec![json!(match profile {
        LinkProfile::Workload => "workload",
        LinkProfile::Tunnel => "tunnel",
        LinkProfile::Uplink => "uplink",
    })]
}

fn tunnel_name(tunnel: Tunnel) -> Value {
    json!(match tunnel {
        Tunnel::VxlanV4 => "vxlan-v4",
        Tunnel::VxlanV6 => "vxlan-v6",
    })
}

fn tunnel_device(device: &TunnelDevice) -> Vec<Value> {
    vec![
        device.vni.into(),
        device.port.into(),
        shown(&device.local),
        name(&device.parent),
        shown(&device.mac),
        device.mtu.into(),
        shown(&device.address),
    ]
}

fn bpf_route(route: &BpfRoute) -> Vec<Value> {
    let target = match &route.target {
        BpfTarget::None => Value::Null,
        BpfTarget::NextHop(address) => shown(address),
        // The index is what the entry holds.
        BpfTarget::Link(link) => shown(link),
    };
    vec![flags(route.flags), target]
}

fn flags(flags: Flags) -> Value {
    if flags == Flags::default() {
        return json!([]);
    }
    flags.to_string().split(',').collect()
}

fn macs(endpoint: &Endpoint) -> Vec<Value> {
    vec![shown(&endpoint.host_mac), shown(&endpoint.workload_mac)]
}

fn hook(hook: Hook) -> Value {
    json!(match hook {
        Hook::Ingress => "ingress",
        Hook::Egress => "egress",
    })
}

fn route_key(key: &RouteKey) -> Vec<Value> {
    let table = match key.table {
        Table::Main => "main",
        Table::Second => "second",
    };
    let prefix = match key.tos {
        0 => shown(&key.prefix),
        tos => format!("{} tos {tos:#x}", key.prefix).into(),
    };
    vec![prefix, table.into(), key.metric.into()]
}

fn kernel_route(route: &KernelRoute) -> Vec<Value> {
    let (kind, hops) = match &route.kind {
        RouteKind::Unicast(hop) => ("unicast", std::slice::from_ref(hop)),
        RouteKind::Multipath(hops) => ("multipath", hops.as_slice()),
        RouteKind::Local(link) => {
            return kernel_cells(route, "local", json!([]), json!([name(link)]));
        }
        RouteKind::Blackhole => ("blackhole", [].as_slice()),
        RouteKind::Prohibit => ("prohibit", [].as_slice()),
        RouteKind::Unreachable => ("unreachable", [].as_slice()),
        RouteKind::Throw => ("throw", [].as_slice()),
    };
    let links = hops.iter().map(|hop| name(&hop.link)).collect();
    // Hops on the link have no next hop; the others keep their places.
    let via = if hops.iter().any(|hop| hop.via.is_some()) {
        hops.iter().map(via).collect()
    } else {
        json!([])
    };
    kernel_cells(route, kind, via, links)
}

fn kernel_cells(route: &KernelRoute, kind: &str, via: Value, links: Value) -> Vec<Value> {
    let protocol = match route.protocol {
        Protocol::Device => "device",
        Protocol::Safe => "safe",
        Protocol::Foreign => "foreign",
        Protocol::Bird => "bird",
    };
    vec![
        kind.into(),
        via,
        links,
        protocol.into(),
        route.source.as_ref().map_or(Value::Null, shown),
        json!(route.mtu),
    ]
}

fn via(hop: &Hop) -> Value {
    match hop.via {
        None => Value::Null,
        Some(via) if hop.onlink => format!("{via} onlink").into(),
        Some(via) => shown(&via),
    }
}
