//! What the change of an interface does to the state that hangs on it.
//!
//! The kernel drops routes and neighbours of an interface that goes down, loses an address or
//! changes its hardware address, and does not bring them back: they become doubtful, which has them
//! written or cleared once more. So do routes that name an address as their source that an interface
//! has got: it may have lost it just before. On the loss of a mere carrier the kernel keeps all, and so
//! do we. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipc_proto::{Link, LinkEvent, LinkRole, LinkState, Op, Tunnel};
use ipnet::IpNet;

use super::tables::Tables;
use crate::prefix::is_global_unicast;

/// State that the kernel may have dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    /// The interface that it hung on.
    pub(super) link: Link,
    /// Whether that hung on it at all; else it only named its addresses.
    pub(super) hung: bool,
    /// Whether the interface was such that the kernel drops that.
    pub(super) dropped: bool,
    /// Whether the interface itself is gone.
    pub(super) gone: bool,
    /// The addresses that are no longer the interface's.
    pub(super) lost: BTreeSet<IpAddr>,
    /// The addresses that are no longer the interface's, or are since now.
    pub(super) addresses: BTreeSet<IpAddr>,
}

impl Doubt {
    /// Returns what our own change makes doubtful: with the last IPv4 address of an interface the kernel
    /// drops its IPv4 routes and neighbours.
    pub(super) fn after(op: &Op) -> Option<Self> {
        let Op::LinkAddress(key, false) = op else {
            return None;
        };
        key.address.is_ipv4().then(|| Self {
            link: key.link.clone(),
            hung: true,
            dropped: false,
            gone: false,
            lost: BTreeSet::new(),
            addresses: BTreeSet::new(),
        })
    }
}

/// The interfaces as last heard of.
#[derive(Debug, Default)]
pub(super) struct Links {
    states: BTreeMap<Link, LinkState>,
    /// The indexes of those that are gone by their name and on which something hung.
    left: BTreeSet<u32>,
    /// One of those is there by another name.
    renamed: bool,
}

impl Links {
    /// Starts with all that there are.
    pub(super) fn new(links: Vec<LinkState>) -> Self {
        let states = links.into_iter().map(|state| (state.link.clone(), state));
        Self {
            states: states.collect(),
            ..Self::default()
        }
    }

    /// Takes in a change, tries again what failed on an interface that is there, and returns what
    /// has become doubtful.
    pub(super) fn take(&mut self, event: LinkEvent, tables: &mut Tables) -> Option<Doubt> {
        match event {
            LinkEvent::Gone(link) => {
                if tables.has_any_on(&link) {
                    self.left.insert(link.index);
                }
                let before = self.states.remove(&link);
                Some(Doubt {
                    link,
                    hung: true,
                    dropped: true,
                    gone: true,
                    lost: BTreeSet::new(),
                    addresses: before.as_ref().map(addresses).unwrap_or_default(),
                })
            }
            LinkEvent::Set(state) => {
                tables.retry_on(&state.link);
                let Some(before) = self.states.insert(state.link.clone(), state.clone()) else {
                    self.renamed |= self.left.remove(&state.link.index);
                    let none = LinkState {
                        addresses: Vec::new(),
                        ..state.clone()
                    };
                    return changed(&none, &state);
                };
                changed(&before, &state)
            }
        }
    }

    /// Returns what has become doubtful by changes that nobody told of before these were read.
    pub(super) fn lost_by(&self, read: &[LinkState]) -> Vec<Doubt> {
        let read: BTreeMap<&Link, &LinkState> =
            read.iter().map(|state| (&state.link, state)).collect();
        let doubtful = |before: &LinkState| match read.get(&before.link) {
            Some(state) => changed(before, state),
            None => Some(Doubt {
                link: before.link.clone(),
                hung: true,
                dropped: true,
                gone: true,
                lost: BTreeSet::new(),
                addresses: addresses(before),
            }),
        };
        self.states.values().filter_map(doubtful).collect()
    }

    /// Takes in that all that was told at a time has been heard, and returns whether something
    /// hangs on an interface that has another name now, so that it has to be read.
    pub(super) fn settle(&mut self) -> bool {
        self.left.clear();
        std::mem::take(&mut self.renamed)
    }

    /// Returns the interface.
    pub(super) fn get(&self, link: &Link) -> Option<&LinkState> {
        self.states.get(link)
    }

    /// Returns the tunnel device: one that is up, and then the newest.
    pub(super) fn tunnel(&self, tunnel: Tunnel) -> Option<&LinkState> {
        let states = self.states.values();
        let devices = states.filter(|state| state.role == LinkRole::Tunnel(tunnel));
        devices.max_by_key(|state| (state.up, state.link.index))
    }
}

/// Returns what has become doubtful by the change of an interface that is still there.
fn changed(before: &LinkState, state: &LinkState) -> Option<Doubt> {
    let (former, own) = (addresses(before), addresses(state));
    let lost = &former - &own;
    let dropped = drops(before, state);
    let mut addresses = gained(&former, state);
    addresses.extend(&lost);
    (dropped || !addresses.is_empty()).then(|| Doubt {
        link: state.link.clone(),
        hung: dropped || !lost.is_empty(),
        dropped,
        gone: false,
        lost,
        addresses,
    })
}

/// Returns the addresses that an interface has got, of those that a route may name.
fn gained(former: &BTreeSet<IpAddr>, state: &LinkState) -> BTreeSet<IpAddr> {
    let gained = &addresses(state) - former;
    gained
        .into_iter()
        .filter(|own| is_global_unicast(*own))
        .collect()
}

/// Returns whether the kernel drops what hangs on an interface when it changes so.
fn drops(before: &LinkState, state: &LinkState) -> bool {
    before.up && !state.up
        || before.mac != state.mac
        // An MTU below 1280 takes IPv6 off the interface.
        || before.mtu > state.mtu
}

fn addresses(state: &LinkState) -> BTreeSet<IpAddr> {
    state.addresses.iter().map(IpNet::addr).collect()
}

#[cfg(test)]
mod tests {
    use ipc_proto::Mac;

    use super::*;

    fn state() -> LinkState {
        LinkState {
            link: Link {
                index: 7,
                name: "vxlan.calico".parse().unwrap(),
            },
            role: LinkRole::Tunnel(Tunnel::VxlanV4),
            up: true,
            carrier: true,
            mac: Some(Mac([2; 6])),
            mtu: 1450,
            addresses: vec!["10.0.0.1/32".parse().unwrap()],
        }
    }

    #[test]
    fn only_a_loss_is_cause_for_doubt_of_what_hangs_on_an_interface() {
        let more = LinkState {
            addresses: vec![
                "10.0.0.1/32".parse().unwrap(),
                "10.0.0.2/32".parse().unwrap(),
            ],
            ..state()
        };
        let down = LinkState {
            up: false,
            carrier: false,
            ..state()
        };
        let other_mac = LinkState {
            mac: Some(Mac([4; 6])),
            ..state()
        };
        let none = LinkState {
            addresses: Vec::new(),
            ..state()
        };
        let unplugged = LinkState {
            carrier: false,
            ..state()
        };
        for (before, after, doubtful) in [
            (state(), state(), false),
            (state(), unplugged, false),
            (down.clone(), state(), false),
            (state(), more, false),
            (state(), down, true),
            (state(), other_mac, true),
            (state(), none, true),
        ] {
            let mut links = Links::new(vec![before.clone()]);
            let doubt = links.take(LinkEvent::Set(after.clone()), &mut Tables::default());
            let hung = doubt.is_some_and(|doubt| doubt.hung);
            assert_eq!(hung, doubtful, "{before:?} {after:?}");
        }
    }

    #[test]
    fn an_address_that_comes_or_goes_is_cause_for_doubt_of_routes_that_name_it() {
        let none = LinkState {
            addresses: Vec::new(),
            ..state()
        };
        for (known, after, hung) in [
            (vec![none.clone()], state(), false),
            (vec![state()], none, true),
            (Vec::new(), state(), false),
        ] {
            let mut links = Links::new(known);
            let doubt = links.take(LinkEvent::Set(after), &mut Tables::default());
            let doubt = doubt.unwrap();
            assert_eq!(doubt.addresses, ["10.0.0.1".parse().unwrap()].into());
            assert_eq!(doubt.hung, hung);
        }
    }
}
