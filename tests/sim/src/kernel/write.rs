//! The changes that a helper with the right to make them can make.

use std::net::IpAddr;

use ipc_proto::{BpfRoute, BpfTarget, KernelRoute, Op, RouteKey, RouteKind, Tunnel, TunnelDevice};
use ipnet::IpNet;
use privhelper::{links::Links, policy::Policy};

use super::{
    BpfEntry, EEXIST, EINVAL, ENETDOWN, ENETUNREACH, ENODEV, ENOSPC, EOPNOTSUPP, Entry, Kernel,
    Key, Origin, Payload, Route, Vxlan, Way, lead, owns,
};

type Outcome = Result<(), i32>;

impl Kernel {
    /// Makes an op true, or returns the `errno`. Interfaces are meant by their index alone, whatever
    /// their names are by now; whose a route is, is told from what its writer knows of them.
    pub(crate) fn write(&mut self, op: &Op, policy: &Policy, links: &Links) -> Outcome {
        match op {
            Op::LinkSettings(_, None) => {}
            Op::LinkSettings(link, Some(profile)) => {
                self.exists(link.index)?;
                self.settings.insert(link.index, *profile);
            }
            Op::TunnelDevice(tunnel, None) => {
                if let Some(index) = self.index(policy.tunnel(*tunnel)) {
                    self.remove(index);
                }
            }
            Op::TunnelDevice(tunnel, Some(device)) => self.set_tunnel(*tunnel, device, policy)?,
            Op::Neighbour(key, mac) => {
                self.exists(key.link.index)?;
                let key = (key.link.index, key.address);
                match mac {
                    Some(mac) => self.neighbours.insert(key, permanent(*mac)),
                    None => self.neighbours.remove(&key),
                };
            }
            Op::Fdb(key, to) => {
                self.exists(key.link.index)?;
                let key = (key.link.index, key.mac);
                match to {
                    Some(to) => self.fdb.insert(key, permanent(*to)),
                    None => self.fdb.remove(&key),
                };
            }
            Op::BpfRoute(prefix, Some(route)) => self.set_bpf(*prefix, route)?,
            Op::BpfRoute(prefix, None) => drop(self.bpf.remove(prefix)),
            Op::KernelRoute(key, Some(route)) => self.set_route(key, route, policy, links)?,
            Op::KernelRoute(key, None) => self.clear_route(key, policy, links),
            Op::LinkAddress(key, true) => self.set_link_address(key, policy)?,
            Op::LinkAddress(key, false) => {
                self.exists(key.link.index)?;
                self.take_address(key.link.index, &key.address.into());
                // Nobody asks whether it was the last one.
                self.disturbed.links.insert(key.link.index);
            }
            Op::Rule(..)
            | Op::Attachment(..)
            | Op::Endpoint(..)
            | Op::Vtep(..)
            | Op::ProgramSettings(_)
            | Op::Masquerade(_) => return Err(EOPNOTSUPP),
            Op::FlowFlush(address) => drop(self.flows.remove(address)),
        }
        // Where a route leads, packets flow.
        if let Some((address, link)) = lead(op) {
            self.flows.entry(address).or_default().insert(link);
        }
        Ok(())
    }

    /// Returns whether an op is true already, to who knows these interfaces.
    pub(crate) fn is_so(&self, op: &Op, policy: &Policy, links: &Links) -> bool {
        match op {
            Op::LinkSettings(link, profile) => {
                profile.is_none() || self.settings.get(&link.index) == profile.as_ref()
            }
            Op::TunnelDevice(tunnel, device) => {
                let index = self.index(policy.tunnel(*tunnel));
                match (index, device) {
                    (None, None) => true,
                    (Some(index), Some(device)) => self.is_tunnel(index, device),
                    (Some(_), None) | (None, Some(_)) => false,
                }
            }
            Op::Neighbour(key, mac) => {
                let found = self.neighbours.get(&(key.link.index, key.address));
                found == mac.map(permanent).as_ref()
            }
            Op::Fdb(key, to) => {
                self.fdb.get(&(key.link.index, key.mac)) == to.map(permanent).as_ref()
            }
            Op::BpfRoute(prefix, route) => {
                self.bpf.get(prefix) == route.as_ref().map(bpf_entry).as_ref()
            }
            Op::KernelRoute(key, route) => {
                let found = self.routes.get(key).map_or(&[][..], Vec::as_slice);
                match route {
                    Some(route) => found == [kernel_route(route, policy)],
                    None => !found.iter().any(|found| owns(key, found, policy, links)),
                }
            }
            Op::LinkAddress(key, set) => self.is_link_address(key, *set, policy),
            Op::Rule(..)
            | Op::Attachment(..)
            | Op::Endpoint(..)
            | Op::Vtep(..)
            | Op::ProgramSettings(_)
            | Op::Masquerade(_)
            | Op::FlowFlush(_) => false,
        }
    }

    fn exists(&self, index: u32) -> Outcome {
        self.devices
            .contains_key(&index)
            .then_some(())
            .ok_or(ENODEV)
    }

    fn set_bpf(&mut self, prefix: IpNet, route: &BpfRoute) -> Outcome {
        let ipv6 = |prefix: &IpNet| matches!(prefix, IpNet::V6(_));
        let mut map = self.bpf.keys();
        let map = map.by_ref().filter(|other| ipv6(other) == ipv6(&prefix));
        if !self.bpf.contains_key(&prefix) && map.count() >= self.bpf_max_entries {
            return Err(ENOSPC);
        }
        self.bpf.insert(prefix, bpf_entry(route));
        Ok(())
    }

    /// Sets the one route of a key, in place of those of ours that have it.
    fn set_route(
        &mut self,
        key: &RouteKey,
        route: &KernelRoute,
        policy: &Policy,
        links: &Links,
    ) -> Outcome {
        if !matches!(route.kind, RouteKind::Unicast(_) | RouteKind::Blackhole) {
            return Err(EOPNOTSUPP);
        }
        let route = kernel_route(route, policy);
        if let Way::Out { index, via, onlink } = &route.way {
            let device = self.devices.get(index).ok_or(ENODEV)?;
            if !device.admin {
                return Err(ENETDOWN);
            }
            let mut own = device.addresses.keys();
            if via.is_some_and(|via| !onlink && !own.any(|own| own.contains(&via))) {
                return Err(ENETUNREACH);
            }
        }
        if route.source.is_some_and(|source| !self.is_own(source)) {
            return Err(EINVAL);
        }
        let mut former = self.routes.get(key).into_iter().flatten();
        if former.any(|former| !owns(key, former, policy, links)) {
            return Err(EEXIST);
        }
        self.routes.insert(key.clone(), vec![route]);
        Ok(())
    }

    /// Clears the routes of a key that are ours.
    fn clear_route(&mut self, key: &RouteKey, policy: &Policy, links: &Links) {
        let Some(mut routes) = self.routes.remove(key) else {
            return;
        };
        routes.retain(|route| !owns(key, route, policy, links));
        if !routes.is_empty() {
            self.routes.insert(key.clone(), routes);
        }
    }

    pub(super) fn is_own(&self, address: IpAddr) -> bool {
        let mut devices = self.devices.values();
        devices.any(|device| device.addresses.keys().any(|own| own.addr() == address))
    }

    /// Changes what can be changed in place, or else makes the device again.
    fn set_tunnel(&mut self, tunnel: Tunnel, wanted: &TunnelDevice, policy: &Policy) -> Outcome {
        let name = policy.tunnel(tunnel);
        self.exists(wanted.parent.index)?;
        let fixed = Vxlan {
            vni: wanted.vni,
            port: wanted.port,
            local: wanted.local,
            parent: wanted.parent.index,
        };
        let former = self.index(name);
        let kept = former.filter(|index| {
            let device = self.devices.get(index);
            device.is_some_and(|device| device.vxlan == Some(fixed))
        });
        let index = kept.unwrap_or_else(|| {
            if let Some(index) = former {
                self.remove(index);
            }
            self.add(name.clone(), wanted.mac)
        });
        if let Some(device) = self.devices.get_mut(&index) {
            device.vxlan = Some(fixed);
        }
        self.set_mac(index, wanted.mac);
        self.set_mtu(index, wanted.mtu);
        self.set_admin(index, true);
        let own = IpNet::from(wanted.address);
        let device = self.devices.get(&index);
        let others: Vec<IpNet> = device
            .into_iter()
            .flat_map(|device| device.addresses.keys())
            .filter(|other| **other != own)
            .copied()
            .collect();
        if !self.put_address(index, own, Origin::USUAL) {
            return Err(EINVAL);
        }
        for other in others {
            self.take_address(index, &other);
        }
        self.disturbed.keys.insert(Key::Tunnel(tunnel));
        Ok(())
    }

    fn is_tunnel(&self, index: u32, wanted: &TunnelDevice) -> bool {
        let fixed = Vxlan {
            vni: wanted.vni,
            port: wanted.port,
            local: wanted.local,
            parent: wanted.parent.index,
        };
        self.devices.get(&index).is_some_and(|device| {
            device.admin
                && device.mac == wanted.mac
                && device.mtu == wanted.mtu
                && device.vxlan == Some(fixed)
                && device.addresses.keys().eq([&IpNet::from(wanted.address)])
        })
    }
}

fn permanent<T>(to: T) -> Entry<T> {
    Entry {
        to,
        permanent: true,
    }
}

fn bpf_entry(route: &BpfRoute) -> BpfEntry {
    BpfEntry {
        flags: route.flags.0,
        payload: match &route.target {
            BpfTarget::None => Payload::None,
            BpfTarget::NextHop(hop) => Payload::Hop(*hop),
            BpfTarget::Link(link) => Payload::Index(link.index),
        },
    }
}

/// Lays out a route of the two kinds that there are.
fn kernel_route(route: &KernelRoute, policy: &Policy) -> Route {
    Route {
        // A request for none is refused before it comes here.
        protocol: policy.protocol(route.protocol).unwrap_or_default(),
        way: match &route.kind {
            RouteKind::Unicast(hop) => Way::Out {
                index: hop.link.index,
                via: hop.via,
                onlink: hop.onlink,
            },
            RouteKind::Multipath(_)
            | RouteKind::Local(_)
            | RouteKind::Blackhole
            | RouteKind::Prohibit
            | RouteKind::Unreachable
            | RouteKind::Throw => Way::Blackhole,
        },
        source: route.source,
        mtu: route.mtu,
    }
}
