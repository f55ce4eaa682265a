//! What the producers of a vector ask for, and what Cairn makes of it: the one route that a prefix
//! gets, by calc's own choice, and the permanent neighbours.
//!
//! A producer owns what it asks for by class and interface. Nothing here is kept of the kernel but
//! the interfaces.

use std::collections::{BTreeMap, BTreeSet};

use calc::conflict::{Candidate, Class as Rank, winner};
use ipc_proto::{
    Hop, KernelRoute, Link, LinkRole, LinkState, Mac, NeighbourKey, Op, Protocol, RouteKey,
    RouteKind, Table,
};
use ipnet::IpNet;

use super::{
    event::{Class, Config, Route, Target, TargetKind},
    kernel::{Key, Neighbours, Routes},
};

/// The name of no interface.
pub(super) const NONE: &str = "none";

/// The interfaces, as the helper tells of them.
pub(super) type Links = BTreeMap<Link, LinkState>;

/// A target with who asks for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) class: Class,
    pub(super) iface: &'a str,
    pub(super) target: &'a Target,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Model {
    targets: BTreeMap<(Class, String), BTreeMap<Key, Target>>,
    /// What was last wanted.
    routes: BTreeMap<RouteKey, KernelRoute>,
    neighbours: BTreeMap<NeighbourKey, Mac>,
}

impl Model {
    /// Takes in all that a producer asks for.
    pub(super) fn set(&mut self, class: Class, iface: &str, targets: &[Target]) {
        let targets = targets.iter().map(|target| (place(target), target.clone()));
        self.targets
            .insert((class, iface.to_owned()), targets.collect());
    }

    /// Takes in one more, or another value.
    pub(super) fn update(&mut self, class: Class, iface: &str, target: &Target) {
        let targets = self.targets.entry((class, iface.to_owned())).or_default();
        targets.insert(place(target), target.clone());
    }

    /// Takes in that one is no longer asked for.
    pub(super) fn remove(&mut self, class: Class, iface: &str, target: &Target) {
        if let Some(targets) = self.targets.get_mut(&(class, iface.to_owned())) {
            targets.remove(&place(target));
        }
    }

    /// Returns all that is asked for.
    pub(super) fn asked(&self) -> impl Iterator<Item = Asked<'_>> {
        self.targets.iter().flat_map(|((class, iface), targets)| {
            targets.values().map(|target| Asked {
                class: *class,
                iface,
                target,
            })
        })
    }

    /// Returns the changes of what is wanted.
    pub(super) fn resolve(&mut self, config: &Config, links: &Links) -> Vec<Op> {
        let (routes, neighbours) = (self.winners(config, links), self.macs(config, links));
        let mut ops = Vec::new();
        for (key, route) in &routes {
            if self.routes.get(key) != Some(route) {
                ops.push(Op::KernelRoute(key.clone(), Some(Box::new(route.clone()))));
            }
        }
        let gone = self.routes.keys().filter(|key| !routes.contains_key(key));
        ops.extend(gone.map(|key| Op::KernelRoute(key.clone(), None)));
        for (key, mac) in &neighbours {
            if self.neighbours.get(key) != Some(mac) {
                ops.push(Op::Neighbour(key.clone(), Some(*mac)));
            }
        }
        let gone = self.neighbours.keys();
        let gone = gone.filter(|key| !neighbours.contains_key(key));
        ops.extend(gone.map(|key| Op::Neighbour(key.clone(), None)));
        (self.routes, self.neighbours) = (routes, neighbours);
        ops
    }

    /// Returns the routes that are wanted, as the kernel shall show them.
    pub(super) fn routes(&self, config: &Config) -> Routes {
        let routes = self.routes.iter();
        routes
            .map(|(key, route)| {
                let route = shown(key, route, config);
                ((route.dst, route.tos, route.priority), route)
            })
            .collect()
    }

    /// Returns the neighbours that are wanted.
    pub(super) fn neighbours(&self) -> Neighbours {
        let neighbours = self.neighbours.iter();
        neighbours
            .map(|(key, mac)| ((key.link.name.to_string(), key.address), *mac))
            .collect()
    }

    /// Returns the one route of each prefix and type of service, of whatever metric.
    fn winners(&self, config: &Config, links: &Links) -> BTreeMap<RouteKey, KernelRoute> {
        let places: BTreeSet<(IpNet, u8)> = self
            .asked()
            .map(|asked| (asked.target.cidr.trunc(), asked.target.tos))
            .collect();
        let of = |(cidr, tos): &(IpNet, u8)| {
            let mut asked: Vec<Asked<'_>> = self
                .asked()
                .filter(|asked| (asked.target.cidr.trunc(), asked.target.tos) == (*cidr, *tos))
                .collect();
            // The kernel prefers the lowest metric.
            asked.sort_by_key(|asked| asked.target.priority);
            winner(
                asked
                    .into_iter()
                    .filter_map(|asked| candidate(asked, config, links)),
            )
        };
        places.iter().filter_map(of).collect()
    }

    fn macs(&self, config: &Config, links: &Links) -> BTreeMap<NeighbourKey, Mac> {
        let mut macs = BTreeMap::new();
        if !config.static_arp_entries || config.ip_version != 4 {
            return macs;
        }
        for asked in self.asked() {
            let link = up(links, asked.iface);
            if let (Some(state), Some(mac)) = (link, asked.target.mac) {
                let key = NeighbourKey {
                    link: state.link.clone(),
                    address: asked.target.cidr.addr(),
                };
                macs.insert(key, mac);
            }
        }
        macs
    }
}

fn place(target: &Target) -> Key {
    (target.cidr.trunc(), target.tos, target.priority)
}

fn rank(class: Class) -> Rank {
    match class {
        Class::LocalWorkload => Rank::LocalWorkload,
        Class::BpfSpecial => Rank::BpfSpecial,
        Class::VxlanSameSubnet => Rank::VxlanSameSubnet,
        Class::VxlanTunnel => Rank::VxlanTunnel,
        Class::NoEncap => Rank::NoEncap,
        Class::BlackholeVxlan => Rank::VxlanBlackhole,
        Class::BlackholeIpip => Rank::IpipBlackhole,
        Class::BlackholeNoEncap => Rank::NoEncapBlackhole,
    }
}

fn up<'a>(links: &'a Links, name: &str) -> Option<&'a LinkState> {
    let mut links = links.values();
    links.find(|state| state.link.name.as_str() == name && state.up)
}

/// Returns the route of a target, if its interfaces are up.
pub(super) fn candidate(
    asked: Asked<'_>,
    config: &Config,
    links: &Links,
) -> Option<Candidate<(RouteKey, KernelRoute)>> {
    let target = asked.target;
    let link = if asked.iface == NONE {
        None
    } else {
        Some(up(links, asked.iface)?)
    };
    let onlink = match target.kind {
        TargetKind::Vxlan | TargetKind::Noencap | TargetKind::Onlink => true,
        TargetKind::Workload
        | TargetKind::LocalUnicast
        | TargetKind::GlobalUnicast
        | TargetKind::Blackhole
        | TargetKind::Prohibit
        | TargetKind::Throw
        | TargetKind::Unreachable => false,
    };
    let kind = match target.kind {
        TargetKind::Blackhole => RouteKind::Blackhole,
        TargetKind::Prohibit => RouteKind::Prohibit,
        TargetKind::Throw => RouteKind::Throw,
        TargetKind::Unreachable => RouteKind::Unreachable,
        TargetKind::Workload
        | TargetKind::LocalUnicast
        | TargetKind::GlobalUnicast
        | TargetKind::Vxlan
        | TargetKind::Noencap
        | TargetKind::Onlink => match link {
            Some(state) => RouteKind::Unicast(Hop {
                link: state.link.clone(),
                via: target.gw,
                onlink,
            }),
            None => multipath(target, onlink, links)?,
        },
    };
    let by_link = link.is_some_and(|state| marks(state.role));
    let hops_marked = target
        .multipath
        .iter()
        .all(|way| up(links, &way.iface).is_some_and(|state| marks(state.role)));
    let device = by_link || !target.multipath.is_empty() && hops_marked;
    let mut key = RouteKey::new(Table::Main, target.cidr.trunc(), target.priority);
    key.tos = target.tos;
    let route = KernelRoute {
        kind,
        protocol: if device {
            Protocol::Device
        } else {
            Protocol::Safe
        },
        source: target.src.or(config.device_route_source_address),
        mtu: (target.mtu > 0).then_some(target.mtu),
    };
    Some(Candidate {
        class: rank(asked.class),
        link: link.map_or(0, |state| state.link.index),
        carrier: link.is_none_or(|state| state.carrier),
        route: (key, route),
    })
}

/// Returns whether an interface marks its routes as ours.
fn marks(role: LinkRole) -> bool {
    match role {
        LinkRole::Workload | LinkRole::Tunnel(_) => true,
        LinkRole::Uplink | LinkRole::Other => false,
    }
}

/// Returns the ways of a target, of which one that is down does not count.
fn multipath(target: &Target, onlink: bool, links: &Links) -> Option<RouteKind> {
    let ways = target.multipath.iter().filter_map(|way| {
        Some(Hop {
            link: up(links, &way.iface)?.link.clone(),
            via: Some(way.gw),
            onlink,
        })
    });
    let mut ways: Vec<Hop> = ways.collect();
    match ways.len() {
        0 => None,
        1 => ways.pop().map(RouteKind::Unicast),
        _ => Some(RouteKind::Multipath(ways)),
    }
}

/// Returns a route as the kernel shall show it.
pub(super) fn shown(key: &RouteKey, route: &KernelRoute, config: &Config) -> Route {
    let v4 = config.ip_version == 4;
    let (mut dev, mut gw, mut onlink) = (String::new(), None, false);
    let mut nexthops = Vec::new();
    let (kind, scope) = match &route.kind {
        RouteKind::Unicast(hop) => {
            dev = hop.link.name.to_string();
            (gw, onlink) = (hop.via, hop.onlink);
            ("unicast", if hop.via.is_none() { 253 } else { 0 })
        }
        RouteKind::Multipath(hops) => {
            nexthops = hops.iter().map(way).collect();
            ("unicast", 0)
        }
        RouteKind::Local(link) => {
            dev = link.name.to_string();
            ("local", 254)
        }
        RouteKind::Blackhole => ("blackhole", 0),
        RouteKind::Prohibit => ("prohibit", 0),
        RouteKind::Unreachable => ("unreachable", 0),
        RouteKind::Throw => ("throw", 0),
    };
    Route {
        dst: key.prefix,
        kind: kind.to_owned(),
        scope: if v4 { scope } else { 0 },
        proto: protocol(route.protocol, config),
        dev,
        gw,
        priority: key.metric,
        tos: key.tos,
        onlink,
        src: route.source,
        mtu: route.mtu.unwrap_or_default(),
        nexthops,
    }
}

fn way(hop: &Hop) -> String {
    let via = hop.via.map(|via| via.to_string()).unwrap_or_default();
    let end = if hop.onlink { " onlink" } else { "" };
    format!("{via} dev {}{end}", hop.link.name)
}

fn protocol(protocol: Protocol, config: &Config) -> u8 {
    match protocol {
        Protocol::Device => config.device_route_protocol,
        Protocol::Safe | Protocol::Foreign | Protocol::Bird => safe(config),
    }
}

/// Returns the number for routes that nothing but their protocol marks as ours.
pub(super) fn safe(config: &Config) -> u8 {
    match config.device_route_protocol {
        3 => 80,
        other => other,
    }
}

/// Returns whether a route that is in the main table is ours to remove.
pub(super) fn is_ours(route: &Route, config: &Config) -> bool {
    if let IpNet::V6(prefix) = route.dst
        && prefix.addr().is_unicast_link_local()
    {
        return false;
    }
    if route.proto == safe(config) {
        return true;
    }
    let on = |dev: &str| {
        let marked = config.remove_external_routes || route.proto == config.device_route_protocol;
        is_workload(dev, config) && marked || dev == config.vxlan_iface
    };
    let ways = route.nexthops.iter();
    let mut devs = ways.map(|way| way.split(' ').nth(2).unwrap_or_default());
    if route.nexthops.is_empty() {
        on(&route.dev)
    } else {
        devs.all(on)
    }
}

/// Returns whether an interface is a workload's.
pub(super) fn is_workload(dev: &str, config: &Config) -> bool {
    let mut prefixes = config.workload_iface_prefixes.iter();
    prefixes.any(|prefix| dev.starts_with(prefix))
}
