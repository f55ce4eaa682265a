//! Kernel routes, neighbours, forwarding entries and tunnel devices, by netlink.
//!
//! Only what is ours is cleared and reported. A set replaces whatever is under its key.

mod neighbour;
mod route;
mod socket;
mod tunnel;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    ops::Range,
    sync::Arc,
};

use ipc_proto::{
    FdbKey, KernelRoute, Link, LinkRole, Mac, NeighbourKey, Observed, OpError, RouteKey, Table,
    Tunnel, TunnelDevice,
};
use ipnet::IpNet;
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkMessage},
};
use nix::errno::Errno;

use self::{
    route::Existing,
    socket::{Refused, Request, Requests},
    tunnel::ReadBack,
};
use crate::{dataplane::errno_number, links::Links, policy::Policy};

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
    policy: Arc<Policy>,
}

/// The requests that one change takes, or what became of it without any.
type Pending = Result<Range<usize>, Result<(), OpError>>;

impl Netlink {
    /// Opens a socket.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn open(policy: Arc<Policy>) -> io::Result<Self> {
        Ok(Self {
            requests: Requests::open()?,
            policy,
        })
    }

    /// Sets and clears routes in order and returns what became of each.
    pub fn routes(
        &mut self,
        changes: &[(&RouteKey, Option<&KernelRoute>)],
        links: &Links,
    ) -> Vec<Result<(), OpError>> {
        let mut outcomes = Vec::with_capacity(changes.len());
        let mut rest = changes;
        while !rest.is_empty() {
            // What is cleared is looked up beforehand, so it must not be set before in the same go.
            let mut keys = BTreeSet::new();
            let repeated = rest.iter().position(|(key, _)| !keys.insert(*key));
            let (now, later) = rest.split_at(repeated.unwrap_or(rest.len()));
            outcomes.extend(self.distinct_routes(now, links));
            rest = later;
        }
        outcomes
    }

    fn distinct_routes(
        &mut self,
        changes: &[(&RouteKey, Option<&KernelRoute>)],
        links: &Links,
    ) -> Vec<Result<(), OpError>> {
        let cleared: BTreeSet<&RouteKey> = changes
            .iter()
            .filter(|(_, route)| route.is_none())
            .map(|(key, _)| *key)
            .collect();
        let mut existing = match self.existing(&cleared, links) {
            Ok(existing) => existing,
            Err(errno) => {
                let failed = || Err(kernel("RTM_GETROUTE", &errno.into()));
                return changes.iter().map(|_| failed()).collect();
            }
        };
        let mut requests = Vec::new();
        let mut pending: Vec<Pending> = Vec::new();
        for (key, route) in changes {
            let start = requests.len();
            let policy = &self.policy;
            match route.map(|route| route::message(key, route, policy)) {
                Some(Some(message)) => {
                    requests.push(Request::set(RouteNetlinkMessage::NewRoute(message)));
                }
                Some(None) => {
                    let why = format!("{}: no second_table is configured", key.prefix);
                    pending.push(Err(Err(OpError::Denied(why))));
                    continue;
                }
                None => {
                    let found = existing.remove(*key).unwrap_or_default();
                    if !found.is_empty() && !found.iter().any(|existing| existing.ours) {
                        let why = format!(
                            "{} with metric {} is another program's route",
                            key.prefix, key.metric
                        );
                        pending.push(Err(Err(OpError::Denied(why))));
                        continue;
                    }
                    let ours = found.into_iter().filter(|existing| existing.ours);
                    requests.extend(ours.map(|existing| {
                        Request::change(RouteNetlinkMessage::DelRoute(existing.delete))
                    }));
                }
            }
            pending.push(Ok(start..requests.len()));
        }
        self.finish(requests, pending, |at| {
            changes.get(at).map_or_else(String::new, |(key, route)| {
                let verb = route.map_or("RTM_DELROUTE", |_| "RTM_NEWROUTE");
                format!("{verb} {} metric {}", key.prefix, key.metric)
            })
        })
    }

    /// Returns what there is under some keys, ours or not.
    fn existing(
        &mut self,
        keys: &BTreeSet<&RouteKey>,
        links: &Links,
    ) -> Result<BTreeMap<RouteKey, Vec<Existing>>, Errno> {
        let places: BTreeSet<(Table, bool)> = keys
            .iter()
            .map(|key| (key.table, matches!(key.prefix, IpNet::V6(_))))
            .collect();
        let mut found: BTreeMap<RouteKey, Vec<Existing>> = BTreeMap::new();
        for (table, ipv6) in places {
            for existing in
                self.dump_routes(table, ipv6, links, |existing| keys.contains(&existing.key))?
            {
                found
                    .entry(existing.key.clone())
                    .or_default()
                    .push(existing);
            }
        }
        Ok(found)
    }

    fn dump_routes(
        &mut self,
        table: Table,
        ipv6: bool,
        links: &Links,
        wanted: impl Fn(&Existing) -> bool,
    ) -> Result<Vec<Existing>, Errno> {
        let Some(number) = self.policy.table(table) else {
            return Ok(Vec::new());
        };
        let policy = Arc::clone(&self.policy);
        let message = RouteNetlinkMessage::GetRoute(route::dump(ipv6, number));
        let found = self.requests.dump(&message, |message| {
            let RouteNetlinkMessage::NewRoute(message) = message else {
                return None;
            };
            route::read(&message, &policy, links).filter(|existing| wanted(existing))
        });
        match found {
            // The table has no route yet.
            Err(Errno::ENOENT) => Ok(Vec::new()),
            other => other,
        }
    }

    /// Sets and clears neighbours in order and returns what became of each.
    pub fn neighbours(
        &mut self,
        changes: &[(&NeighbourKey, Option<Mac>)],
    ) -> Vec<Result<(), OpError>> {
        let message = |(key, mac): &(&NeighbourKey, Option<Mac>)| {
            Request::entry(neighbour::neighbour(key, *mac), mac.is_some())
        };
        self.entries(changes.iter().map(message).collect(), |at| {
            let (key, mac) = changes.get(at)?;
            Some((mac.is_some(), format!("{} dev {}", key.address, key.link)))
        })
    }

    /// Sets and clears forwarding entries in order and returns what became of each.
    pub fn fdb(&mut self, changes: &[(&FdbKey, Option<IpAddr>)]) -> Vec<Result<(), OpError>> {
        let message = |(key, destination): &(&FdbKey, Option<IpAddr>)| {
            Request::entry(neighbour::fdb(key, *destination), destination.is_some())
        };
        self.entries(changes.iter().map(message).collect(), |at| {
            let (key, destination) = changes.get(at)?;
            let name = format!("{} dev {}", key.mac, key.link);
            Some((destination.is_some(), name))
        })
    }

    fn entries(
        &mut self,
        requests: Vec<Request>,
        name: impl Fn(usize) -> Option<(bool, String)>,
    ) -> Vec<Result<(), OpError>> {
        let pending = (0..requests.len()).map(|at| Ok(at..at + 1)).collect();
        self.finish(requests, pending, |at| match name(at) {
            Some((true, name)) => format!("RTM_NEWNEIGH {name}"),
            Some((false, name)) => format!("RTM_DELNEIGH {name}"),
            None => String::new(),
        })
    }

    /// Sends requests and tells the changes that they belong to what became of them.
    fn finish(
        &mut self,
        requests: Vec<Request>,
        pending: Vec<Pending>,
        name: impl Fn(usize) -> String,
    ) -> Vec<Result<(), OpError>> {
        let deletes: Vec<bool> = requests.iter().map(Request::deletes).collect();
        let outcomes: Vec<Result<(), Refused>> = self
            .requests
            .send(requests)
            .into_iter()
            .zip(deletes)
            .map(|(outcome, deletes)| match outcome {
                Err(refused) if deletes && refused.is_absence() => Ok(()),
                other => other,
            })
            .collect();
        let finish = |(at, pending): (usize, Pending)| match pending {
            Err(outcome) => outcome,
            Ok(range) => outcomes
                .get(range)
                .unwrap_or_default()
                .iter()
                .find_map(|outcome| outcome.as_ref().err())
                .map_or(Ok(()), |refused| Err(kernel(&name(at), refused))),
        };
        pending.into_iter().enumerate().map(finish).collect()
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
        match self.requests.get(RouteNetlinkMessage::GetLink(message)) {
            Ok(RouteNetlinkMessage::NewLink(found)) => found
                .attributes
                .contains(&LinkAttribute::IfName(link.name.to_string()))
                .then_some(())
                .ok_or_else(stale),
            Ok(_) | Err(Errno::ENODEV) => Err(stale()),
            Err(errno) => Err(kernel(&format!("RTM_GETLINK {link}"), &errno.into())),
        }
    }

    /// Gives all that is ours to `sink`.
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
                match self.read_entries(&message, links, sink) {
                    // The interface is gone meanwhile.
                    Err(Errno::ENODEV) => {}
                    other => other.map_err(reading("the forwarding entries"))?,
                }
            }
        }
        let tables: Vec<Table> = self.policy.tables().map(|(table, _)| table).collect();
        for table in tables {
            for ipv6 in [false, true] {
                let ours = self
                    .dump_routes(table, ipv6, links, |existing| existing.ours)
                    .map_err(reading("the routes"))?;
                for Existing { key, route, .. } in ours {
                    sink(Observed::KernelRoute(key, route));
                }
            }
        }
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
