//! Whose flows may be tracked: what Cairn must have forgotten in a step, told from the kernel's
//! routes alone. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{
    event::{Config, Route},
    kernel::Routes,
    model::{Links, is_ours, is_workload},
};

/// Who has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// A pod here, by the index of its interface.
    Here(u32),
    /// A pod elsewhere, by whichever way.
    Elsewhere,
    /// Somebody that a former process may have known.
    Unknown,
}

pub(super) type Owners = BTreeMap<IpAddr, BTreeSet<Owner>>;

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    /// All owners of each address since its flows were last forgotten.
    owners: Owners,
    /// Whether this process has applied anything.
    started: bool,
}

impl Past {
    /// Takes in what is read, or is there after an apply.
    pub(super) fn note(&mut self, owners: &Owners) {
        for (address, owners) in owners {
            self.owners.entry(*address).or_default().extend(owners);
        }
    }

    /// Takes in who is to have addresses, before the first apply.
    pub(super) fn start(&mut self, wanted: &Owners) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        for (address, owners) in wanted {
            let here = owners.iter().any(|owner| matches!(owner, Owner::Here(_)));
            let past = self.owners.entry(*address).or_default();
            if here && past.is_empty() {
                past.insert(Owner::Unknown);
            }
        }
    }

    /// Returns those who had an address.
    pub(super) fn of(&self, address: &IpAddr) -> BTreeSet<Owner> {
        self.owners.get(address).cloned().unwrap_or_default()
    }

    /// Returns the addresses whose flows are to be forgotten if these shall have them, and no route
    /// of those that are left leads to another.
    pub(super) fn owed(&self, desired: &Owners, left: &Owners) -> BTreeSet<IpAddr> {
        let of = |owners: &'_ Owners, address| owners.get(address).cloned().unwrap_or_default();
        let past = self.owners.iter();
        past.filter(|(address, past)| {
            let desired = of(desired, address);
            !past.is_subset(&desired) && of(left, address).is_subset(&desired)
        })
        .map(|(address, _)| *address)
        .collect()
    }

    /// Takes in that the flows of addresses were forgotten.
    pub(super) fn forget(&mut self, addresses: &BTreeSet<IpAddr>, owners: &Owners) {
        for address in addresses {
            match owners.get(address) {
                Some(owners) => self.owners.insert(*address, owners.clone()),
                None => self.owners.remove(address),
            };
        }
    }
}

/// Returns whom routes of ours to single addresses lead to.
pub(super) fn owners(routes: &Routes, links: &Links, config: &Config) -> Owners {
    let mut found = Owners::new();
    let single = routes.values().filter(|route| {
        route.dst.prefix_len() == route.dst.max_prefix_len() && is_ours(route, config)
    });
    for route in single {
        if let Some(owner) = owner(route, links, config) {
            found.entry(route.dst.addr()).or_default().insert(owner);
        }
    }
    found
}

fn owner(route: &Route, links: &Links, config: &Config) -> Option<Owner> {
    if route.kind != "unicast" {
        return None;
    }
    if !is_workload(&route.dev, config) || route.gw.is_some() {
        return Some(Owner::Elsewhere);
    }
    let mut links = links.keys();
    let link = links.find(|link| link.name.as_str() == route.dev)?;
    Some(Owner::Here(link.index))
}
