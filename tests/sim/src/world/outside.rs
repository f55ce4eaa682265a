//! What the rest of the world does: users, other programs, cables.

use ipc_proto::{Batch, BpfRoute, IfName, LinkProfile, Mac, RouteKey, Table};
use ipnet::IpNet;
use supervisor::machine::Child;

use super::World;
use crate::{
    cluster::{self, CALIS, Doc, UPLINK, cali, name, net, own_addresses, v4},
    helper::{Arrival, Message},
    kernel::{BpfEntry, Entry, Key, Payload, Route, STRAY_MAC, Way, is_ours, owns},
    step::{How, Motion, Slot, Thing},
};

impl World {
    pub(super) fn document(&mut self, doc: Doc, variant: Option<u16>) {
        let before = self.datastore.documents.get(&doc).copied();
        if let (Doc::Workload(_), Some(before), Some(after)) = (doc, before, variant)
            && (before ^ after) & 0b11111 != 0
        {
            self.tally.add("workloads moved");
        }
        self.datastore.set(doc, variant);
    }

    pub(super) fn hang(&mut self, child: Child) {
        let hung = match child {
            Child::Helper => self.helper.as_mut().map(|helper| &mut helper.hung),
            Child::Calc => self.node.as_mut().map(|node| &mut node.hung),
        };
        if let Some(hung) = hung {
            *hung = true;
            self.tally.add("hangs");
        }
    }

    pub(super) fn lose_reply(&mut self) {
        let is_reply =
            |message: &Message| matches!(message, Message::Ack(_) | Message::Welcome(..));
        if let Some(at) = self.messages.iter().position(is_reply) {
            self.messages.remove(at);
            self.tally.add("replies lost");
        }
    }

    /// As the helper does it where too much is untold.
    pub(super) fn lose_feed(&mut self) {
        let feed = self.messages.iter_mut().find_map(|message| match message {
            Message::Feed(feed) => Some(feed),
            Message::Welcome(..)
            | Message::Ack(_)
            | Message::Flushed(_)
            | Message::Refused
            | Message::Closed => None,
        });
        if let Some(feed) = feed {
            feed.seq += 1;
            feed.events.clear();
            self.tally.add("feeds lost");
        }
    }

    pub(super) fn late(&mut self) {
        let Some(helper) = &mut self.helper else {
            return;
        };
        let ended = |batch: &Batch| !helper.body.grants(batch.lease);
        if let Some(at) = self.late.iter().position(ended) {
            let batch = self.late.remove(at);
            self.tally.add("batches late");
            helper.body.arrivals.push_front(Arrival::Late(batch));
        }
    }

    pub(super) fn late_ack(&mut self) {
        let now = self.now;
        let last = self.late_acks.pop();
        if let (Some(ack), Some(node)) = (last, self.live_node()) {
            node.late_ack(now, ack);
            self.tally.add("acknowledgements late");
        }
    }

    fn slot_name(&self, slot: Slot) -> IfName {
        match slot {
            Slot::Uplink => name(UPLINK),
            Slot::Cali(n) => cali(n),
            Slot::Tunnel(tunnel) => self.policy.tunnel(tunnel).clone(),
        }
    }

    pub(super) fn link(&mut self, slot: Slot, motion: Motion) {
        let name = self.slot_name(slot);
        let aside = match slot {
            Slot::Cali(n) => Some(cluster::name(&format!("tmp{n}"))),
            Slot::Uplink => Some(cluster::name("eth9")),
            Slot::Tunnel(_) => None,
        };
        let found = self.kernel.index(&name);
        let mac = Mac([2, 0xee, 0, 0, 0, u8::from(matches!(slot, Slot::Cali(_)))]);
        match (motion, found) {
            (Motion::Plug, None) => {
                if let Some(aside) = aside.filter(|name| self.kernel.index(name).is_none()) {
                    let index = self.kernel.add(aside, mac);
                    self.kernel.set_admin(index, false);
                }
            }
            (Motion::Name, None) => {
                if let Some(index) = aside.and_then(|name| self.kernel.index(&name)) {
                    self.kernel.rename(index, name);
                    self.kernel.set_admin(index, true);
                }
            }
            (Motion::Rename(to), Some(index)) => {
                let other = match slot {
                    Slot::Cali(_) if to < CALIS => Some(cali(to)),
                    Slot::Cali(_) | Slot::Uplink | Slot::Tunnel(_) => aside,
                };
                if other.is_some_and(|other| self.kernel.rename(index, other)) {
                    self.tally.add("links renamed");
                }
            }
            (Motion::Add, None) => self.add_link(slot, name, mac),
            (Motion::Remove, Some(index)) => {
                self.kernel.remove(index);
                self.tally.add("links removed");
            }
            (Motion::Swap, Some(index)) => {
                self.kernel.remove(index);
                self.add_link(slot, name, mac);
                self.tally.add("links re-created");
            }
            (Motion::Down, Some(index)) => {
                self.kernel.set_admin(index, false);
                self.tally.add("links down");
            }
            (Motion::Up, Some(index)) => {
                self.kernel.set_admin(index, true);
                self.own_addresses(slot, index, true, true);
            }
            (Motion::Carrier(carrier), Some(index)) => self.kernel.set_carrier(index, carrier),
            (Motion::Mac(last), Some(index)) => {
                self.kernel.set_mac(index, Mac([2, 0xee, 0, 0, 1, last]));
            }
            (Motion::Mtu(mtu), Some(index)) => {
                self.kernel.set_mtu(index, mtu);
                self.own_addresses(slot, index, true, true);
            }
            (Motion::Addresses { ipv6, present }, Some(index)) => {
                self.own_addresses(slot, index, ipv6, present);
            }
            (_, _) => {}
        }
    }

    fn add_link(&mut self, slot: Slot, name: IfName, mac: Mac) {
        // Somebody else's tunnel would not be ours.
        if !matches!(slot, Slot::Tunnel(_)) {
            let index = self.kernel.add(name, mac);
            self.own_addresses(slot, index, false, true);
            self.own_addresses(slot, index, true, true);
        }
    }

    /// The uplink gets its addresses of a family, or an interface loses those.
    fn own_addresses(&mut self, slot: Slot, index: u32, ipv6: bool, present: bool) {
        let of_family = |own: &IpNet| matches!(own, IpNet::V6(_)) == ipv6;
        if present {
            if slot == Slot::Uplink {
                for own in own_addresses().into_iter().filter(of_family) {
                    self.kernel.put_address(index, own);
                }
            }
            return;
        }
        let device = self.kernel.devices.get(&index);
        let addresses: Vec<IpNet> = device
            .into_iter()
            .flat_map(|device| device.addresses.iter().copied().filter(of_family))
            .collect();
        for own in addresses {
            self.kernel.take_address(index, &own);
        }
    }

    /// Somebody changes what is ours.
    pub(super) fn drift(&mut self, thing: Thing, how: How, which: u8) {
        let changed = match thing {
            Thing::Bpf => self.drift_bpf(how, which),
            Thing::Route => self.drift_route(how, which),
            Thing::Neighbour => self.drift_neighbour(how, which),
            Thing::Fdb => self.drift_fdb(how, which),
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
        let owned = |key, route| owns(key, route, policy, &links);
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
}

/// Returns one of some things by number, counted around.
fn nth<'a, T: 'a>(all: impl ExactSizeIterator<Item = &'a T>, which: u8) -> Option<&'a T> {
    let len = all.len().max(1);
    let mut all = all;
    all.nth(usize::from(which) % len)
}
