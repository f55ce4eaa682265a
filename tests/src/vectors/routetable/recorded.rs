//! The program that was recorded: what it knows of, and what it asks the kernel for.
//!
//! It asks for each target under a key of its own, with the protocol that was asked for, by the
//! interfaces that it was told of.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use ipc_proto::Mac;
use ipnet::IpNet;

use super::{
    event::{Class, Config, Route, Target, TargetKind, Way},
    kernel::{Key, Neighbours, Routes},
    model::{Asked, Links, NONE, is_workload},
};
use crate::vectors::Rule;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// The index of each interface that it knows, and whether that is up.
    told: BTreeMap<String, (u32, bool)>,
    /// When it first heard of the interface with an index.
    seen: BTreeMap<u32, Instant>,
    /// What others have left of a prefix since it listed all routes.
    unseen: BTreeMap<IpNet, Vec<Route>>,
    /// All neighbours that it was ever asked for, by interface and address.
    neighbours_asked: BTreeSet<(String, IpAddr, Mac)>,
    /// Its routes after the last step, and why some of them differed.
    pub(super) routes: Routes,
    pub(super) differed: BTreeMap<Key, Rule>,
    /// Its neighbours after the last step.
    pub(super) neighbours: Neighbours,
}

impl Recorded {
    /// Takes in that another process of it starts.
    pub(super) fn restart(&mut self) {
        self.told.clear();
        self.seen.clear();
    }

    /// Takes in that it lists all interfaces and routes.
    pub(super) fn list(&mut self, links: &Links, now: Instant) {
        let told = links.values().map(|state| {
            let link = &state.link;
            (link.name.to_string(), (link.index, state.up))
        });
        self.told = told.collect();
        self.unseen.clear();
        self.see(now);
    }

    /// Takes in that it is told of an interface, or looks at it.
    pub(super) fn look(&mut self, name: &str, links: &Links, now: Instant) {
        let state = by_name(links, name);
        match state {
            Some(up) => drop(self.told.insert(name.to_owned(), up)),
            None => drop(self.told.remove(name)),
        }
        self.see(now);
    }

    fn see(&mut self, now: Instant) {
        for (index, _) in self.told.values() {
            self.seen.entry(*index).or_insert(now);
        }
    }

    /// Takes in that others have changed routes of a prefix, and what they left if anything.
    pub(super) fn miss(&mut self, prefix: IpNet, left: Option<Route>) {
        self.unseen.entry(prefix).or_default().extend(left);
    }

    /// Returns what it may have of a prefix because it has not looked, besides nothing.
    pub(super) fn unseen(&self, prefix: &IpNet) -> Option<&[Route]> {
        self.unseen.get(prefix).map(Vec::as_slice)
    }

    /// Takes in what it is asked for on an interface.
    pub(super) fn ask(&mut self, iface: &str, targets: &[Target]) {
        let asked = targets.iter().filter_map(|target| {
            let address = target.cidr.addr();
            Some((iface.to_owned(), address, target.mac?))
        });
        self.neighbours_asked.extend(asked);
    }

    /// Returns whether it was ever asked for a neighbour.
    pub(super) fn was_asked(&self, (iface, address): &(String, IpAddr), mac: Option<Mac>) -> bool {
        let asked = &self.neighbours_asked;
        mac.is_some_and(|mac| asked.contains(&(iface.clone(), *address, mac)))
    }

    /// Returns whether it spares a route that nobody wants, because the interface is new to it.
    pub(super) fn spares(&self, route: &Route, config: &Config, now: Instant) -> bool {
        let grace = Duration::from_secs(config.cleanup_grace_period_s);
        let told = self.told.get(&route.dev);
        let seen = told.and_then(|(index, _)| self.seen.get(index));
        seen.is_some_and(|seen| now < *seen + grace) && is_workload(&route.dev, config)
    }

    /// Returns whether it knows an interface as it is.
    pub(super) fn knows(&self, name: &str, links: &Links) -> bool {
        // One that is down is as good as none.
        let up = |state: Option<(u32, bool)>| state.filter(|(_, up)| *up);
        up(by_name(links, name)) == up(self.told.get(name).copied())
    }

    /// Returns what it asks for.
    pub(super) fn want(&self, asked: &[Asked<'_>], config: &Config) -> Routes {
        let mut won: BTreeMap<Key, ((Class, Reverse<u32>), Route)> = BTreeMap::new();
        for asked in asked {
            let Some(index) = self.index(*asked) else {
                continue;
            };
            let route = shown(*asked, config);
            let key = (route.dst, route.tos, route.priority);
            let rank = (asked.class, Reverse(index));
            if won.get(&key).is_none_or(|(best, _)| rank < *best) {
                won.insert(key, (rank, route));
            }
        }
        let routes = won.into_iter();
        routes.map(|(key, (_, route))| (key, route)).collect()
    }

    /// Returns the index of the interface of a target, if that can be made.
    fn index(&self, asked: Asked<'_>) -> Option<u32> {
        let up = |name: &str| self.told.get(name).filter(|(_, up)| *up);
        if asked.iface != NONE {
            return up(asked.iface).map(|(index, _)| *index);
        }
        let ways = &asked.target.multipath;
        (ways.is_empty() || ways.iter().any(|way| up(&way.iface).is_some())).then_some(0)
    }
}

fn by_name(links: &Links, name: &str) -> Option<(u32, bool)> {
    let mut states = links.values();
    let state = states.find(|state| state.link.name.as_str() == name)?;
    Some((state.link.index, state.up))
}

/// Returns the route of a target as the kernel shows it.
fn shown(asked: Asked<'_>, config: &Config) -> Route {
    let target = asked.target;
    let (kind, scope, onlink) = match target.kind {
        TargetKind::Workload | TargetKind::LocalUnicast => ("unicast", 253, false),
        TargetKind::GlobalUnicast => ("unicast", 0, false),
        TargetKind::Vxlan | TargetKind::Noencap | TargetKind::Onlink => ("unicast", 0, true),
        TargetKind::Blackhole => ("blackhole", 0, false),
        TargetKind::Prohibit => ("prohibit", 0, false),
        TargetKind::Throw => ("throw", 0, false),
        TargetKind::Unreachable => ("unreachable", 253, false),
    };
    let v4 = config.ip_version == 4;
    let end = if onlink { " onlink" } else { "" };
    let way = |way: &Way| format!("{} dev {}{end}", way.gw, way.iface);
    Route {
        dst: target.cidr.trunc(),
        kind: kind.to_owned(),
        scope: if v4 { scope } else { 0 },
        proto: match target.protocol {
            0 => config.device_route_protocol,
            other => other,
        },
        dev: Some(asked.iface)
            .filter(|iface| *iface != NONE)
            .unwrap_or_default()
            .to_owned(),
        gw: target.gw,
        priority: config.metric(target.priority),
        tos: target.tos,
        onlink: onlink && target.multipath.is_empty(),
        src: target.src.or(config.device_route_source_address),
        mtu: target.mtu,
        nexthops: target.multipath.iter().map(way).collect(),
    }
}
