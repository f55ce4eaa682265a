//! What the change of an interface does to the state that hangs on it.
//!
//! The kernel drops routes and neighbours of an interface that goes down, loses an address or
//! changes its hardware address, and does not bring them back: they become doubtful, which has them
//! written or cleared once more. On the loss of a mere carrier it keeps them, and so do we. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipc_proto::{Link, LinkEvent, LinkRole, LinkState, Tunnel, TunnelDevice};
use ipnet::IpNet;

use super::tables::Tables;
use crate::delta::Actual;

/// State that the kernel may have dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    /// The interface that it hung on.
    pub(super) link: Link,
    /// Whether the interface itself is gone.
    pub(super) gone: bool,
    /// Whether the kernel has dropped routes or neighbours.
    pub(super) lost: bool,
    /// The tunnel device that the interface is or was.
    pub(super) tunnel: Option<Tunnel>,
    /// The addresses that are no longer the interface's.
    pub(super) addresses: BTreeSet<IpAddr>,
}

/// The interfaces as last heard of.
#[derive(Debug, Default)]
pub(super) struct Links(BTreeMap<Link, LinkState>);

impl Links {
    /// Starts with all that there are.
    pub(super) fn new(links: Vec<LinkState>) -> Self {
        Self(
            links
                .into_iter()
                .map(|state| (state.link.clone(), state))
                .collect(),
        )
    }

    /// Takes in a change, tries again what failed on an interface that is there, and returns what
    /// has become doubtful.
    pub(super) fn take(&mut self, event: LinkEvent, tables: &mut Tables) -> Option<Doubt> {
        match event {
            LinkEvent::Gone(link) => {
                let before = self.0.remove(&link);
                Some(Doubt {
                    link,
                    gone: true,
                    lost: true,
                    tunnel: before.as_ref().and_then(tunnel),
                    addresses: before.as_ref().map(addresses).unwrap_or_default(),
                })
            }
            LinkEvent::Set(state) => {
                tables.retry_on(&state.link);
                let before = self.0.insert(state.link.clone(), state.clone());
                let addresses = before.as_ref().map(|before| missing(before, &state));
                let addresses = addresses.unwrap_or_default();
                let lost = before.is_some_and(|before| drops(&before, &state));
                let lost = lost || !addresses.is_empty();
                let tunnel = tunnel(&state);
                (lost || tunnel.is_some()).then_some(Doubt {
                    link: state.link,
                    gone: false,
                    lost,
                    tunnel,
                    addresses,
                })
            }
        }
    }

    /// Returns what others have done to a tunnel device, by what is seen of it: the interface that is
    /// `doubtful` is or was it.
    pub(super) fn deed(&self, doubtful: &Doubt, made: Actual<&TunnelDevice>) -> Option<String> {
        let (tunnel, made) = (doubtful.tunnel?, made.known()?);
        let devices = self.0.values();
        let device = devices.filter(|state| state.role == LinkRole::Tunnel(tunnel));
        let Some(device) = device.max_by_key(|state| (state.up, state.link.index)) else {
            return Some(format!("{} was removed or renamed", doubtful.link.name));
        };
        let deed = if !device.up {
            "was set down".to_owned()
        } else if device.mac != Some(made.mac) {
            "got another MAC address".to_owned()
        } else if device.mtu != made.mtu {
            format!("got the MTU {}", device.mtu)
        } else if !own(device).eq([&IpNet::from(made.address)]) {
            "got other addresses".to_owned()
        } else {
            return None;
        };
        Some(format!("{} {deed}", device.link.name))
    }
}

/// Returns whether the kernel drops what hangs on an interface when it changes so.
fn drops(before: &LinkState, state: &LinkState) -> bool {
    before.up && !state.up
        || before.mac != state.mac
        // An MTU below 1280 takes IPv6 off the interface.
        || before.mtu > state.mtu
}

/// Returns the addresses that an interface had before and has no more.
fn missing(before: &LinkState, state: &LinkState) -> BTreeSet<IpAddr> {
    let (before, now) = (addresses(before), addresses(state));
    before.difference(&now).copied().collect()
}

fn addresses(state: &LinkState) -> BTreeSet<IpAddr> {
    state.addresses.iter().map(IpNet::addr).collect()
}

/// The addresses of a device without those that the kernel gives it.
fn own(device: &LinkState) -> impl Iterator<Item = &IpNet> {
    device.addresses.iter().filter(|net| match net.addr() {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    })
}

fn tunnel(state: &LinkState) -> Option<Tunnel> {
    match state.role {
        LinkRole::Tunnel(tunnel) => Some(tunnel),
        LinkRole::Workload | LinkRole::Uplink | LinkRole::Other => None,
    }
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
    fn only_a_loss_is_cause_for_doubt() {
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
            let lost = doubt.is_some_and(|doubt| doubt.lost);
            assert_eq!(lost, doubtful, "{before:?} {after:?}");
        }
    }

    #[test]
    fn a_tunnel_device_that_is_gone_is_known_by_its_link() {
        let mut links = Links::new(vec![state()]);
        let gone = LinkEvent::Gone(state().link);
        let doubt = links.take(gone.clone(), &mut Tables::default());
        assert_eq!(
            doubt.and_then(|doubt| doubt.tunnel),
            Some(Tunnel::VxlanV4),
            "as it was"
        );
        let again = links.take(gone, &mut Tables::default());
        assert_eq!(again.and_then(|doubt| doubt.tunnel), None);
    }
}
