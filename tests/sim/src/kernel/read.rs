//! What the helper reads: interfaces, and of the rest only what is ours.

use std::collections::BTreeMap;

use ipc_proto::{
    BpfRoute, BpfTarget, FdbKey, Flags, Hop, KernelRoute, Lane, Link, LinkRole, LinkState,
    NeighbourKey, Observed, Op, Rival, Rivals, RouteKey, RouteKind, Table, Tunnel, TunnelDevice,
};
use ipnet::IpNet;
use privhelper::{
    links::{Links, Unseen},
    policy::{self, Found, Policy},
};

use super::{BpfEntry, Device, Kernel, Payload, Route, Way, addresses};

impl Kernel {
    /// All interfaces.
    pub(crate) fn links(&self, policy: &Policy) -> Vec<LinkState> {
        let states = self.devices.iter();
        states
            .map(|(index, device)| link_state(*index, device, policy))
            .collect()
    }

    /// All interfaces, as a table.
    pub(crate) fn table(&self, policy: &Policy) -> Links {
        let mut links = Links::default();
        links.update(self.links(policy), &Unseen::default());
        links
    }

    /// All that is ours, as seen by who knows these interfaces.
    pub(crate) fn observe(&self, policy: &Policy, links: &Links) -> Vec<Observed> {
        let mut all = Vec::new();
        for (index, profile) in &self.settings {
            if let Some(state) = links.by_index(*index)
                && policy::profile(state.role) == Some(*profile)
            {
                all.push(Observed::LinkSettings(state.link.clone(), *profile));
            }
        }
        for tunnel in [Tunnel::VxlanV4, Tunnel::VxlanV6] {
            if let Some(index) = self.index(policy.tunnel(tunnel)) {
                let device = self.devices.get(&index).and_then(|d| read_tunnel(d, links));
                all.push(Observed::TunnelDevice(tunnel, device));
            }
        }
        for ((index, address), entry) in self.neighbours.iter().filter(|(_, e)| e.permanent) {
            if let Some(state) = links.by_index(*index)
                && is_ours(state.role, address.is_ipv6())
            {
                let (link, address) = (state.link.clone(), *address);
                all.push(Observed::Neighbour(
                    NeighbourKey { link, address },
                    entry.to,
                ));
            }
        }
        for (index, device) in &self.devices {
            if let Some(state) = links.by_index(*index)
                && state.role == LinkRole::Workload
            {
                all.extend(addresses::observe(device, &state.link, policy));
            }
        }
        for ((index, mac), entry) in self.fdb.iter().filter(|(_, e)| e.permanent) {
            if let Some(state) = links.by_index(*index)
                && matches!(state.role, LinkRole::Tunnel(_))
            {
                let (link, mac) = (state.link.clone(), *mac);
                all.push(Observed::Fdb(FdbKey { link, mac }, Some(entry.to)));
            }
        }
        let bpf = self.bpf.iter();
        all.extend(bpf.map(|(prefix, entry)| Observed::BpfRoute(*prefix, read_bpf(entry, links))));
        for (key, routes) in &self.routes {
            for route in routes {
                let (ours, found) = read_route(key, route, policy, links);
                if ours {
                    all.push(Observed::KernelRoute(key.clone(), found));
                }
            }
        }
        let may_clear = |op| policy.check(Lane::State, op, links).is_ok();
        all.retain(|item| clear(item).is_none_or(may_clear));
        let rivals = self.rivals(policy, links);
        if rivals != Rivals::default() {
            all.push(Observed::Rivals(rivals));
        }
        all
    }

    /// Others' routes that may count in place of ours, as seen by who knows these interfaces.
    pub(crate) fn rivals(&self, policy: &Policy, links: &Links) -> Rivals {
        let routes = self.routes.iter();
        let routes = routes.flat_map(|(key, all)| all.iter().map(move |route| (key, route)));
        let (ours, others): (Vec<_>, Vec<_>) =
            routes.partition(|(key, route)| owns(key, route, policy, links));
        let mut greatest: BTreeMap<(Table, IpNet), u32> = BTreeMap::new();
        for (key, _) in ours {
            let metric = greatest.entry((key.table, key.prefix)).or_default();
            *metric = key.metric.max(*metric);
        }
        let mut told: BTreeMap<(Table, IpNet), Rival> = BTreeMap::new();
        for (key, route) in others {
            let contains = |(table, net): &&(Table, IpNet)| {
                *table == key.table && *net != key.prefix && net.contains(&key.prefix)
            };
            let ours = match greatest.get(&(key.table, key.prefix)) {
                Some(metric) => (key.metric <= *metric).then_some(key.prefix),
                // The kernel's, and BIRD's.
                None if [2, 12].contains(&route.protocol) => None,
                None => {
                    let nets = greatest.keys().filter(contains).map(|(_, net)| *net);
                    nets.max_by_key(IpNet::prefix_len)
                }
            };
            if let Some(ours) = ours {
                let rival = || Rival {
                    key: key.clone(),
                    ours,
                    way: format!("protocol {}", route.protocol),
                };
                told.entry((key.table, key.prefix)).or_insert_with(rival);
            }
        }
        Rivals {
            told: told.into_values().collect(),
            more: 0,
        }
    }
}

/// Returns whether a route is ours to who knows these interfaces.
pub(crate) fn owns(key: &RouteKey, route: &Route, policy: &Policy, links: &Links) -> bool {
    read_route(key, route, policy, links).0
}

/// Returns whether a permanent neighbour is ours.
pub(crate) fn is_ours(role: LinkRole, ipv6: bool) -> bool {
    match role {
        LinkRole::Tunnel(_) => true,
        LinkRole::Workload => !ipv6,
        LinkRole::Uplink | LinkRole::Other => false,
    }
}

fn link_state(index: u32, device: &Device, policy: &Policy) -> LinkState {
    let addresses: Vec<IpNet> = device.addresses.keys().copied().collect();
    LinkState {
        link: Link {
            index,
            name: device.name.clone(),
        },
        role: policy.role(&device.name, &addresses),
        up: device.admin,
        carrier: device.admin && device.carrier,
        mac: Some(device.mac),
        mtu: device.mtu,
        addresses,
    }
}

fn read_tunnel(device: &Device, links: &Links) -> Option<TunnelDevice> {
    let vxlan = device.vxlan?;
    let mut addresses = device.addresses.keys();
    let own = addresses.next()?;
    (device.admin && addresses.next().is_none() && own.prefix_len() == own.max_prefix_len())
        .then_some(TunnelDevice {
            vni: vxlan.vni,
            port: vxlan.port,
            local: vxlan.local,
            parent: links.by_index(vxlan.parent)?.link.clone(),
            mac: device.mac,
            mtu: device.mtu,
            address: own.addr(),
        })
}

fn read_bpf(entry: &BpfEntry, links: &Links) -> Option<BpfRoute> {
    let flags = Flags(entry.flags);
    let target = match &entry.payload {
        Payload::None => BpfTarget::None,
        Payload::Hop(hop) => BpfTarget::NextHop(*hop),
        Payload::Index(index) => BpfTarget::Link(links.by_index(*index)?.link.clone()),
    };
    (flags.unknown() == 0).then_some(BpfRoute { flags, target })
}

/// Returns whether a route is ours, and what it is if a request could have made it.
fn read_route(
    key: &RouteKey,
    route: &Route,
    policy: &Policy,
    links: &Links,
) -> (bool, Option<KernelRoute>) {
    let role = |index| links.by_index(index).map(|state| state.role);
    let outputs = match route.way {
        Way::Out { index, .. } => vec![role(index).unwrap_or(LinkRole::Other)],
        Way::Blackhole => Vec::new(),
    };
    let found = Found {
        table: key.table,
        prefix: key.prefix,
        protocol: route.protocol,
        outputs: &outputs,
    };
    let kind = match &route.way {
        Way::Out { index, via, onlink } => links.by_index(*index).map(|state| {
            RouteKind::Unicast(Hop {
                link: state.link.clone(),
                via: *via,
                onlink: *onlink,
            })
        }),
        Way::Blackhole => Some(RouteKind::Blackhole),
    };
    let read = kind.map(|kind| KernelRoute {
        kind,
        protocol: policy.protocol_of(&found),
        source: route.source,
        mtu: route.mtu,
    });
    (policy.owns(&found), read)
}

/// The request that would clear it, if it is ours; what cannot be cleared is not reported.
fn clear(item: &Observed) -> Option<Op> {
    Some(match item {
        Observed::AsKnown(_) | Observed::Rivals(_) => return None,
        Observed::Link(state) => Op::LinkSettings(state.link.clone(), None),
        Observed::LinkSettings(link, _) => Op::LinkSettings(link.clone(), None),
        Observed::TunnelDevice(tunnel, _) => Op::TunnelDevice(*tunnel, None),
        Observed::Neighbour(key, _) => Op::Neighbour(key.clone(), None),
        Observed::Fdb(key, _) => Op::Fdb(key.clone(), None),
        Observed::LinkAddress(key, _) => Op::LinkAddress(key.clone(), false),
        Observed::BpfRoute(prefix, _) => Op::BpfRoute(*prefix, None),
        Observed::KernelRoute(key, _) => Op::KernelRoute(key.clone(), None),
        Observed::Endpoint(link, _) => Op::Endpoint(link.clone(), None),
        Observed::Attachment(key) => Op::Attachment(key.clone(), false),
        Observed::Rule(rule) => Op::Rule(rule.clone(), false),
    })
}
