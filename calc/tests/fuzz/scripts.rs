//! Events of any content, in any order: also what no datastore lets through.

use std::{collections::BTreeMap, net::IpAddr};

use calc::event::{
    Bgp, Block, Config, Event, MigrationRole, Node, NodeAddress, NodeAddressKind, Pool,
    RouteSource, TunnelMode, Workload, WorkloadKey,
};
use ipc_proto::{Link, LinkEvent, LinkRole, LinkState, Mac, Tunnel};
use ipnet::IpNet;
use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
    sample::select,
};

use super::{Cores, OWN, runner};

/// Any address, most often one of few.
fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        1 => any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
        1 => any::<u128>().prop_map(|bits| IpAddr::V6(bits.into())),
        4 => select(&["0.0.0.0", "10.0.0.1", "10.0.0.2", "255.255.255.255", "127.0.0.1"][..])
            .prop_map(|text| text.parse().unwrap()),
        4 => select(&["::", "fd00::1", "fd00::2", "::1", "ff02::1", "::ffff:10.0.0.1"][..])
            .prop_map(|text| text.parse().unwrap()),
    ]
}

/// Any prefix, with host bits or without.
fn net() -> impl Strategy<Value = IpNet> {
    (address(), 0..=128u8, prop::bool::weighted(0.9)).prop_map(|(address, len, masked)| {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let net = IpNet::new(address, len.min(longest)).unwrap();
        if masked { net.trunc() } else { net }
    })
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => select(&["", OWN, "node-2", "virtual"][..]).prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

fn mac() -> impl Strategy<Value = Mac> {
    any::<[u8; 6]>().prop_map(Mac)
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
    let entry = address().prop_map(|address| NodeAddress {
        address,
        kind: NodeAddressKind::Internal,
    });
    (
        [option::of(net()), option::of(net())],
        vec(entry, 0..3),
        [(); 5].map(|()| option::of(address())),
        [option::of(mac()), option::of(mac())],
    )
        .prop_map(|([bgp_ipv4, bgp_ipv6], addresses, ends, macs)| {
            let [ipip, vxlan_v4, vxlan_v6, wireguard_v4, wireguard_v6] = ends;
            let [vxlan_mac_v4, vxlan_mac_v6] = macs;
            Node {
                bgp_ipv4,
                bgp_ipv6,
                addresses,
                ipip,
                vxlan_v4,
                vxlan_v6,
                vxlan_mac_v4,
                vxlan_mac_v6,
                wireguard_v4,
                wireguard_v6,
            }
        })
}

fn workload() -> impl Strategy<Value = (WorkloadKey, Option<Workload>)> {
    let key = (name(), name()).prop_map(|(node, workload)| WorkloadKey {
        node,
        orchestrator: "k8s".to_owned(),
        workload,
        endpoint: "eth0".to_owned(),
    });
    let role = select(
        &[
            MigrationRole::None,
            MigrationRole::Moved,
            MigrationRole::Source,
            MigrationRole::Target,
        ][..],
    );
    let value = (
        select(&["cali1", "eth0"][..]),
        vec(net(), 0..4),
        option::of(mac()),
        role,
    )
        .prop_map(|(interface, nets, mac, migration)| Workload {
            interface: interface.parse().unwrap(),
            nets,
            mac,
            skip_ingress_redirect: false,
            bgp_peer: false,
            migration,
        });
    (key, option::weighted(0.8, value))
}

fn link() -> impl Strategy<Value = LinkState> {
    let roles = [
        ("cali1", LinkRole::Workload),
        ("eth0", LinkRole::Uplink),
        ("vxlan.calico", LinkRole::Tunnel(Tunnel::VxlanV4)),
        ("vxlan-v6.calico", LinkRole::Tunnel(Tunnel::VxlanV6)),
    ];
    (
        any::<u8>(),
        select(roles.to_vec()),
        any::<(bool, bool)>(),
        vec(net(), 0..4),
        any::<u32>(),
    )
        .prop_map(
            |(index, (name, role), (up, carrier), addresses, mtu)| LinkState {
                link: Link {
                    index: u32::from(index % 8),
                    name: name.parse().unwrap(),
                },
                role,
                up,
                carrier,
                mac: None,
                mtu,
                addresses,
            },
        )
}

fn config() -> impl Strategy<Value = Config> {
    (
        any::<bool>(),
        vec(net(), 0..3),
        vec(net(), 0..3),
        any::<[bool; 2]>(),
        any::<[u32; 2]>(),
    )
        .prop_map(
            |(ips, external_nodes, dsr_optout, [wireguard, program_no_encap], metrics)| {
                let [workload_metric_v4, workload_metric_v6] = metrics;
                Config {
                    route_source: if ips {
                        RouteSource::WorkloadIps
                    } else {
                        RouteSource::CalicoIpam
                    },
                    external_nodes,
                    dsr_optout,
                    wireguard,
                    program_no_encap,
                    workload_metric_v4,
                    workload_metric_v6,
                    ..Config::default()
                }
            },
        )
}

fn event() -> impl Strategy<Value = Event> {
    let pool = (mode(), mode(), any::<[bool; 2]>()).prop_map(
        |(vxlan, ipip, [nat_outgoing, load_balancer_only])| Pool {
            vxlan,
            ipip,
            nat_outgoing,
            load_balancer_only,
        },
    );
    let ordinal = prop_oneof![0..4u32, any::<u32>()];
    let block = (option::of(name()), btree_map(ordinal, name(), 0..4))
        .prop_map(|(owner, allocations)| Block { owner, allocations });
    prop_oneof![
        3 => (name(), option::weighted(0.8, node())).prop_map(|(n, v)| Event::Node(n, v)),
        2 => (net(), option::weighted(0.8, pool)).prop_map(|(c, v)| Event::Pool(c, v)),
        3 => (net(), option::weighted(0.8, block)).prop_map(|(c, v)| Event::Block(c, v)),
        3 => workload().prop_map(|(key, value)| Event::Workload(key, value)),
        1 => config().prop_map(Event::Config),
        1 => vec(net(), 0..4).prop_map(|services| Event::Bgp(Bgp { services, ..Bgp::default() })),
        2 => link().prop_map(|state| Event::Link(LinkEvent::Set(state))),
        1 => link().prop_map(|state| Event::Link(LinkEvent::Gone(state.link))),
        1 => vec(link(), 0..4).prop_map(|states| {
            let states: BTreeMap<_, _> =
                states.into_iter().map(|state| (state.link.index, state)).collect();
            Event::Links(states.into_values().collect())
        }),
    ]
}

#[test]
fn no_event_stops_the_core() {
    runner(1500)
        .run(&vec(vec(event(), 1..12), 1..6), |batches| {
            let mut cores = Cores::default();
            for events in batches {
                cores.take(events);
            }
            Ok(())
        })
        .unwrap();
}
