//! Random events of few names and addresses, so that resources meet.

use std::{collections::BTreeMap, net::IpAddr};

use calc::event::{
    Bgp, Block, Config, Event, MigrationRole, Node, NodeAddress, NodeAddressKind, Pool,
    RouteSource, ServiceLoopPrevention, SourceHint, TunnelMode, Workload, WorkloadKey,
};
use ipc_proto::{Link, LinkEvent, LinkRole, LinkState, Mac, Tunnel};
use ipnet::IpNet;
use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
    sample::{Index, select},
};

const PREFIXES: [&str; 14] = [
    "10.65.0.0/16",
    "10.65.0.0/24",
    "10.65.0.0/28",
    "10.65.0.0/30",
    "10.65.0.4/30",
    "10.65.0.0/32",
    "10.65.0.1/32",
    "10.65.0.2/32",
    "192.0.2.0/24",
    "192.0.2.2/32",
    "fd65::/64",
    "fd65::/124",
    "fd65::1/128",
    "0.0.0.0/0",
];
const ADDRESSES: [&str; 8] = [
    "10.65.0.0",
    "10.65.0.1",
    "10.65.0.2",
    "192.0.2.1",
    "192.0.2.2",
    "198.51.100.3",
    "fd65::1",
    "2001:db8::1",
];

fn prefix() -> impl Strategy<Value = IpNet> {
    select(&PREFIXES[..]).prop_map(|text| text.parse().unwrap())
}

fn address() -> impl Strategy<Value = IpAddr> {
    select(&ADDRESSES[..]).prop_map(|text| text.parse().unwrap())
}

fn single() -> impl Strategy<Value = IpNet> {
    address().prop_map(IpNet::from)
}

fn node_name() -> impl Strategy<Value = String> {
    select(&["node-0", "node-a", "node-b"][..]).prop_map(str::to_owned)
}

fn mac() -> impl Strategy<Value = Mac> {
    (1..4u8).prop_map(|last| Mac([2, 0, 0, 0, 0, last]))
}

fn mode() -> impl Strategy<Value = TunnelMode> {
    select(
        &[
            TunnelMode::Never,
            TunnelMode::Always,
            TunnelMode::CrossSubnet,
        ][..],
    )
}

fn node() -> impl Strategy<Value = Node> {
    let subnet = |texts: &'static [&'static str]| {
        option::weighted(0.8, select(texts).prop_map(|text| text.parse().unwrap()))
    };
    let kind = select(
        &[
            NodeAddressKind::Internal,
            NodeAddressKind::External,
            NodeAddressKind::Other,
        ][..],
    );
    let entry = (address(), kind).prop_map(|(address, kind)| NodeAddress { address, kind });
    let v4 = select(&ADDRESSES[..6]).prop_map(|text| text.parse().unwrap());
    let v6 = select(&ADDRESSES[6..]).prop_map(|text| text.parse().unwrap());
    (
        subnet(&[
            "192.0.2.1/24",
            "192.0.2.2/24",
            "192.0.2.1/32",
            "198.51.100.3/24",
        ]),
        subnet(&["2001:db8::1/64", "2001:db8::2/64"]),
        vec(entry, 0..3),
        option::of(v4.clone()),
        option::of(v4.clone()),
        option::of(v6),
        option::weighted(0.2, v4),
        option::of(mac()),
    )
        .prop_map(
            |(
                bgp_ipv4,
                bgp_ipv6,
                addresses,
                ipip,
                vxlan_v4,
                vxlan_v6,
                wireguard_v4,
                vxlan_mac_v4,
            )| {
                Node {
                    bgp_ipv4,
                    bgp_ipv6,
                    addresses,
                    ipip,
                    vxlan_v4,
                    vxlan_v6,
                    vxlan_mac_v4,
                    wireguard_v4,
                    ..Node::default()
                }
            },
        )
}

fn pool() -> impl Strategy<Value = Pool> {
    (mode(), mode(), any::<bool>(), prop::bool::weighted(0.1)).prop_map(
        |(vxlan, ipip, nat_outgoing, load_balancer_only)| Pool {
            vxlan,
            ipip,
            nat_outgoing,
            load_balancer_only,
        },
    )
}

fn block() -> impl Strategy<Value = Block> {
    (
        option::weighted(0.8, node_name()),
        btree_map(0..3u32, node_name(), 0..3),
    )
        .prop_map(|(owner, allocations)| Block { owner, allocations })
}

fn workload() -> impl Strategy<Value = (WorkloadKey, Option<Workload>)> {
    let key = (node_name(), select(&["a", "b"][..])).prop_map(|(node, workload)| WorkloadKey {
        node,
        orchestrator: "k8s".to_owned(),
        workload: workload.to_owned(),
        endpoint: "eth0".to_owned(),
    });
    let net = prop_oneof![9 => single(), 1 => prefix()];
    let value = (
        select(&["cali1", "cali2"][..]),
        vec(net, 0..3),
        option::of(mac()),
        any::<bool>(),
        select(
            &[
                MigrationRole::None,
                MigrationRole::Moved,
                MigrationRole::Source,
                MigrationRole::Target,
            ][..],
        ),
    )
        .prop_map(
            |(interface, nets, mac, skip_ingress_redirect, migration)| Workload {
                interface: interface.parse().unwrap(),
                nets,
                mac,
                skip_ingress_redirect,
                migration,
                bgp_peer: false,
            },
        );
    (key, option::weighted(0.8, value))
}

fn link() -> impl Strategy<Value = LinkState> {
    let roles: [(&str, LinkRole); 5] = [
        ("cali1", LinkRole::Workload),
        ("cali2", LinkRole::Workload),
        ("eth0", LinkRole::Uplink),
        ("eth1", LinkRole::Other),
        ("vxlan", LinkRole::Tunnel(Tunnel::VxlanV4)),
    ];
    let held = select(
        &[
            "192.0.2.1/24",
            "192.0.2.2/24",
            "10.65.0.1/32",
            "2001:db8::1/64",
            "fe80::1/64",
        ][..],
    )
    .prop_map(|text| text.parse::<IpNet>().unwrap());
    (
        1..6u32,
        select(roles.to_vec()),
        (prop::bool::weighted(0.8), prop::bool::weighted(0.8)),
        vec(held, 0..3),
        any::<bool>(),
    )
        .prop_map(
            |(index, (name, role), (up, carrier), addresses, jumbo)| LinkState {
                link: Link {
                    index,
                    name: name.parse().unwrap(),
                },
                role: match role {
                    LinkRole::Tunnel(_) if jumbo => LinkRole::Tunnel(Tunnel::VxlanV6),
                    LinkRole::Tunnel(_)
                    | LinkRole::Workload
                    | LinkRole::Uplink
                    | LinkRole::Other => role,
                },
                up,
                carrier: up && carrier,
                mac: jumbo.then_some(Mac([0xee; 6])),
                mtu: if jumbo { 9000 } else { 1500 },
                addresses,
            },
        )
}

fn config() -> impl Strategy<Value = Config> {
    (
        select(&[RouteSource::CalicoIpam, RouteSource::WorkloadIps][..]),
        vec(prefix(), 0..3),
        vec(prefix(), 0..3),
        any::<bool>(),
        select(
            &[
                ServiceLoopPrevention::Drop,
                ServiceLoopPrevention::Reject,
                ServiceLoopPrevention::Disabled,
            ][..],
        ),
        any::<[bool; 2]>(),
        option::of(1300..1302u32),
        option::of(select(vec![
            SourceHint::Address("192.0.2.1".parse().unwrap()),
            SourceHint::Interface("eth0".parse().unwrap()),
        ])),
        select(&[512u32, 1024][..]),
    )
        .prop_map(
            |(
                route_source,
                external_nodes,
                dsr_optout,
                wireguard,
                service_loop_prevention,
                [program_no_encap, redirect_to_peer],
                vxlan_mtu,
                source_hint_v4,
                metric,
            )| Config {
                route_source,
                external_nodes,
                dsr_optout,
                wireguard,
                service_loop_prevention,
                program_no_encap,
                redirect_to_peer,
                vxlan_mtu,
                source_hint_v4,
                workload_metric_v4: metric,
                workload_metric_v6: metric,
                ..Config::default()
            },
        )
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (node_name(), option::weighted(0.8, node())).prop_map(|(n, v)| Event::Node(n, v)),
        3 => (prefix(), option::weighted(0.7, pool())).prop_map(|(c, v)| Event::Pool(c, v)),
        4 => (prefix(), option::weighted(0.7, block())).prop_map(|(c, v)| Event::Block(c, v)),
        4 => workload().prop_map(|(key, value)| Event::Workload(key, value)),
        1 => config().prop_map(Event::Config),
        1 => vec(prefix(), 0..4).prop_map(|services| Event::Bgp(Bgp { services, ..Bgp::default() })),
        5 => link().prop_map(|state| Event::Link(LinkEvent::Set(state))),
        2 => link().prop_map(|state| Event::Link(LinkEvent::Gone(state.link))),
        1 => vec(link(), 0..5).prop_map(|states| {
            let states: BTreeMap<_, _> =
                states.into_iter().map(|state| (state.link.index, state)).collect();
            Event::Links(states.into_values().collect())
        }),
    ]
}

/// A node with all that tunnels take, which a script then changes: by chance alone it is rare.
pub(crate) fn start() -> Vec<Event> {
    let own = Node {
        bgp_ipv4: Some("192.0.2.1/24".parse().unwrap()),
        bgp_ipv6: Some("2001:db8::1/64".parse().unwrap()),
        vxlan_v4: Some("10.65.0.1".parse().unwrap()),
        ..Node::default()
    };
    let pool = Pool {
        vxlan: TunnelMode::CrossSubnet,
        ..Pool::default()
    };
    let link = |index, name: &str, role, addresses: &[&str]| {
        Event::Link(LinkEvent::Set(LinkState {
            link: Link {
                index,
                name: name.parse().unwrap(),
            },
            role,
            up: true,
            carrier: true,
            mac: None,
            mtu: 1500,
            addresses: addresses
                .iter()
                .map(|address| address.parse().unwrap())
                .collect(),
        }))
    };
    vec![
        Event::Node("node-a".to_owned(), Some(own)),
        Event::Pool("10.65.0.0/16".parse().unwrap(), Some(pool)),
        link(1, "cali1", LinkRole::Workload, &[]),
        link(
            2,
            "eth0",
            LinkRole::Uplink,
            &["192.0.2.1/24", "2001:db8::1/64"],
        ),
        link(
            5,
            "vxlan",
            LinkRole::Tunnel(Tunnel::VxlanV4),
            &["10.65.0.1/32"],
        ),
    ]
}

/// One script: events, each with whether to compute after it, and how to shuffle what remains.
pub(crate) fn script() -> impl Strategy<Value = (Vec<(Event, bool)>, Vec<Index>)> {
    (
        vec((event(), prop::bool::weighted(0.3)), 0..60),
        vec(any::<Index>(), 60),
    )
}
