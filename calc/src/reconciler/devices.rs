//! The tunnel devices as they are seen, beside what was made of them: what others have done to them.
//!
//! It is looked at when all that the kernel tells at a time has been heard, and never while a device
//! is being made: what is seen of it then is half of it. Pure.

use std::{collections::BTreeMap, net::IpAddr, time::Instant};

use ipc_proto::{IfName, LinkEvent, LinkRole, LinkState, Op, Tunnel, TunnelDevice};
use ipnet::IpNet;

use super::{Peer, Reconciler, links::Links, plan::Sent};

const ALL: [Tunnel; 2] = [Tunnel::VxlanV4, Tunnel::VxlanV6];

/// What has become of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// As far as it is seen, it is as it was made.
    Right,
    /// So is this one, but it is another than before, of which not all is seen.
    Replaced,
    /// Others have done this to it.
    Undone(String),
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// What each was last called.
    names: BTreeMap<Tunnel, IfName>,
    /// Those to look at, and whether an interface that was one is gone.
    suspects: BTreeMap<Tunnel, bool>,
}

impl Devices {
    /// Takes in a change that `before` does not include.
    pub(super) fn hear(&mut self, event: &LinkEvent, before: &Links) {
        match event {
            LinkEvent::Set(state) => {
                if let LinkRole::Tunnel(tunnel) = state.role {
                    self.names.insert(tunnel, state.link.name.clone());
                    self.suspects.entry(tunnel).or_default();
                }
            }
            LinkEvent::Gone(link) => match before.get(link).map(|state| state.role) {
                Some(LinkRole::Tunnel(tunnel)) => drop(self.suspects.insert(tunnel, true)),
                Some(LinkRole::Workload | LinkRole::Uplink | LinkRole::Other) => {}
                // It came and went unseen, and may have been any.
                None => {
                    for tunnel in ALL {
                        self.suspects.entry(tunnel).or_default();
                    }
                }
            },
        }
    }

    /// Returns those to look at, and whether an interface that was one is gone, and forgets them.
    pub(super) fn take_suspects(&mut self) -> BTreeMap<Tunnel, bool> {
        std::mem::take(&mut self.suspects)
    }

    /// Returns whether there is one to look at.
    pub(super) fn is_suspicious(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Compares what is seen of a device with what was made.
    pub(super) fn compare(
        &self,
        (tunnel, gone): (Tunnel, bool),
        made: &TunnelDevice,
        links: &Links,
    ) -> Finding {
        let named = |deed: &str| {
            let name = self.names.get(&tunnel).map_or("it", IfName::as_str);
            Finding::Undone(format!("{name} {deed}"))
        };
        let Some(device) = links.tunnel(tunnel) else {
            return named("was removed or renamed");
        };
        if !device.up {
            named("was set down")
        } else if device.mac != Some(made.mac) {
            named("got another MAC address")
        } else if device.mtu != made.mtu {
            named(&format!("got the MTU {}", device.mtu))
        } else if !own(device).eq([&IpNet::from(made.address)]) {
            named("got other addresses")
        } else if gone {
            Finding::Replaced
        } else {
            Finding::Right
        }
    }
}

/// The addresses of a device without those that the kernel gives it.
fn own(device: &LinkState) -> impl Iterator<Item = &IpNet> {
    device.addresses.iter().filter(|net| match net.addr() {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    })
}

impl Reconciler {
    /// Takes in all interfaces as a reading has found them, with the devices: what was heard is older.
    pub(super) fn take_over_links(&mut self, links: Links) {
        self.links = links;
        self.devices.take_suspects();
        let Self {
            devices,
            links,
            tables,
            ..
        } = self;
        for tunnel in ALL {
            let suspect = (tunnel, false);
            tables.name_deed(tunnel, |made| devices.compare(suspect, made, links));
        }
    }

    /// Looks at what all that was heard of interfaces means.
    pub(super) fn review_links(&mut self, now: Instant) {
        // What hangs on a renamed interface is first cleared, as far as it can be told apart.
        self.reread |= self.links.settle();
        if !self.devices.is_suspicious() {
            return;
        }
        if let Peer::Busy(flight) = &self.peer
            && flight
                .batches
                .iter()
                .flat_map(Sent::ops)
                .any(|op| matches!(op, Op::TunnelDevice(..)))
        {
            return;
        }
        for suspect in self.devices.take_suspects() {
            let (tunnel, _) = suspect;
            let Self {
                devices,
                links,
                tables,
                ..
            } = self;
            tables.look(now, tunnel, |made| devices.compare(suspect, made, links));
        }
    }
}
