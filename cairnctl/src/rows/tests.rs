use ipc_proto::{
    BpfRoute, BpfTarget, FdbKey, Flags, Hop, KernelRoute, Link, LinkProfile, Mac, NeighbourKey,
    Observed, Op, OpError, Protocol, RouteKey, RouteKind, Table, Tunnel, TunnelDevice,
};
use ipnet::IpNet;

use super::*;

fn parse<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().expect("a test that cannot go on panics")
}

fn link(index: u32, name: &str) -> Link {
    let name = parse(name);
    Link { index, name }
}

fn bpf(flags: u32, target: BpfTarget) -> BpfRoute {
    let flags = Flags(flags);
    BpfRoute { flags, target }
}

fn row(desired: Option<Op>, actual: Option<Observed>, errno: Option<i32>) -> Row {
    let call = "BPF_MAP_UPDATE_ELEM".to_owned();
    let failed = errno.map(|errno| Reason::Failed(OpError::Kernel { call, errno }));
    let differs = desired != actual.as_ref().and_then(cells::as_op);
    Row {
        desired,
        actual,
        reason: failed.or(differs.then_some(Reason::Pending)),
    }
}

fn bpf_rows() -> Vec<Row> {
    let to: [IpNet; 6] = [
        "10.0.0.0/26",
        "10.0.0.5/32",
        "10.0.1.0/26",
        "10.0.2.0/26",
        "10.0.3.0/26",
        "fd00::5/128",
    ]
    .map(parse);
    let hop = |text| BpfTarget::NextHop(parse(text));
    let local = || Some(bpf(0xd, BpfTarget::Link(link(7, "cali1"))));
    let stale = || Some(bpf(0xd, BpfTarget::Link(link(6, "cali1"))));
    let pool = || Some(bpf(0x1, BpfTarget::None));
    let remote = || Some(bpf(0x5, hop("192.0.2.2")));
    vec![
        row(
            Some(Op::BpfRoute(to[0], pool())),
            Some(Observed::BpfRoute(to[0], pool())),
            None,
        ),
        row(
            Some(Op::BpfRoute(to[1], local())),
            Some(Observed::BpfRoute(to[1], local())),
            None,
        ),
        row(Some(Op::BpfRoute(to[2], remote())), None, Some(12)),
        row(
            Some(Op::BpfRoute(to[3], None)),
            Some(Observed::BpfRoute(to[3], remote())),
            None,
        ),
        row(None, Some(Observed::BpfRoute(to[4], None)), None),
        row(
            Some(Op::BpfRoute(to[5], local())),
            Some(Observed::BpfRoute(to[5], stale())),
            None,
        ),
        row(Some(Op::BpfRoute(to[5], None)), None, None),
    ]
}

fn kernel_rows() -> Vec<Row> {
    let hop = |via: Option<&str>, name| Hop {
        link: link(2, name),
        via: via.map(parse),
        onlink: via.is_some(),
    };
    let route = |kind, protocol| KernelRoute {
        kind,
        protocol,
        source: None,
        mtu: None,
    };
    let routes = [
        (
            "10.0.0.0/26",
            0,
            route(RouteKind::Blackhole, Protocol::Safe),
        ),
        (
            "10.0.0.5/32",
            0,
            route(RouteKind::Unicast(hop(None, "cali1")), Protocol::Device),
        ),
        (
            "fd00::/64",
            0,
            KernelRoute {
                kind: RouteKind::Multipath(vec![hop(Some("fe80::1"), "eth0"), hop(None, "eth1")]),
                protocol: Protocol::Safe,
                source: Some(parse("fd00::9")),
                mtu: Some(1450),
            },
        ),
        (
            "10.0.9.9/32",
            5,
            route(RouteKind::Local(link(1, "lo")), Protocol::Safe),
        ),
    ];
    let row_of = |(prefix, metric, route): (&str, u32, KernelRoute)| {
        let key = RouteKey::new(Table::Main, parse(prefix), metric);
        let op = Op::KernelRoute(key.clone(), Some(Box::new(route.clone())));
        row(
            Some(op),
            Some(Observed::KernelRoute(key, Some(route))),
            None,
        )
    };
    routes.map(row_of).into()
}

#[test]
fn bpf_routes_show_what_is_and_mark_what_differs() {
    assert_eq!(
        text(&[(Kind::BpfRoutes, bpf_rows())]),
        "\
PREFIX       FLAGS                   TARGET     STATE
10.0.0.0/26  in-pool                 -          ok
10.0.0.5/32  in-pool,workload,local  cali1#7    ok
10.0.1.0/26  in-pool,workload        192.0.2.2  failing: to be added: BPF_MAP_UPDATE_ELEM: Cannot allocate memory (os error 12)
10.0.2.0/26  in-pool,workload        192.0.2.2  pending: to be removed
10.0.3.0/26  -                       -          pending: to be removed
fd00::5/128  in-pool,workload,local  cali1#6    pending: to become in-pool,workload,local cali1#7
"
    );
}

#[test]
fn kernel_routes_of_every_form_have_their_columns() {
    assert_eq!(
        text(&[(Kind::KernelRoutes, kernel_rows())]),
        "\
PREFIX       TABLE  METRIC  KIND       VIA               DEV        PROTO   SRC      MTU   STATE
10.0.0.0/26  main   0       blackhole  -                 -          safe    -        -     ok
10.0.0.5/32  main   0       unicast    -                 cali1      device  -        -     ok
fd00::/64    main   1024    multipath  fe80::1 onlink,-  eth0,eth1  safe    fd00::9  1450  ok
10.0.9.9/32  main   5       local      -                 lo         safe    -        -     ok
"
    );
}

#[test]
fn two_tables_have_titles() {
    let tunnel = || link(9, "vxlan.cairn");
    let mac = Mac([0x66, 0, 0, 0, 0, 1]);
    let key = NeighbourKey {
        link: tunnel(),
        address: parse("10.0.1.1"),
    };
    let entry = FdbKey {
        link: tunnel(),
        mac,
    };
    let neighbour = row(None, Some(Observed::Neighbour(key, mac)), None);
    let fdb = row(Some(Op::Fdb(entry, Some(parse("192.0.2.2")))), None, None);
    assert_eq!(
        text(&[(Kind::Neighbours, vec![neighbour]), (Kind::Fdb, vec![fdb])]),
        "\
neighbours:
ADDRESS   DEV          MAC                STATE
10.0.1.1  vxlan.cairn  66:00:00:00:00:01  pending: to be removed

forwarding entries:
MAC                DEV          DST        STATE
66:00:00:00:00:01  vxlan.cairn  192.0.2.2  pending: to be added
"
    );
}

#[test]
fn links_show_their_profile_and_tunnel_devices_all_they_have() {
    let device = TunnelDevice {
        vni: 4096,
        port: 4789,
        local: parse("192.0.2.1"),
        parent: link(2, "eth0"),
        mac: Mac([0x66, 0, 0, 0, 0, 1]),
        mtu: 1450,
        address: parse("10.0.0.1"),
    };
    let settings = row(
        Some(Op::LinkSettings(
            link(7, "cali1"),
            Some(LinkProfile::Workload),
        )),
        Some(Observed::LinkSettings(
            link(7, "cali1"),
            LinkProfile::Workload,
        )),
        None,
    );
    let device = row(
        Some(Op::TunnelDevice(Tunnel::VxlanV4, Some(Box::new(device)))),
        Some(Observed::TunnelDevice(Tunnel::VxlanV4, None)),
        None,
    );
    let listing = text(&[
        (Kind::LinkSettings, vec![settings]),
        (Kind::TunnelDevices, vec![device]),
    ]);
    assert_eq!(
        listing,
        "\
link settings:
DEV    PROFILE   STATE
cali1  workload  ok

tunnel devices:
TUNNEL    VNI  PORT  LOCAL  PARENT  MAC  MTU  ADDRESS  STATE
vxlan-v4  -    -     -      -       -    -    -        pending: to become 4096 4789 192.0.2.1 eth0 66:00:00:00:00:01 1450 10.0.0.1
"
    );
}

#[test]
fn a_program_gets_flat_objects() {
    let all = json(&[(Kind::BpfRoutes, bpf_rows())]);
    assert_eq!(all.as_array().map(Vec::len), Some(6));
    assert_eq!(
        all[1],
        json!({
            "type": "bpf-route", "prefix": "10.0.0.5/32", "flags": ["in-pool", "workload", "local"],
            "target": "cali1#7", "present": true, "state": "ok", "why": null,
        })
    );
    assert_eq!(
        all[2],
        json!({
            "type": "bpf-route", "prefix": "10.0.1.0/26", "flags": ["in-pool", "workload"],
            "target": "192.0.2.2", "present": false, "state": "failing",
            "why": "to be added: BPF_MAP_UPDATE_ELEM: Cannot allocate memory (os error 12)",
        })
    );
    let routes = json(&[(Kind::KernelRoutes, kernel_rows())]);
    assert_eq!(
        routes[2],
        json!({
            "type": "kernel-route", "prefix": "fd00::/64", "table": "main", "metric": 1024,
            "kind": "multipath", "via": ["fe80::1 onlink", null], "dev": ["eth0", "eth1"],
            "proto": "safe", "src": "fd00::9", "mtu": 1450, "present": true, "state": "ok",
            "why": null,
        })
    );
}
