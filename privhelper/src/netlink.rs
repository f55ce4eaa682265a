//! Kernel routes, routing rules, neighbours, forwarding entries and tunnel devices, by netlink.
//!
//! Only what is ours is replaced, cleared and reported; another program's route under a key that is
//! asked for is an error that names it.

mod attributes;
mod link_address;
mod made;
mod neighbour;
mod others;
mod route;
mod routes;
mod rule;
pub(crate) mod socket;
mod tunnel;

use std::{collections::BTreeSet, io, net::IpAddr, sync::Arc};

use ipc_proto::{
    FdbKey, KernelRoute, Link, LinkAddressKey, LinkRole, Mac, NeighbourKey, Observed, OpError,
    Rivals, RouteKey, Rule, Tunnel, TunnelDevice,
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    address::AddressMessage,
    link::{LinkAttribute, LinkMessage},
};
use nix::errno::Errno;

pub use self::others::Others;
use self::{
    made::Made,
    routes::{Kernel, Routes},
    socket::{Refused, Request, Requests},
    tunnel::ReadBack,
};
use crate::{dataplane::errno_number, links::Links, policy::Policy, watch::Watched};

/// Returns whether what is to be made is there.
fn is_taken(outcome: &Result<(), OpError>) -> bool {
    let taken = errno_number(Errno::EEXIST);
    matches!(outcome, Err(OpError::Kernel { errno, .. }) if *errno == taken)
}

/// Something of the kernel's cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {what}: {errno}")]
pub struct ReadError {
    /// What.
    what: &'static str,
    /// What the kernel said.
    errno: Errno,
}

fn reading(what: &'static str) -> impl Fn(Errno) -> ReadError {
    move |errno| ReadError { what, errno }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Netlink {
    requests: Requests,
    routes: Routes,
    made: Made,
    policy: Arc<Policy>,
}

impl Netlink {
    /// Opens a socket.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn open(policy: Arc<Policy>) -> io::Result<Self> {
        Ok(Self {
            requests: Requests::open()?,
            routes: Routes::default(),
            made: Made::default(),
            policy,
        })
    }

    /// Listens to what others change from now on.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn others(&self, watched: Watched) -> io::Result<Others> {
        Others::open(Arc::clone(&self.policy), watched, self.made.clone())
    }

    /// Sets and clears routes in order and returns what became of each.
    pub fn routes(
        &mut self,
        changes: &[(&RouteKey, Option<&KernelRoute>)],
        links: &Links,
    ) -> Vec<Result<(), OpError>> {
        let mut kernel = Kernel {
            requests: &mut self.requests,
            policy: &self.policy,
            links,
        };
        self.routes.apply(&mut kernel, changes)
    }

    /// Makes a rule exist or be absent.
    ///
    /// # Errors
    ///
    /// What the kernel said, or that another program's rule is in the way.
    pub fn rule(&mut self, rule: &Rule, wanted: bool) -> Result<(), OpError> {
        rule::set(&mut self.requests, &self.policy, rule, wanted)
    }

    /// Sets and clears neighbours in order and returns what became of each.
    pub fn neighbours(
        &mut self,
        changes: &[(&NeighbourKey, Option<Mac>)],
    ) -> Vec<Result<(), OpError>> {
        let message = |(key, mac): &(&NeighbourKey, Option<Mac>)| {
            Request::entry(neighbour::neighbour(key, *mac), mac.is_some())
        };
        let requests: Vec<Request> = changes.iter().map(message).collect();
        self.entries(&requests, "NEIGH", |at| {
            let (key, mac) = changes.get(at)?;
            Some((mac.is_some(), format!("{} dev {}", key.address, key.link)))
        })
    }

    /// Sets and clears forwarding entries in order and returns what became of each.
    pub fn fdb(&mut self, changes: &[(&FdbKey, Option<IpAddr>)]) -> Vec<Result<(), OpError>> {
        let message = |(key, destination): &(&FdbKey, Option<IpAddr>)| {
            Request::entry(neighbour::fdb(key, *destination), destination.is_some())
        };
        let requests: Vec<Request> = changes.iter().map(message).collect();
        self.made.write(changes);
        self.entries(&requests, "NEIGH", |at| {
            let (key, destination) = changes.get(at)?;
            let name = format!("{} dev {}", key.mac, key.link);
            Some((destination.is_some(), name))
        })
    }

    /// Sets and clears addresses of workloads' links, and returns what became of each. What another
    /// program has there, with another length or scope, is left alone.
    pub fn link_addresses(
        &mut self,
        changes: &[(&LinkAddressKey, bool)],
        links: &Links,
    ) -> Vec<Result<(), OpError>> {
        let request = |(key, set): &(&LinkAddressKey, bool)| {
            let message = link_address::message(key, &self.policy);
            if *set {
                Request::create(&RouteNetlinkMessage::NewAddress(message))
            } else {
                Request::change(&RouteNetlinkMessage::DelAddress(message))
            }
        };
        let requests: Vec<Request> = changes.iter().map(request).collect();
        let mut outcomes = self.entries(&requests, "ADDR", |at| {
            let (key, set) = changes.get(at)?;
            Some((*set, format!("{} dev {}", key.address, key.link)))
        });
        let taken: Vec<usize> = (0..)
            .zip(&outcomes)
            .filter(|(_, outcome)| is_taken(outcome))
            .map(|(at, _)| at)
            .collect();
        if taken.is_empty() {
            return outcomes;
        }
        let mut replaceable = BTreeSet::new();
        let read = self.read_link_addresses(links, &mut |item| {
            if let Observed::LinkAddress(key, _) = item {
                replaceable.insert(key);
            }
        });
        if read.is_err() {
            replaceable.clear();
        }
        for at in taken {
            let (Some((key, _)), Some(outcome)) = (changes.get(at), outcomes.get_mut(at)) else {
                continue;
            };
            let name = format!("{} dev {}", key.address, key.link);
            *outcome = if replaceable.contains(*key) {
                let message = link_address::message(key, &self.policy);
                let request = Request::set(&RouteNetlinkMessage::NewAddress(message));
                let sent = self.entries(&[request], "ADDR", |_| Some((true, name.clone())));
                sent.into_iter().next().unwrap_or(Ok(()))
            } else {
                Err(OpError::Kernel {
                    call: format!(
                        "RTM_NEWADDR {name} (another program has this address there, with another \
                         length or scope; it is left alone: remove it, or configure another one)"
                    ),
                    errno: errno_number(Errno::EEXIST),
                })
            };
        }
        outcomes
    }

    fn entries(
        &mut self,
        requests: &[Request],
        object: &str,
        name: impl Fn(usize) -> Option<(bool, String)>,
    ) -> Vec<Result<(), OpError>> {
        let sent = self.requests.send(requests).into_iter().zip(requests);
        sent.enumerate()
            .map(|(at, (outcome, request))| match outcome {
                Err(refused) if request.deletes() && refused.is_absence() => Ok(()),
                Err(refused) => Err(kernel(
                    &match name(at) {
                        Some((true, name)) => format!("RTM_NEW{object} {name}"),
                        Some((false, name)) => format!("RTM_DEL{object} {name}"),
                        None => String::new(),
                    },
                    &refused,
                )),
                Ok(()) => Ok(()),
            })
            .collect()
    }

    /// Makes a tunnel device as it shall be, or removes it.
    ///
    /// # Errors
    ///
    /// What the kernel said first.
    pub fn tunnel(&mut self, tunnel: Tunnel, device: Option<&TunnelDevice>) -> Result<(), OpError> {
        let name = self.policy.tunnel(tunnel).clone();
        match device {
            Some(device) => tunnel::set(&mut self.requests, &name, device),
            None => tunnel::clear(&mut self.requests, &name),
        }
    }

    /// Returns whether the interface still has this index and name.
    ///
    /// # Errors
    ///
    /// [`OpError::StaleLink`], or what the kernel said.
    pub fn verify(&mut self, link: &Link) -> Result<(), OpError> {
        let stale = || OpError::StaleLink(link.clone());
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        match self.requests.get(&RouteNetlinkMessage::GetLink(message)) {
            Ok(RouteNetlinkMessage::NewLink(found)) => found
                .attributes
                .contains(&LinkAttribute::IfName(link.name.to_string()))
                .then_some(())
                .ok_or_else(stale),
            Ok(_) | Err(Errno::ENODEV) => Err(stale()),
            Err(errno) => Err(kernel(&format!("RTM_GETLINK {link}"), &errno.into())),
        }
    }

    /// Gives all that is ours but routes to `sink`.
    ///
    /// # Errors
    ///
    /// If something cannot be read.
    pub fn snapshot(
        &mut self,
        links: &Links,
        sink: &mut impl FnMut(Observed),
    ) -> Result<(), ReadError> {
        for (tunnel, family) in [(Tunnel::VxlanV4, false), (Tunnel::VxlanV6, true)] {
            let name = self.policy.tunnel(tunnel).clone();
            let device = tunnel::read(&mut self.requests, &name, links)
                .map_err(reading("the tunnel devices"))?;
            match device {
                ReadBack::Absent => {}
                ReadBack::Otherwise => sink(Observed::TunnelDevice(tunnel, None)),
                ReadBack::Device(device) => sink(Observed::TunnelDevice(tunnel, Some(device))),
            }
            let message = RouteNetlinkMessage::GetNeighbour(neighbour::dump(family));
            self.read_entries(&message, links, sink)
                .map_err(reading("the neighbours"))?;
        }
        for state in links.iter() {
            if let LinkRole::Tunnel(_) = state.role {
                let dump = neighbour::dump_fdb(&state.link);
                let message = RouteNetlinkMessage::GetNeighbour(dump);
                let mut read = Vec::new();
                let mut keep = |item| {
                    if let Observed::Fdb(key, Some(to)) = &item {
                        read.push((key.mac, *to));
                    }
                    sink(item);
                };
                match self.read_entries(&message, links, &mut keep) {
                    // The interface is gone meanwhile.
                    Err(Errno::ENODEV) => {}
                    other => other.map_err(reading("the forwarding entries"))?,
                }
                self.made.read(state.link.index, read);
            }
        }
        self.read_link_addresses(links, sink)
            .map_err(reading("the addresses"))?;
        rule::read(&mut self.requests, &self.policy, sink).map_err(reading("the rules"))
    }

    /// Gives all routes that are ours to `sink`, and returns what of others may count in their place.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub fn read_routes(
        &mut self,
        links: &Links,
        sink: &mut impl FnMut(Observed),
    ) -> Result<Rivals, ReadError> {
        let mut kernel = Kernel {
            requests: &mut self.requests,
            policy: &self.policy,
            links,
        };
        self.routes
            .snapshot(&mut kernel, sink)
            .map_err(reading("the routes"))
    }

    fn read_link_addresses(
        &mut self,
        links: &Links,
        sink: &mut impl FnMut(Observed),
    ) -> Result<(), Errno> {
        let message = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let found = self.requests.dump(&message, |message| {
            let RouteNetlinkMessage::NewAddress(message) = message else {
                return None;
            };
            link_address::read(&message, &self.policy, links)
        })?;
        found.into_iter().for_each(sink);
        Ok(())
    }

    fn read_entries(
        &mut self,
        message: &RouteNetlinkMessage,
        links: &Links,
        sink: &mut impl FnMut(Observed),
    ) -> Result<(), Errno> {
        let found = self.requests.dump(message, |message| {
            let RouteNetlinkMessage::NewNeighbour(message) = message else {
                return None;
            };
            neighbour::read(&message, links)
        })?;
        found.into_iter().for_each(sink);
        Ok(())
    }
}

/// Tells the client what the kernel said.
fn kernel(call: &str, refused: &Refused) -> OpError {
    let call = match refused.text.as_str() {
        "" => call.to_owned(),
        text => format!("{call} ({text})"),
    };
    OpError::Kernel {
        call,
        errno: errno_number(refused.errno),
    }
}
