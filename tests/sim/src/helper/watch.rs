//! The helper's table of interfaces, and what it hears besides, which no reading of them shows.

use std::{collections::BTreeSet, mem, net::IpAddr};

use ipc_proto::{Feed, LinkRole, LinkState, view::Kind};
use ipnet::IpNet;
use privhelper::{links::Unseen, policy::Policy};

use super::Helper;
use crate::{bug::Bug, kernel::Kernel};

impl Helper {
    /// Reads the interfaces, and returns what is to be told of them and of others.
    pub(crate) fn watch(&mut self, kernel: &mut Kernel, policy: &Policy) -> Option<Feed> {
        self.read_links(kernel, policy);
        self.links.drift(mem::take(&mut kernel.others));
        self.links.take_feed()
    }

    pub(super) fn read_links(&mut self, kernel: &mut Kernel, policy: &Policy) {
        // The same once more is nothing to the table.
        let quiet = kernel.falls.is_empty() && kernel.losses.is_empty() && kernel.given.is_empty();
        if quiet && kernel.devices == self.seen {
            return;
        }
        self.seen.clone_from(&kernel.devices);
        let states = kernel.links(policy);
        let falls = mem::take(&mut kernel.falls);
        let losses = mem::take(&mut kernel.losses);
        let lost = mem::take(&mut kernel.lost);
        let given = mem::take(&mut kernel.given);
        let replaced = given.iter().any(|(index, address, protocol)| {
            *protocol != policy.safe_protocol && self.hears_of(*index, *address)
        });
        let came_and_went = |(index, lost): (&u32, &BTreeSet<IpAddr>)| {
            let mut lost = lost.iter();
            self.is_workload(*index)
                && lost.any(|address| !is_kernels(*address) && !self.has(*index, *address))
        };
        if (replaced || lost.iter().any(came_and_went)) && self.bug != Some(Bug::AddressesUnheard) {
            self.links.drift([Kind::LinkAddresses].into());
        }
        for index in losses.difference(&falls).copied() {
            let after = states.iter().find(|state| state.link.index == index);
            if let (Some(before), Some(after)) = (self.links.by_index(index), after) {
                let lost = lost.get(&index);
                let is_told = |own: &IpNet| lost.is_some_and(|lost| lost.contains(&own.addr()));
                let told = before.addresses.iter().any(is_told);
                self.missed_loss |= !told && !shows_loss(before, after);
            }
        }
        self.links.update(states, &Unseen { down: falls, lost });
    }

    /// Returns whether it hears that another program puts an address in the place of this one.
    pub(crate) fn hears_of(&self, index: u32, address: IpAddr) -> bool {
        self.is_workload(index) && !is_kernels(address) && self.has(index, address)
    }

    fn is_workload(&self, index: u32) -> bool {
        let state = self.links.by_index(index);
        state.is_some_and(|state| state.role == LinkRole::Workload)
    }

    fn has(&self, index: u32, address: IpAddr) -> bool {
        let state = self.links.by_index(index);
        state.is_some_and(|state| state.addresses.iter().any(|own| own.addr() == address))
    }
}

/// The kernel gives interfaces such addresses by itself.
fn is_kernels(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Returns whether who knew an interface as `before` can tell from `after` that it lost something.
fn shows_loss(before: &LinkState, after: &LinkState) -> bool {
    let kept = |own| after.addresses.contains(own);
    before.link != after.link
        || before.up && !after.up
        || before.mac != after.mac
        || before.mtu > after.mtu
        || !before.addresses.iter().all(kept)
}
