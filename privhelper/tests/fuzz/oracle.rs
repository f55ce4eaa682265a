//! What must never be let through, stated again: in bits and numbers, by what the kernel would do.

use std::net::IpAddr;

use ipc_proto::{
    BpfTarget, Hop, KernelRoute, Lane, Link, LinkAddressKey, Op, Protocol, RouteKind, Table, Tunnel,
};
use ipnet::IpNet;
use privhelper::{
    links::Links,
    policy::{Policy, Uplinks},
};

/// Why it is forbidden.
type Why = &'static str;

/// Networks that no request may lie in: base and length.
const FORBIDDEN: [(&str, u8); 6] = [
    ("0.0.0.0", 8),
    ("127.0.0.0", 8),
    ("169.254.0.0", 16),
    ("224.0.0.0", 4),
    ("fe80::", 10),
    ("ff00::", 8),
];

/// Returns why `op` must not be carried out, if so.
pub(crate) fn forbidden(policy: &Policy, links: &Links, lane: Lane, op: &Op) -> Option<Why> {
    if matches!(op, Op::FlowFlush(_)) != (lane == Lane::Flows) {
        return Some("the wrong lane");
    }
    let names = Names { policy, links };
    match op {
        Op::LinkSettings(link, profile) => profile
            .is_some()
            .then(|| (!names.is_any_of_ours(link)).then_some("settings of a link of others"))?,
        Op::TunnelDevice(tunnel, device) => {
            let device = device.as_ref()?;
            let v6 = matches!(tunnel, Tunnel::VxlanV6);
            if !names.is_uplink(&device.parent) {
                return Some("a tunnel over what is no uplink");
            }
            if !names.addresses(&device.parent).contains(&device.local) {
                return Some("a tunnel from an address that is not ours");
            }
            if device.vni > 0xff_ffff || device.port == 0 {
                return Some("a tunnel that cannot be");
            }
            if device.local.is_ipv6() != v6 || device.address.is_ipv6() != v6 {
                return Some("a tunnel of two families");
            }
            (!one_host(device.mac.0)).then_some("a group's hardware address")
        }
        Op::Neighbour(key, mac) => {
            let tunnel = names.is_tunnel(&key.link);
            if !(tunnel || names.is_workload(&key.link) && key.address.is_ipv4()) {
                return Some("a neighbour on a link of others");
            }
            if !can_be_a_host(key.address) {
                return Some("a neighbour that is no host");
            }
            mac.is_some_and(|mac| !one_host(mac.0))
                .then_some("a group's hardware address")
        }
        Op::Fdb(key, destination) => {
            if !names.is_tunnel(&key.link) {
                return Some("a forwarding entry of a device of others");
            }
            let destination = (*destination)?;
            (!one_host(key.mac.0) || !can_be_a_host(destination))
                .then_some("a forwarding entry that leads to no host")
        }
        Op::LinkAddress(key, _) => link_address(policy, &names, key),
        Op::BpfRoute(prefix, route) => place(policy, prefix).or_else(|| {
            let route = route.as_ref()?;
            match &route.target {
                BpfTarget::None => None,
                BpfTarget::Link(link) => {
                    (!names.is_workload(link)).then_some("delivery into a link of others")
                }
                BpfTarget::NextHop(hop) => next_hop(prefix, *hop),
            }
        }),
        Op::KernelRoute(key, route) => {
            if key.table == Table::Second && policy.second_table.is_none() {
                return Some("a table that is not in the file");
            }
            place(policy, &key.prefix).or_else(|| {
                let route = route.as_ref()?;
                scope(&names, &key.prefix)
                    .or_else(|| kernel_route(&names, key.table, &key.prefix, route))
            })
        }
        Op::Rule(rule, _) => {
            if policy.second_table.is_none() {
                return Some("a table that is not in the file");
            }
            // 0 is the local table's rule, 32766 the main one's.
            (rule.priority == 0 || rule.priority >= 32766).then_some("a rule around the host's own")
        }
        Op::Attachment(key, _) => {
            (!names.is_workload(&key.link)).then_some("a program on a link of others")
        }
        Op::Endpoint(link, endpoint) => {
            if !names.is_workload(link) {
                return Some("an endpoint that is a link of others");
            }
            let endpoint = endpoint.as_ref()?;
            (!one_host(endpoint.host_mac.0) || !one_host(endpoint.workload_mac.0))
                .then_some("a group's hardware address")
        }
        Op::Vtep(..) | Op::ProgramSettings(_) | Op::Masquerade(_) => Some("not in this version"),
        Op::FlowFlush(address) => {
            let prefix = IpNet::from(*address);
            if !can_be_a_host(*address) {
                return Some("flows of nobody");
            }
            place(policy, &prefix).or_else(|| scope(&names, &prefix))
        }
    }
}

fn link_address(policy: &Policy, names: &Names<'_>, key: &LinkAddressKey) -> Option<Why> {
    if !names.is_workload(&key.link) {
        return Some("an address on a link of others");
    }
    if !can_be_a_host(key.address) {
        return Some("an address that is no host's");
    }
    let prefix = IpNet::from(key.address);
    let of_link = |(base, length): (&str, u8)| is_inside(&prefix, base.parse().unwrap(), length);
    if [("169.254.0.0", 16), ("fe80::", 10)]
        .into_iter()
        .any(of_link)
    {
        return None;
    }
    place(policy, &prefix)
}

fn kernel_route(
    names: &Names<'_>,
    table: Table,
    prefix: &IpNet,
    route: &KernelRoute,
) -> Option<Why> {
    let hops: Vec<(&Link, Option<IpAddr>)> = match &route.kind {
        RouteKind::Unicast(Hop { link, via, .. }) => vec![(link, *via)],
        RouteKind::Multipath(hops) => hops.iter().map(|hop| (&hop.link, hop.via)).collect(),
        RouteKind::Local(link) => vec![(link, None)],
        RouteKind::Blackhole | RouteKind::Prohibit | RouteKind::Unreachable | RouteKind::Throw => {
            vec![]
        }
    };
    if hops.len() > 64 {
        return Some("a route of too many ways");
    }
    let mut marked = !hops.is_empty();
    for (link, via) in hops {
        if !names.is_any_of_ours(link) {
            return Some("a route through a link of others");
        }
        marked &= !names.is_uplink(link);
        if let Some(why) = via.and_then(|via| next_hop(prefix, via)) {
            return Some(why);
        }
    }
    if route
        .source
        .is_some_and(|source| next_hop(prefix, source).is_some())
    {
        return Some("a source that is no host");
    }
    match route.protocol {
        Protocol::Foreign | Protocol::Bird => Some("a route in another's name"),
        Protocol::Device if table == Table::Main && !marked => {
            Some("a route that nobody would know as ours")
        }
        Protocol::Device | Protocol::Safe => None,
    }
}

/// The bits of an address from the left, and how many there are.
fn bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

fn mask(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

fn is_inside(prefix: &IpNet, base: IpAddr, length: u8) -> bool {
    let ((address, width), (base, base_width)) = (bits(prefix.addr()), bits(base));
    width == base_width
        && prefix.prefix_len() >= length
        && address & mask(length) == base & mask(length)
}

/// Where a prefix must not be.
fn place(policy: &Policy, prefix: &IpNet) -> Option<Why> {
    let (address, _) = bits(prefix.addr());
    if address & !mask(prefix.prefix_len()) != 0 {
        return Some("bits beyond the prefix");
    }
    let inside = |(base, length): (&str, u8)| is_inside(prefix, base.parse().unwrap(), length);
    if FORBIDDEN.into_iter().any(inside) {
        return Some("where nobody's pods are");
    }
    let allowed = policy.allow.is_empty()
        || policy
            .allow
            .iter()
            .any(|net| is_inside(prefix, net.addr(), net.prefix_len()));
    (!allowed).then_some("outside of what the file allows")
}

/// How much a prefix must not take in.
fn scope(names: &Names<'_>, prefix: &IpNet) -> Option<Why> {
    let shortest = if prefix.addr().is_ipv4() { 8 } else { 16 };
    if prefix.prefix_len() < shortest {
        return Some("a good part of the internet");
    }
    let own =
        |address: IpAddr| is_inside(&IpNet::from(address), prefix.addr(), prefix.prefix_len());
    names
        .uplink_addresses()
        .into_iter()
        .any(own)
        .then_some("the node's own address")
}

fn next_hop(prefix: &IpNet, hop: IpAddr) -> Option<Why> {
    (hop.is_ipv4() != prefix.addr().is_ipv4() || !can_be_a_host(hop)).then_some("no next hop")
}

fn can_be_a_host(address: IpAddr) -> bool {
    let (bits, width) = bits(address);
    match width {
        32 => {
            let first = bits >> 120;
            bits != 0 && first != 127 && !(224..240).contains(&first) && bits >> 96 != 0xffff_ffff
        }
        _ => bits > 1 && bits >> 120 != 0xff,
    }
}

fn one_host(mac: [u8; 6]) -> bool {
    mac[0].is_multiple_of(2) && mac.iter().any(|byte| *byte != 0)
}

/// Whose an interface is, by its name alone; it must be there under this name and number.
struct Names<'a> {
    policy: &'a Policy,
    links: &'a Links,
}

impl Names<'_> {
    fn is_there(&self, link: &Link) -> bool {
        self.links.iter().any(|state| state.link == *link)
    }

    fn addresses(&self, link: &Link) -> Vec<IpAddr> {
        let of_it = self.links.iter().filter(|state| state.link == *link);
        of_it
            .flat_map(|state| &state.addresses)
            .map(IpNet::addr)
            .collect()
    }

    fn is_workload(&self, link: &Link) -> bool {
        self.is_there(link) && link.name.as_str().starts_with("cali")
    }

    fn is_tunnel(&self, link: &Link) -> bool {
        self.is_there(link) && ["vxlan.calico", "vxlan-v6.calico"].contains(&link.name.as_str())
    }

    fn is_uplink(&self, link: &Link) -> bool {
        let name = match self.policy.uplinks {
            Uplinks::Auto => "eth0",
            Uplinks::Listed(_) => "br0",
        };
        self.is_there(link) && link.name.as_str() == name
    }

    fn is_any_of_ours(&self, link: &Link) -> bool {
        self.is_workload(link) || self.is_tunnel(link) || self.is_uplink(link)
    }

    fn uplink_addresses(&self) -> Vec<IpAddr> {
        let uplinks = self
            .links
            .iter()
            .filter(|state| self.is_uplink(&state.link));
        uplinks
            .flat_map(|state| &state.addresses)
            .map(IpNet::addr)
            .collect()
    }
}
