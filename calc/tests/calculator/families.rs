//! IPv6 is treated as IPv4 is: the same resources with their addresses mapped into IPv6 give the same
//! graph and the same BPF routes.

use std::{
    cell::Cell,
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
};

use calc::{
    event::{Event, Node},
    route::Route,
};
use ipc_proto::{BpfRoute, BpfTarget, LinkEvent, LinkRole, LinkState, Mac, Op, Tunnel};
use ipnet::{IpNet, Ipv6Net};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};

use crate::{
    generate::{event, start},
    world::{OWN, World},
};

/// Where IPv4 is in IPv6 here.
const BASE: u128 = 0xfd64 << 112;
const BASE_LEN: u8 = 96;

fn address(address: IpAddr) -> Option<IpAddr> {
    match address {
        // No address at all in both, which a mapped one is not.
        IpAddr::V4(v4) if v4.is_unspecified() => None,
        IpAddr::V4(v4) => Some(Ipv6Addr::from(BASE | u128::from(u32::from(v4))).into()),
        IpAddr::V6(_) => None,
    }
}

/// The prefix, host bits and all.
fn net(net: IpNet) -> Option<IpNet> {
    let IpAddr::V6(mapped) = address(net.addr())? else {
        return None;
    };
    let mapped = Ipv6Net::new(mapped, BASE_LEN + net.prefix_len()).unwrap();
    Some(mapped.into())
}

fn nets(nets: Vec<IpNet>) -> Vec<IpNet> {
    nets.into_iter().filter_map(net).collect()
}

/// Leaves only what is of IPv4, and returns it with its image.
fn both(event: Event) -> Option<(Event, Event)> {
    Some(match event {
        Event::Node(name, node) => {
            let node = node.map(only_v4);
            let image = node.clone().map(node_image);
            (Event::Node(name.clone(), node), Event::Node(name, image))
        }
        Event::Pool(cidr, pool) => {
            let image = net(cidr)?;
            (Event::Pool(cidr, pool.clone()), Event::Pool(image, pool))
        }
        Event::Block(cidr, block) => {
            let image = net(cidr)?;
            (
                Event::Block(cidr, block.clone()),
                Event::Block(image, block),
            )
        }
        Event::Workload(key, workload) => {
            let workload = workload.map(|mut workload| {
                workload.nets.retain(|one| net(*one).is_some());
                workload
            });
            let image = workload.clone().map(|mut workload| {
                workload.nets = nets(workload.nets);
                workload
            });
            (
                Event::Workload(key.clone(), workload),
                Event::Workload(key, image),
            )
        }
        Event::Config(mut config) => {
            for list in [&mut config.external_nodes, &mut config.dsr_optout] {
                list.retain(|one| net(*one).is_some());
            }
            let mut image = config.clone();
            image.external_nodes = nets(image.external_nodes);
            image.dsr_optout = nets(image.dsr_optout);
            (Event::Config(config), Event::Config(image))
        }
        Event::Bgp(mut bgp) => {
            bgp.services.retain(|one| net(*one).is_some());
            let mut image = bgp.clone();
            image.services = nets(image.services);
            (Event::Bgp(bgp), Event::Bgp(image))
        }
        Event::Link(LinkEvent::Set(state)) => {
            let (state, image) = link(state);
            (
                Event::Link(LinkEvent::Set(state)),
                Event::Link(LinkEvent::Set(image)),
            )
        }
        Event::Link(LinkEvent::Gone(link)) => (
            Event::Link(LinkEvent::Gone(link.clone())),
            Event::Link(LinkEvent::Gone(link)),
        ),
        Event::Links(states) => {
            let (states, images) = states.into_iter().map(link).unzip();
            (Event::Links(states), Event::Links(images))
        }
    })
}

fn only_v4(node: Node) -> Node {
    let v4 = |one: &IpAddr| address(*one).is_some();
    Node {
        bgp_ipv6: None,
        addresses: node
            .addresses
            .into_iter()
            .filter(|entry| v4(&entry.address))
            .collect(),
        ipip: node.ipip.filter(v4),
        vxlan_v4: node.vxlan_v4.filter(v4),
        vxlan_v6: None,
        vxlan_mac_v6: None,
        // The default one differs by family on purpose.
        vxlan_mac_v4: node.vxlan_mac_v4.or(Some(Mac([2, 0, 0, 0, 0, 9]))),
        wireguard_v4: node.wireguard_v4.filter(v4),
        wireguard_v6: None,
        ..node
    }
}

fn node_image(node: Node) -> Node {
    let image = |one: Option<IpAddr>| one.and_then(address);
    Node {
        bgp_ipv4: None,
        bgp_ipv6: node.bgp_ipv4.and_then(net),
        addresses: node
            .addresses
            .into_iter()
            .filter_map(|mut entry| {
                entry.address = address(entry.address)?;
                Some(entry)
            })
            .collect(),
        ipip: image(node.ipip),
        vxlan_v4: None,
        vxlan_v6: image(node.vxlan_v4),
        vxlan_mac_v4: None,
        vxlan_mac_v6: node.vxlan_mac_v4,
        wireguard_v4: None,
        wireguard_v6: image(node.wireguard_v4),
    }
}

fn link(mut state: LinkState) -> (LinkState, LinkState) {
    state.addresses.retain(|one| net(*one).is_some());
    if let LinkRole::Tunnel(tunnel) = &mut state.role {
        *tunnel = Tunnel::VxlanV4;
    }
    let mut image = state.clone();
    image.addresses = nets(image.addresses);
    if let LinkRole::Tunnel(tunnel) = &mut image.role {
        *tunnel = Tunnel::VxlanV6;
    }
    (state, image)
}

/// The graph's routes, and the BPF routes, of a world.
type Outcome = (BTreeMap<IpNet, Route>, BTreeMap<IpNet, BpfRoute>);

fn outcome(world: &World) -> Outcome {
    let mut calculator = calc::Calculator::new(OWN.to_owned());
    for event in World::default().changes(world) {
        calculator.handle(event);
    }
    let mut entries = BTreeMap::new();
    for op in calculator.resolve() {
        if let Op::BpfRoute(cidr, Some(route)) = op {
            entries.insert(cidr, route);
        }
    }
    (calculator.routes().collect(), entries)
}

fn image((routes, entries): Outcome) -> Outcome {
    let routes = routes.into_iter().map(|(cidr, route)| {
        let route = Route {
            node_ip: route.node_ip.and_then(address),
            ..route
        };
        (net(cidr).unwrap(), route)
    });
    let entries = entries.into_iter().map(|(cidr, mut route)| {
        if let BpfTarget::NextHop(node) = &mut route.target {
            *node = address(*node).unwrap();
        }
        (net(cidr).unwrap(), route)
    });
    (routes.collect(), entries.collect())
}

const CASES: u32 = 300;

#[test]
fn ipv6_is_treated_as_ipv4_is() {
    let config = ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    // A world may lose all it started with; that most of them have something to compare is what makes this a test.
    let compared = Cell::new(0);
    let same = TestRunner::new(config).run(&vec(event(), 0..50), |events| {
        let (mut v4, mut v6) = (World::default(), World::default());
        for event in start().into_iter().chain(events) {
            if let Some((event, image)) = both(event) {
                v4.apply(event);
                v6.apply(image);
            }
        }
        let (routes, entries) = outcome(&v4);
        if !routes.is_empty() && !entries.is_empty() {
            compared.set(compared.get() + 1);
        }
        prop_assert_eq!(image((routes, entries)), outcome(&v6));
        Ok(())
    });
    same.unwrap_or_else(|error| panic!("{error}"));
    assert!(compared.get() > CASES * 3 / 4, "{}", compared.get());
}
