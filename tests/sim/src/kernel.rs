//! The model kernel: what it holds, what goes when an interface does, and how it reads back.
//!
//! It holds what is ours beside what is not, and knows neither policy nor desired state.

mod addresses;
mod devices;
mod read;
mod write;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipc_proto::{
    BpfTarget, IfName, LinkProfile, Mac, Op, RouteKey, RouteKind, Table, Tunnel, view::Kind,
};
use ipnet::IpNet;
use privhelper::policy::Policy;

pub(super) use self::{
    addresses::{Origin, can_clear},
    read::{is_ours, owns},
};
use super::cluster::{UPLINK, name, net, own_addresses, v4, v6};

pub(super) const ENOMEM: i32 = 12;
pub(super) const ENODEV: i32 = 19;
pub(super) const EEXIST: i32 = 17;
pub(super) const EINVAL: i32 = 22;
pub(super) const ENOSPC: i32 = 28;
pub(super) const ENETDOWN: i32 = 100;
pub(super) const ENETUNREACH: i32 = 101;
pub(super) const EOPNOTSUPP: i32 = 95;
/// The hardware address of what somebody else has changed.
pub(super) const STRAY_MAC: Mac = Mac([2, 0xbd, 0, 0, 0, 1]);

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) name: IfName,
    /// Whether it is set up.
    pub(super) admin: bool,
    pub(super) carrier: bool,
    pub(super) mac: Mac,
    pub(super) mtu: u32,
    pub(super) addresses: BTreeMap<IpNet, Origin>,
    pub(super) vxlan: Option<Vxlan>,
}

/// What of a VXLAN device cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vxlan {
    pub(super) vni: u32,
    pub(super) port: u16,
    pub(super) local: IpAddr,
    pub(super) parent: u32,
}

/// A route, under a key that it may share with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) protocol: u8,
    pub(super) way: Way,
    pub(super) source: Option<IpAddr>,
    pub(super) mtu: Option<u32>,
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Out {
        index: u32,
        via: Option<IpAddr>,
        onlink: bool,
    },
    Blackhole,
}

/// A neighbour or a forwarding entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry<T> {
    pub(super) to: T,
    pub(super) permanent: bool,
}

/// An entry of a BPF route map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BpfEntry {
    pub(super) flags: u32,
    pub(super) payload: Payload,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Payload {
    None,
    Hop(IpAddr),
    Index(u32),
}

/// What tells state of any kind apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Settings(u32),
    Tunnel(Tunnel),
    Neighbour(u32, IpAddr),
    Fdb(u32, Mac),
    Address(u32, IpAddr),
    Bpf(IpNet),
    Route(RouteKey),
}

/// Returns the address of a route that leads to a pod here, and the index of its link.
pub(super) fn lead(op: &Op) -> Option<(IpAddr, u32)> {
    let (prefix, link) = match op {
        Op::BpfRoute(prefix, Some(route)) => match &route.target {
            BpfTarget::Link(link) => (prefix, link),
            BpfTarget::NextHop(_) | BpfTarget::None => return None,
        },
        Op::KernelRoute(key, Some(route)) => match &route.kind {
            RouteKind::Unicast(hop)
                if hop.via.is_none() && hop.link.name.as_str().starts_with("cali") =>
            {
                (&key.prefix, &hop.link)
            }
            RouteKind::Unicast(_)
            | RouteKind::Multipath(_)
            | RouteKind::Local(_)
            | RouteKind::Blackhole
            | RouteKind::Prohibit
            | RouteKind::Unreachable
            | RouteKind::Throw => return None,
        },
        Op::BpfRoute(_, None)
        | Op::KernelRoute(_, None)
        | Op::LinkSettings(..)
        | Op::TunnelDevice(..)
        | Op::Neighbour(..)
        | Op::Fdb(..)
        | Op::LinkAddress(..)
        | Op::Rule(..)
        | Op::Attachment(..)
        | Op::Endpoint(..)
        | Op::Vtep(..)
        | Op::ProgramSettings(_)
        | Op::Masquerade(_)
        | Op::FlowFlush(_) => return None,
    };
    (prefix.prefix_len() == prefix.max_prefix_len()).then(|| (prefix.addr(), link.index))
}

impl Key {
    /// Returns the kind, if the kernel tells who listens of its changes.
    pub(super) fn told(&self) -> Option<Kind> {
        match self {
            Self::Neighbour(..) => Some(Kind::Neighbours),
            Self::Fdb(..) => Some(Kind::Fdb),
            Self::Route(_) => Some(Kind::KernelRoutes),
            Self::Settings(_) | Self::Tunnel(_) | Self::Address(..) | Self::Bpf(_) => None,
        }
    }

    pub(super) fn of(op: &Op) -> Option<Self> {
        Some(match op {
            Op::LinkSettings(link, _) => Self::Settings(link.index),
            Op::TunnelDevice(tunnel, _) => Self::Tunnel(*tunnel),
            Op::Neighbour(key, _) => Self::Neighbour(key.link.index, key.address),
            Op::Fdb(key, _) => Self::Fdb(key.link.index, key.mac),
            Op::LinkAddress(key, _) => Self::Address(key.link.index, key.address),
            Op::BpfRoute(prefix, _) => Self::Bpf(*prefix),
            Op::KernelRoute(key, _) => Self::Route(key.clone()),
            Op::Rule(..)
            | Op::Attachment(..)
            | Op::Endpoint(..)
            | Op::Vtep(..)
            | Op::ProgramSettings(_)
            | Op::Masquerade(_)
            | Op::FlowFlush(_) => return None,
        })
    }
}

/// What others than the helper have changed since its last reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Disturbed {
    pub(super) links: BTreeSet<u32>,
    /// Addresses that the helper has set, of which routes may be the source.
    pub(super) sources: BTreeSet<IpAddr>,
    pub(super) keys: BTreeSet<Key>,
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) devices: BTreeMap<u32, Device>,
    pub(super) routes: BTreeMap<RouteKey, Vec<Route>>,
    pub(super) neighbours: BTreeMap<(u32, IpAddr), Entry<Mac>>,
    pub(super) fdb: BTreeMap<(u32, Mac), Entry<IpAddr>>,
    pub(super) settings: BTreeMap<u32, LinkProfile>,
    pub(super) bpf: BTreeMap<IpNet, BpfEntry>,
    /// For each address, the links of the pods whose flows are tracked under it.
    pub(super) flows: BTreeMap<IpAddr, BTreeSet<u32>>,
    /// The size of each BPF route map.
    pub(super) bpf_max_entries: usize,
    pub(super) disturbed: Disturbed,
    /// What somebody has changed and nobody has put right.
    pub(super) drifted: BTreeSet<Key>,
    /// Of which kinds others have changed something, as far as the kernel tells that.
    pub(super) others: BTreeSet<Kind>,
    /// Interfaces of which something went away with their state.
    pub(super) losses: BTreeSet<u32>,
    /// The addresses that were taken from interfaces.
    pub(super) lost: BTreeMap<u32, BTreeSet<IpAddr>>,
    /// The addresses that interfaces were given or had changed, with their protocols.
    pub(super) given: BTreeSet<(u32, IpAddr, u8)>,
    /// Interfaces that were said to be down.
    pub(super) falls: BTreeSet<u32>,
    next_index: u32,
}

impl Kernel {
    /// Starts with a node that was just installed, and what other programs have on it.
    pub(super) fn new(bpf_max_entries: usize) -> Self {
        let mut kernel = Self {
            devices: BTreeMap::new(),
            routes: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            fdb: BTreeMap::new(),
            settings: BTreeMap::new(),
            bpf: BTreeMap::new(),
            flows: BTreeMap::new(),
            bpf_max_entries,
            disturbed: Disturbed::default(),
            drifted: BTreeSet::new(),
            others: BTreeSet::new(),
            losses: BTreeSet::new(),
            lost: BTreeMap::new(),
            given: BTreeSet::new(),
            falls: BTreeSet::new(),
            next_index: 1,
        };
        let lo = kernel.add(name("lo"), Mac([0; 6]));
        kernel.put_address(lo, net(v4(127, 0, 0, 1), 8), Origin::USUAL);
        let uplink = kernel.add(name(UPLINK), Mac([2, 0, 0, 0, 0, 1]));
        for own in own_addresses() {
            kernel.put_address(uplink, own, Origin::USUAL);
        }
        let bridge = kernel.add(name("docker0"), Mac([2, 0, 0, 0, 0, 2]));
        kernel.put_address(bridge, net(v4(172, 17, 0, 1), 16), Origin::USUAL);
        for which in 0..6 {
            kernel.foreign(which);
        }
        kernel
    }

    pub(super) fn index(&self, name: &IfName) -> Option<u32> {
        let mut found = self.devices.iter();
        found
            .find(|(_, device)| device.name == *name)
            .map(|(index, _)| *index)
    }

    /// Another program puts something of its own there, or takes it away.
    pub(super) fn foreign(&mut self, which: u8) {
        let out = |protocol, index, via| Route {
            protocol,
            way: Way::Out {
                index,
                via,
                onlink: false,
            },
            source: None,
            mtu: None,
        };
        let Some(uplink) = self.index(&name(UPLINK)) else {
            return;
        };
        let gateway = Some(v4(192, 0, 2, 254));
        let cali = self.index(&name("cali0"));
        match which % 10 {
            0 => self.toggle(net(v4(0, 0, 0, 0), 0), 100, out(4, uplink, gateway)),
            1 => self.toggle(net(v4(192, 0, 2, 0), 24), 0, out(2, uplink, None)),
            // A pool and a block, by another routing daemon.
            2 => self.toggle(net(v4(10, 65, 0, 0), 16), 0, out(12, uplink, gateway)),
            3 => self.toggle(net(v4(10, 65, 1, 16), 28), 32, out(12, uplink, gateway)),
            4 => self.toggle_neighbour(uplink, v4(192, 0, 2, 254), false),
            5 => self.toggle_neighbour(uplink, v4(192, 0, 2, 2), true),
            // Found by neighbour discovery, or put there by hand.
            6 => cali.into_iter().for_each(|cali| {
                self.toggle_neighbour(cali, v6(0, 18), false);
            }),
            7 => cali.into_iter().for_each(|cali| {
                self.toggle_neighbour(cali, v6(0, 19), true);
            }),
            // One address of that block, by hand.
            8 => self.toggle(net(v4(10, 65, 1, 17), 32), 9, out(4, uplink, gateway)),
            _ => cali.into_iter().for_each(|cali| {
                self.toggle(net(v6(0, 0), 64), 256, out(2, cali, None));
            }),
        }
    }

    /// Lets go of flows where no route of ours tells whose they were: a process that starts cannot
    /// know.
    pub(super) fn orphan_flows(&mut self, policy: &Policy) {
        let known = self.table(policy);
        let (bpf, routes) = (&self.bpf, &self.routes);
        self.flows.retain(|address, links| {
            let prefix = IpNet::from(*address);
            let by_map = bpf.get(&prefix).map(|entry| &entry.payload);
            let key = |tos, metric| RouteKey {
                table: Table::Main,
                prefix,
                tos,
                metric,
            };
            let mut ways = routes
                .range(key(0, 0)..=key(u8::MAX, u32::MAX))
                .flat_map(|(key, all)| all.iter().map(move |route| (key, route)))
                .filter(|(key, route)| owns(key, route, policy, &known));
            links.retain(|link| {
                let out = |(_, route): (_, &Route)| matches!(route.way, Way::Out { index, .. } if index == *link);
                by_map == Some(&Payload::Index(*link)) || ways.any(out)
            });
            !links.is_empty()
        });
    }

    /// Takes in that who asked for a change cannot know what came of it, or what went with it.
    pub(super) fn disturb(&mut self, op: &Op) {
        if let Op::LinkAddress(key, false) = op {
            self.disturbed.links.insert(key.link.index);
        }
        self.disturbed.keys.extend(Key::of(op));
    }

    fn toggle(&mut self, prefix: IpNet, metric: u32, route: Route) {
        let key = RouteKey::new(Table::Main, prefix, metric);
        if self.routes.remove(&key).is_none() {
            self.routes.insert(key, vec![route]);
        }
    }

    fn toggle_neighbour(&mut self, index: u32, address: IpAddr, permanent: bool) {
        let key = (index, address);
        if self.neighbours.remove(&key).is_none() {
            let to = Mac([2, 9, 9, 9, 9, 9]);
            self.neighbours.insert(key, Entry { to, permanent });
        }
    }
}
