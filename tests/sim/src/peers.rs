//! What must hold of workloads with which BIRD speaks BGP: of this host's addresses on their links, and
//! of what BIRD has from them. Told from the documents and the kernel alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use calc::event::{Event, Node, Peering};
use ipc_proto::{IfName, Op, RouteKind, Step};
use ipnet::IpNet;
use privhelper::policy::Policy;

use super::{
    cluster::{self, Doc},
    kernel::{Kernel, Key, Route, Way, can_clear},
    rules::{Broken, broken},
};

/// The protocol of BIRD's routes.
pub(super) const BIRD: u8 = 12;

/// Returns whether a route is BIRD's and leads to one of these.
pub(super) fn is_birds(route: &Route, links: &BTreeSet<u32>) -> bool {
    let Way::Out { index, .. } = &route.way else {
        return false;
    };
    route.protocol == BIRD && links.contains(index)
}

/// Returns the links of these interfaces.
pub(super) fn links(kernel: &Kernel, names: &BTreeSet<IfName>) -> BTreeSet<u32> {
    names.iter().filter_map(|name| kernel.index(name)).collect()
}

/// Checks what is about to be sent by who knows `peers` and has wanted these keys.
pub(super) fn sent(
    steps: &[Step],
    peers: &BTreeSet<IfName>,
    ever_wanted: &BTreeSet<Key>,
    kernel: &Kernel,
    policy: &Policy,
) -> Result<(), Broken> {
    let disturbed = &kernel.disturbed;
    for Step { op, .. } in steps {
        let Some(key) = Key::of(op).filter(|key| !disturbed.keys.contains(key)) else {
            continue;
        };
        match (&key, op) {
            (Key::Route(route), Op::KernelRoute(..)) => {
                let mut links = links(kernel, peers);
                links.retain(|link| !disturbed.links.contains(link));
                let mut there = kernel.routes.get(route).into_iter().flatten();
                if there.any(|route| is_birds(route, &links)) {
                    return broken("BIRD's routes to its peers are left alone", op);
                }
            }
            (Key::Address(index, address), Op::LinkAddress(_, false)) => {
                let wanted = |key: &Key| match key {
                    Key::Address(on, other) => on == index && other.is_ipv6() == address.is_ipv6(),
                    Key::Settings(_)
                    | Key::Tunnel(_)
                    | Key::Neighbour(..)
                    | Key::Fdb(..)
                    | Key::Bpf(_)
                    | Key::Route(_) => false,
                };
                let own = IpNet::from(*address);
                let device = kernel.devices.get(index);
                let origin = device.and_then(|device| device.addresses.get(&own));
                let is_wanted = || ever_wanted.iter().any(wanted);
                if origin.is_some_and(|origin| !can_clear(&own, *origin, policy, is_wanted())) {
                    return broken("others' addresses are left alone", op);
                }
            }
            (_, _) => {}
        }
    }
    Ok(())
}

/// Returns which addresses of this host there are to be on which links.
pub(super) fn addresses(
    documents: &BTreeMap<Doc, u16>,
    kernel: &Kernel,
) -> BTreeSet<(u32, IpAddr)> {
    let held = held(documents);
    let peering = peering(documents).filter(|address| !held.contains(address));
    let peering: Vec<IpAddr> = peering.collect();
    let is_up = |link: &u32| kernel.devices.get(link).is_some_and(|device| device.admin);
    let links = links(kernel, &cluster::peers(documents)).into_iter();
    links
        .filter(is_up)
        .flat_map(|link| peering.iter().map(move |address| (link, *address)))
        .collect()
}

/// Returns whether somebody has an address that the peers' links should have.
pub(super) fn is_any_held(documents: &BTreeMap<Doc, u16>) -> bool {
    let held = held(documents);
    peering(documents).any(|address| held.contains(&address))
}

fn peering(documents: &BTreeMap<Doc, u16>) -> impl Iterator<Item = IpAddr> {
    let services = documents.get(&Doc::Services).copied();
    let peering = match cluster::event(Doc::Services, services) {
        Event::Bgp(bgp) => bgp.peering,
        Event::Node(..)
        | Event::Pool(..)
        | Event::Block(..)
        | Event::Workload(..)
        | Event::Config(_)
        | Event::Link(_)
        | Event::Links(_) => Peering::default(),
    };
    [peering.v4, peering.v6].into_iter().flatten()
}

/// Returns the addresses that nodes and pods have.
fn held(documents: &BTreeMap<Doc, u16>) -> BTreeSet<IpAddr> {
    let mut held = BTreeSet::new();
    for (doc, variant) in documents {
        match cluster::event(*doc, Some(*variant)) {
            Event::Node(_, Some(node)) => held.extend(hosts(&node)),
            Event::Workload(_, Some(workload)) => {
                let single = |net: &&IpNet| net.prefix_len() == net.max_prefix_len();
                held.extend(workload.nets.iter().filter(single).map(IpNet::addr));
            }
            Event::Block(cidr, Some(block)) => {
                let given = block.allocations.iter();
                let given = given.filter(|(_, node)| Some(*node) != block.owner.as_ref());
                held.extend(given.map(|(ordinal, _)| at(&cidr, *ordinal)));
            }
            Event::Node(_, None)
            | Event::Workload(_, None)
            | Event::Block(_, None)
            | Event::Pool(..)
            | Event::Config(_)
            | Event::Bgp(_)
            | Event::Link(_)
            | Event::Links(_) => {}
        }
    }
    held
}

/// Returns the address at a place in a block.
fn at(block: &IpNet, ordinal: u32) -> IpAddr {
    match block.network() {
        IpAddr::V4(first) => IpAddr::V4((u32::from(first) + ordinal).into()),
        IpAddr::V6(first) => IpAddr::V6((u128::from(first) + u128::from(ordinal)).into()),
    }
}

fn hosts(node: &Node) -> impl Iterator<Item = IpAddr> {
    let main = [node.bgp_ipv4, node.bgp_ipv6].into_iter().flatten();
    let main = main.map(|net| net.addr());
    let more = node.addresses.iter().map(|address| address.address);
    let ends = [node.vxlan_v4, node.vxlan_v6].into_iter().flatten();
    main.chain(more).chain(ends)
}

/// Returns the prefixes of routes that are wanted before which one of BIRD's comes that leads elsewhere.
pub(super) fn outdone(
    wanted: &BTreeMap<Key, Op>,
    kernel: &Kernel,
    links: &BTreeSet<u32>,
) -> BTreeSet<IpNet> {
    let mut outdone = BTreeSet::new();
    for (birds, route) in &kernel.routes {
        let mut birds_own = route.iter().filter(|route| is_birds(route, links));
        let Some(Way::Out { index, .. }) = birds_own.next().map(|route| &route.way) else {
            continue;
        };
        let comes_before = wanted.iter().any(|(key, op)| {
            let (Key::Route(key), Op::KernelRoute(_, Some(ours))) = (key, op) else {
                return false;
            };
            let same_way =
                matches!(&ours.kind, RouteKind::Unicast(hop) if hop.link.index == *index);
            (key.table, key.prefix) == (birds.table, birds.prefix)
                && birds.metric <= key.metric
                && !same_way
        });
        if comes_before {
            outdone.insert(birds.prefix);
        }
    }
    outdone
}
