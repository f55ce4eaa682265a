//! The interfaces of a vector. Its indexes are names of a kind: two interfaces may have the same at
//! once, which no kernel allows, so each pair of name and index has an index of its own here.

use std::collections::BTreeMap;

use ipc_proto::{IfName, Link, LinkEvent, LinkRole, LinkState};
use ipnet::IpNet;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Links {
    by_name: BTreeMap<IfName, Interface>,
    /// The pair of each index here, from 1.
    pairs: Vec<(IfName, u32)>,
}

#[derive(Clone, Debug, Default)]
struct Interface {
    index: u32,
    up: bool,
    addresses: Vec<IpNet>,
}

impl Links {
    /// Takes over a state and returns what the kernel would tell.
    pub(super) fn set_state(&mut self, name: &IfName, index: u32, up: bool) -> Vec<LinkEvent> {
        self.change(name, |interface| {
            interface.index = index;
            // No interface has index 0.
            interface.up = up && index != 0;
        })
    }

    /// As [`set_state`](Self::set_state), for addresses.
    pub(super) fn set_addresses(&mut self, name: &IfName, addresses: Vec<IpNet>) -> Vec<LinkEvent> {
        self.change(name, |interface| interface.addresses = addresses)
    }

    fn change(&mut self, name: &IfName, change: impl FnOnce(&mut Interface)) -> Vec<LinkEvent> {
        let former = self.by_name.get(name).cloned();
        let mut interface = former.clone().unwrap_or_default();
        change(&mut interface);
        let mut events = Vec::new();
        if let Some(former) = former.filter(|former| former.index != interface.index) {
            events.push(LinkEvent::Gone(self.link(name, former.index)));
        }
        events.push(LinkEvent::Set(LinkState {
            link: self.link(name, interface.index),
            role: LinkRole::Other,
            up: interface.up,
            carrier: interface.up,
            mac: None,
            mtu: 1500,
            addresses: interface.addresses.clone(),
        }));
        self.by_name.insert(name.clone(), interface);
        events
    }

    fn link(&mut self, name: &IfName, recorded: u32) -> Link {
        let pair = (name.clone(), recorded);
        let place = self.pairs.iter().position(|known| *known == pair);
        let place = place.unwrap_or_else(|| {
            self.pairs.push(pair);
            self.pairs.len() - 1
        });
        Link {
            index: u32::try_from(place + 1).unwrap(),
            name: name.clone(),
        }
    }

    /// The index that the vector means.
    pub(super) fn recorded(&self, link: &Link) -> u32 {
        let place = usize::try_from(link.index).unwrap() - 1;
        self.pairs.get(place).unwrap().1
    }

    /// The interface that an index of the vector means, if there is one now.
    pub(super) fn named_by(&self, recorded: u32) -> Option<Link> {
        let (place, (name, _)) = self.pairs.iter().enumerate().find(|(_, (name, index))| {
            *index == recorded
                && self
                    .by_name
                    .get(name)
                    .is_some_and(|interface| interface.index == recorded && interface.up)
        })?;
        Some(Link {
            index: u32::try_from(place + 1).ok()?,
            name: name.clone(),
        })
    }
}
