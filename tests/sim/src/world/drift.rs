//! What others do to what is ours, and beside it.

use ipc_proto::{BpfRoute, LinkProfile, Mac, RouteKey, Table};
use ipnet::IpNet;

use super::World;
use crate::{
    cluster::{cali, net, v4, v6},
    kernel::{BpfEntry, Entry, Key, Origin, Payload, Route, STRAY_MAC, Way, is_ours, owns},
    peers::BIRD,
    step::{How, Thing},
};

impl World {
    /// Somebody changes what is ours.
    pub(super) fn drift(&mut self, thing: Thing, how: How, which: u8) {
        let changed = match thing {
            Thing::Bpf => self.drift_bpf(how, which),
            Thing::Route => self.drift_route(how, which),
            Thing::Neighbour => self.drift_neighbour(how, which),
            Thing::Fdb => self.drift_fdb(how, which),
            Thing::Address => self.drift_address(how, which),
            Thing::Settings => {
                let index = nth(self.kernel.settings.keys(), which).copied();
                index.map(|index| {
                    let former = self.kernel.settings.remove(&index);
                    if how == How::Alter && former != Some(LinkProfile::Uplink) {
                        self.kernel.settings.insert(index, LinkProfile::Uplink);
                    }
                    Key::Settings(index)
                })
            }
        };
        if let Some(key) = changed {
            if matches!(key, Key::Bpf(_)) {
                self.watchman.fault();
            }
            self.kernel.disturbed.keys.insert(key.clone());
            match key.told() {
                Some(kind) => drop(self.kernel.others.insert(kind)),
                // Of an address the messages tell, or do not.
                None if matches!(key, Key::Address(..)) => {}
                None => self.drifted = true,
            }
            self.kernel.drifted.insert(key);
            self.tally.add("drift");
        }
    }

    fn drift_bpf(&mut self, how: How, which: u8) -> Option<Key> {
        let bpf = &mut self.kernel.bpf;
        let prefix = match how {
            How::Stray => {
                let stray = net(v4(10, 77, which, 0), 24);
                let room = bpf.len() < self.kernel.bpf_max_entries;
                let entry = BpfEntry {
                    flags: BpfRoute::default().flags.0,
                    payload: Payload::None,
                };
                if !room || bpf.insert(stray, entry).is_some() {
                    return None;
                }
                stray
            }
            How::Remove => {
                let prefix = *nth(bpf.keys(), which)?;
                bpf.remove(&prefix);
                prefix
            }
            How::Alter | How::Double => {
                let prefix = *nth(bpf.keys(), which)?;
                bpf.get_mut(&prefix)?.flags ^= 1 << (which % 16);
                prefix
            }
        };
        Some(Key::Bpf(prefix))
    }

    fn drift_route(&mut self, how: How, which: u8) -> Option<Key> {
        let policy = &self.policy;
        let kernel = &mut self.kernel;
        if how == How::Stray {
            let cali = kernel.index(&cali(which));
            let (protocol, way) = match cali {
                // On a workload's link any route is ours.
                Some(index) if which.is_multiple_of(2) => {
                    let (via, onlink) = (None, false);
                    (4, Way::Out { index, via, onlink })
                }
                Some(_) | None => (80, Way::Blackhole),
            };
            let key = RouteKey::new(Table::Main, net(v4(10, 78, which, 0), 24), 0);
            let (source, mtu) = (None, None);
            let route = Route {
                protocol,
                way,
                source,
                mtu,
            };
            kernel.routes.insert(key.clone(), vec![route]);
            return Some(Key::Route(key));
        }
        let links = kernel.table(policy);
        // BIRD keeps its own to itself.
        let owned = |key, route: &Route| route.protocol != BIRD && owns(key, route, policy, &links);
        let ours = kernel
            .routes
            .iter()
            .filter(|(key, routes)| routes.iter().all(|route| owned(key, route)));
        let ours: Vec<RouteKey> = ours.map(|(key, _)| key.clone()).collect();
        let key = nth(ours.iter(), which)?.clone();
        let routes = kernel.routes.get_mut(&key)?;
        let other = Route {
            protocol: 80,
            way: Way::Blackhole,
            source: None,
            mtu: Some(1300),
        };
        match how {
            How::Remove => drop(kernel.routes.remove(&key)),
            How::Alter => *routes = vec![other],
            How::Double | How::Stray => routes.push(other),
        }
        Some(Key::Route(key))
    }

    fn drift_neighbour(&mut self, how: How, which: u8) -> Option<Key> {
        if how == How::Stray {
            let index = self.kernel.index(&cali(which))?;
            let key = (index, v4(10, 79, 0, which));
            let (to, permanent) = (STRAY_MAC, true);
            self.kernel.neighbours.insert(key, Entry { to, permanent });
            return Some(Key::Neighbour(key.0, key.1));
        }
        let links = self.kernel.links(&self.policy);
        let ours = self
            .kernel
            .neighbours
            .iter()
            .filter(|((index, address), entry)| {
                let state = links.iter().find(|state| state.link.index == *index);
                entry.permanent && state.is_some_and(|state| is_ours(state.role, address.is_ipv6()))
            });
        let ours: Vec<_> = ours.map(|(key, _)| *key).collect();
        let key = *nth(ours.iter(), which)?;
        let entry = self.kernel.neighbours.get_mut(&key)?;
        match how {
            How::Remove => drop(self.kernel.neighbours.remove(&key)),
            // Somebody has it learned.
            How::Double => entry.permanent = false,
            How::Alter | How::Stray => entry.to = STRAY_MAC,
        }
        Some(Key::Neighbour(key.0, key.1))
    }

    fn drift_fdb(&mut self, how: How, which: u8) -> Option<Key> {
        let entry = |permanent| Entry {
            to: v4(192, 0, 2, 99),
            permanent,
        };
        let fdb = &mut self.kernel.fdb;
        if how == How::Stray {
            let tunnel = self.policy.tunnel_v4.clone();
            let index = self.kernel.index(&tunnel)?;
            let key = (index, Mac([2, 0xbd, 0, 0, 0, which]));
            self.kernel.fdb.insert(key, entry(true));
            return Some(Key::Fdb(key.0, key.1));
        }
        let key = *nth(fdb.keys(), which)?;
        match how {
            How::Remove => drop(fdb.remove(&key)),
            How::Double => drop(fdb.insert(key, entry(false))),
            How::Alter | How::Stray => drop(fdb.insert(key, entry(true))),
        }
        Some(Key::Fdb(key.0, key.1))
    }

    fn drift_address(&mut self, how: How, which: u8) -> Option<Key> {
        let index = self.kernel.index(&cali(which))?;
        let device = self.kernel.devices.get(&index)?;
        let safe = self.policy.safe_protocol;
        let ours = device.addresses.iter();
        let ours = ours.filter(|(_, origin)| origin.protocol == safe);
        let ours: Vec<IpNet> = ours.map(|(own, _)| *own).collect();
        let own = match how {
            How::Remove => {
                let own = *nth(ours.iter(), which)?;
                self.kernel.take_address(index, &own);
                return Some(Key::Address(index, own.addr()));
            }
            How::Alter => *nth(ours.iter(), which)?,
            How::Stray if which.is_multiple_of(2) => v4(169, 254, 1, which).into(),
            How::Stray => v6(201, which).into(),
            // The same one, where IPv4 can have it twice.
            How::Double => net(v4(169, 254, 1, 1), 24),
        };
        // Some say who they are, so that theirs is never taken for that of an agent in our place.
        let origin = Origin {
            protocol: [0, 0, 4].get(usize::from(which / 4 % 3)).copied()?,
            of_link: true,
        };
        // What comes is not heard, nor that one has changed of which nobody has heard.
        let is_heard = how == How::Alter && self.helper.as_ref()?.body.hears_of(index, own.addr());
        if !self.kernel.put_address(index, own, origin) {
            return None;
        }
        self.drifted |= !is_heard;
        if origin.protocol != 0 || how == How::Double {
            self.tally.add("addresses of others on workloads' links");
        }
        Some(Key::Address(index, own.addr()))
    }
}

/// Returns one of some things by number, counted around.
pub(super) fn nth<'a, T: 'a>(
    all: impl ExactSizeIterator<Item = &'a T>,
    which: u8,
) -> Option<&'a T> {
    let len = all.len().max(1);
    let mut all = all;
    all.nth(usize::from(which) % len)
}
