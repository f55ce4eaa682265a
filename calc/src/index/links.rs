//! Interfaces, by index, name, address and tunnel.
//!
//! Names are not unique for a moment when an interface is re-created: of two, one that is up, has a
//! carrier, and then the newer one is meant.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipc_proto::{IfName, LinkEvent, LinkRole, LinkState, Tunnel};

use crate::prefix::is_global_unicast;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Links {
    by_index: BTreeMap<u32, LinkState>,
    names: BTreeSet<(IfName, u32)>,
    addresses: BTreeSet<(IpAddr, u32)>,
    tunnels: BTreeSet<(Tunnel, u32)>,
}

impl Links {
    /// Returns whether that is so already.
    pub(super) fn holds(&self, event: &LinkEvent) -> bool {
        match event {
            LinkEvent::Set(state) => self.by_index.get(&state.link.index) == Some(state),
            LinkEvent::Gone(link) => !self.by_index.contains_key(&link.index),
        }
    }

    /// The changes that leave exactly these interfaces.
    pub(crate) fn replacements(&self, states: Vec<LinkState>) -> Vec<LinkEvent> {
        let present: BTreeSet<u32> = states.iter().map(|state| state.link.index).collect();
        let gone = self
            .by_index
            .values()
            .filter(|state| !present.contains(&state.link.index));
        gone.map(|state| LinkEvent::Gone(state.link.clone()))
            .chain(states.into_iter().map(LinkEvent::Set))
            .collect()
    }

    /// Takes over a change. An interface is gone by its index: its last name may be an old one.
    pub(super) fn set(&mut self, event: LinkEvent) {
        let index = index_of(&event);
        if let Some(former) = self.by_index.remove(&index) {
            for address in &former.addresses {
                self.addresses.remove(&(address.addr(), index));
            }
            if let LinkRole::Tunnel(tunnel) = former.role {
                self.tunnels.remove(&(tunnel, index));
            }
            self.names.remove(&(former.link.name, index));
        }
        if let LinkEvent::Set(state) = event {
            for address in &state.addresses {
                self.addresses.insert((address.addr(), index));
            }
            if let LinkRole::Tunnel(tunnel) = state.role {
                self.tunnels.insert((tunnel, index));
            }
            self.names.insert((state.link.name.clone(), index));
            self.by_index.insert(index, state);
        }
    }

    /// Returns the interface with the index.
    pub(crate) fn get(&self, index: u32) -> Option<&LinkState> {
        self.by_index.get(&index)
    }

    /// The interface before a change, as it is here, and after it.
    pub(crate) fn before_and_after<'a>(
        &'a self,
        change: &'a LinkEvent,
    ) -> impl Iterator<Item = &'a LinkState> {
        let after = match change {
            LinkEvent::Set(state) => Some(state),
            LinkEvent::Gone(_) => None,
        };
        self.by_index
            .get(&index_of(change))
            .into_iter()
            .chain(after)
    }

    /// All interfaces of that name.
    pub(crate) fn all_named(&self, name: &IfName) -> impl Iterator<Item = &LinkState> {
        self.names
            .range((name.clone(), 0)..=(name.clone(), u32::MAX))
            .filter_map(|(_, index)| self.by_index.get(index))
    }

    /// Returns the interface of that name.
    pub(crate) fn named(&self, name: &IfName) -> Option<&LinkState> {
        best(self.all_named(name))
    }

    /// Returns the interface of that name if it is up.
    pub(crate) fn up(&self, name: &IfName) -> Option<&LinkState> {
        self.named(name).filter(|state| state.up)
    }

    /// Returns the tunnel device.
    pub(crate) fn tunnel(&self, tunnel: Tunnel) -> Option<&LinkState> {
        let same = self.tunnels.range((tunnel, 0)..=(tunnel, u32::MAX));
        best(same.filter_map(|(_, index)| self.by_index.get(index)))
    }

    /// Returns the interface that has the address and is neither a workload's nor a tunnel.
    pub(super) fn uplink_with(&self, address: IpAddr) -> Option<&LinkState> {
        self.addresses
            .range((address, 0)..=(address, u32::MAX))
            .filter_map(|(_, index)| self.by_index.get(index))
            .filter(|state| matches!(state.role, LinkRole::Uplink | LinkRole::Other))
            .min_by_key(|state| {
                let role = state.role != LinkRole::Uplink;
                (role, !state.up, !state.carrier, state.link.index)
            })
    }

    /// Returns whether the address is one of this host's own that others can send to (V3).
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        is_global_unicast(address)
            && self
                .addresses
                .range((address, 0)..=(address, u32::MAX))
                .next()
                .is_some()
    }

    /// This host's own addresses that others can send to, ascending (V25).
    pub(crate) fn local_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let mut last = None;
        self.addresses
            .iter()
            .map(|(address, _)| *address)
            .filter(move |address| last.replace(*address) != Some(*address))
            .filter(|address| is_global_unicast(*address))
    }
}

fn best<'a>(states: impl Iterator<Item = &'a LinkState>) -> Option<&'a LinkState> {
    states.min_by_key(|state| (!state.up, !state.carrier, Reverse(state.link.index)))
}

fn index_of(event: &LinkEvent) -> u32 {
    match event {
        LinkEvent::Set(state) => state.link.index,
        LinkEvent::Gone(link) => link.index,
    }
}
