//! What the rest of the world does: users, other programs, cables.

use ipc_proto::{Batch, IfName, Mac};
use ipnet::IpNet;
use supervisor::machine::Child;

use super::World;
use crate::{
    cluster::{self, CALIS, Doc, UPLINK, cali, name, own_addresses},
    helper::{Arrival, Message},
    kernel::Origin,
    step::{Motion, Slot},
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
                    self.kernel.put_address(index, own, Origin::USUAL);
                }
            }
            return;
        }
        let device = self.kernel.devices.get(&index);
        let addresses: Vec<IpNet> = device
            .into_iter()
            .flat_map(|device| device.addresses.keys().copied().filter(of_family))
            .collect();
        for own in addresses {
            self.kernel.take_address(index, &own);
        }
    }
}
