//! Carries permitted changes out in the kernel, and reads back what is ours.
//!
//! It runs to completion on a thread of its own, so its system calls delay nobody but who asked. It
//! holds sockets and maps, and remembers nothing between two calls but hints that the kernel checks.

use std::{
    cell::OnceCell,
    sync::Arc,
    time::{Duration, Instant},
};

use ipc_proto::{
    Lane, LinkRole, LinkState, Many, Observed, Op, OpError, Rivals, Step, Tunnel, TunnelDevice,
};
use nix::errno::Errno;

use crate::{
    bpf::{BpfError, Endpoints, RouteMaps},
    links::Links,
    netlink::{Netlink, ReadError},
    order::{self, Checked, Group, Outcomes},
    pages::Sink,
    policy::{self, Permitted, Policy},
    sysctl,
    tc::{Attachments, TcError},
    watch::Watched,
};

/// Why the kernel cannot be read back.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A BPF map cannot be read.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The attached programs cannot be told.
    #[error(transparent)]
    Tc(#[from] TcError),
    /// Something else cannot be read.
    #[error(transparent)]
    Netlink(#[from] ReadError),
}

/// The interfaces at one moment.
#[derive(Debug)]
pub struct Interfaces {
    states: Vec<LinkState>,
    /// The number of the feed that they include.
    pub feed: u64,
    links: Links,
}

/// How long a batch may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// See the [module](self).
#[derive(Debug)]
pub struct Dataplane {
    policy: Arc<Policy>,
    watched: Watched,
    maps: RouteMaps,
    endpoints: Endpoints,
    attachments: Attachments,
    netlink: Netlink,
}

impl Dataplane {
    /// Puts `policy` in front of the kernel.
    #[must_use]
    pub fn new(
        policy: Arc<Policy>,
        watched: Watched,
        maps: RouteMaps,
        endpoints: Endpoints,
        attachments: Attachments,
        netlink: Netlink,
    ) -> Self {
        Self {
            policy,
            watched,
            maps,
            endpoints,
            attachments,
            netlink,
        }
    }

    /// Carries out the steps in order and returns those that failed.
    ///
    /// What there is no time for fails: whoever waits for this thread, the watchdog first, must not
    /// wait for a batch of changes of which each takes long.
    pub fn apply(&mut self, steps: Vec<Step>) -> Vec<(u32, OpError)> {
        let end = Instant::now() + PATIENCE;
        let steps = self.check(Lane::State, steps);
        order::carry_out(&steps, |group, outcomes| {
            let at_once = if group.ops().any(is_slow) {
                1
            } else {
                group.len()
            };
            for part in group.chunks(at_once) {
                if Instant::now() < end {
                    self.carry_out(part, outcomes);
                } else {
                    outcomes.extend(part.ops().map(|_| Err(no_time())));
                }
            }
        })
    }

    /// Asks the policy for each step; again with a fresh table of interfaces if one looks stale.
    #[must_use]
    pub fn check(&self, lane: Lane, steps: Vec<Step>) -> Vec<Checked> {
        let links = self.watched.links().view();
        let fresh = OnceCell::new();
        let refresh = || {
            self.watched.refresh();
            self.watched.links().view()
        };
        let check = |step: Step| {
            let known = fresh.get();
            let again = || known.is_none().then(|| fresh.get_or_init(refresh));
            let links = known.unwrap_or(&links);
            let verdict = self.policy.check_anew(lane, step.op, links, again);
            (step.needs, verdict)
        };
        steps.into_iter().map(check).collect()
    }

    /// Carries out ops of one kind in order.
    fn carry_out(&mut self, group: Group<'_>, outcomes: &mut Outcomes) {
        let links = self.watched.links().view();
        let mut routes = Vec::new();
        let mut neighbours = Vec::new();
        let mut fdb = Vec::new();
        let mut link_addresses = Vec::new();
        for permitted in group.ops() {
            match permitted.op() {
                // They are walked, not listed: there are many.
                Op::BpfRoute(..) => {}
                Op::KernelRoute(key, route) => routes.push((key, route.as_deref())),
                Op::Neighbour(key, mac) => neighbours.push((key, *mac)),
                Op::Fdb(key, destination) => fdb.push((key, *destination)),
                Op::LinkAddress(key, set) => link_addresses.push((key, *set)),
                Op::TunnelDevice(tunnel, device) => {
                    outcomes.push(self.set_tunnel(*tunnel, device.as_deref()));
                }
                Op::LinkSettings(link, profile) => outcomes.push(match profile {
                    None => Ok(()),
                    Some(profile) => self
                        .netlink
                        .verify(link)
                        .and_then(|()| sysctl::set(&link.name, *profile)),
                }),
                Op::Endpoint(link, endpoint) => {
                    outcomes.push(self.endpoints.set(link, endpoint.as_deref()));
                }
                Op::Attachment(key, attached) => {
                    outcomes.push(self.attachments.set(key, *attached));
                }
                Op::Rule(rule, wanted) => outcomes.push(self.netlink.rule(rule, *wanted)),
                Op::Vtep(..) | Op::ProgramSettings(_) | Op::Masquerade(_) | Op::FlowFlush(_) => {
                    outcomes.push(Err(OpError::Unsupported("ops of this kind".into())));
                }
            }
        }
        let bpf = group.ops().filter_map(|permitted| {
            let Op::BpfRoute(prefix, route) = permitted.op() else {
                return None;
            };
            Some((prefix, route.as_ref()))
        });
        // All are of one kind, so all lists but one are empty.
        self.maps.apply(bpf, outcomes);
        outcomes.extend(self.netlink.routes(&routes, &links));
        outcomes.extend(self.netlink.neighbours(&neighbours));
        outcomes.extend(self.netlink.fdb(&fdb));
        outcomes.extend(self.netlink.link_addresses(&link_addresses, &links));
    }

    /// Makes a tunnel device as it shall be, or removes it.
    fn set_tunnel(&mut self, tunnel: Tunnel, device: Option<&TunnelDevice>) -> Result<(), OpError> {
        self.netlink.tunnel(tunnel, device)?;
        // Nobody is told of the end of an interface that was never seen.
        self.watched.refresh();
        let is_seen = |state: &LinkState| state.role == LinkRole::Tunnel(tunnel);
        if device.is_some() && !self.watched.links().iter().any(is_seen) {
            return Err(OpError::Kernel {
                call: format!(
                    "{}: removed by another program as soon as it was made",
                    self.policy.tunnel(tunnel)
                ),
                errno: errno_number(Errno::ENODEV),
            });
        }
        Ok(())
    }

    /// Reads the interfaces, with which a snapshot begins.
    #[must_use]
    pub fn interfaces(&self) -> Interfaces {
        self.watched.refresh();
        let mut links = self.watched.links();
        let (states, feed) = links.snapshot();
        Interfaces {
            states,
            feed,
            links: links.view(),
        }
    }

    /// Gives all that may be ours to `sink`, the interfaces first; [`Reported`] tells what is.
    ///
    /// # Errors
    ///
    /// If the kernel cannot be read.
    pub fn snapshot(
        &mut self,
        interfaces: Interfaces,
        sink: &mut Sink,
    ) -> Result<(), SnapshotError> {
        let mut push = |item| sink.push(item);
        let Interfaces { states, links, .. } = interfaces;
        for state in states {
            let settings = policy::profile(state.role)
                .filter(|profile| sysctl::is_set(&state.link.name, *profile))
                .map(|profile| Observed::LinkSettings(state.link.clone(), profile));
            push(Observed::Link(state));
            settings.into_iter().for_each(&mut push);
        }
        self.netlink.snapshot(&links, &mut push)?;
        self.endpoints.snapshot(&links, &mut push)?;
        self.attachments.snapshot(&links, &mut push)?;
        let mut rivals = Rivals::default();
        sink.read_many(Many::KernelRoutes, |mut push| {
            rivals = self.netlink.read_routes(&links, &mut push)?;
            Ok::<(), ReadError>(())
        })?;
        if rivals != Rivals::default() {
            sink.push(Observed::Rivals(rivals));
        }
        for (many, ipv6) in [(Many::BpfV4, false), (Many::BpfV6, true)] {
            sink.read_many(many, |mut push| self.maps.read(ipv6, &links, &mut push))?;
        }
        Ok(())
    }

    /// Returns what of a snapshot that begins with these interfaces is reported.
    #[must_use]
    pub fn reported(&self, interfaces: &Interfaces) -> Reported {
        Reported {
            policy: Arc::clone(&self.policy),
            links: interfaces.links.view(),
        }
    }

    /// Returns the size of each BPF route map in entries.
    #[must_use]
    pub fn map_size(&self) -> u32 {
        self.maps.size()
    }
}

/// Returns whether an op may take the kernel milliseconds, since it waits until all processors have
/// taken note; the others take microseconds.
fn is_slow(permitted: &Permitted) -> bool {
    match permitted.op() {
        Op::TunnelDevice(..) | Op::Attachment(..) | Op::LinkSettings(..) | Op::Rule(..) => true,
        Op::Endpoint(..)
        | Op::Neighbour(..)
        | Op::Fdb(..)
        | Op::LinkAddress(..)
        | Op::BpfRoute(..)
        | Op::KernelRoute(..)
        | Op::Vtep(..)
        | Op::ProgramSettings(_)
        | Op::Masquerade(_)
        | Op::FlowFlush(_) => false,
    }
}

fn no_time() -> OpError {
    OpError::Kernel {
        call: format!("no time is left of a batch's {} s", PATIENCE.as_secs()),
        errno: errno_number(Errno::EBUSY),
    }
}

/// What of all that is read is reported: what a request may clear. About the rest nobody could do
/// anything.
#[derive(Debug)]
pub struct Reported {
    policy: Arc<Policy>,
    links: Links,
}

impl Reported {
    /// Returns whether an item is reported.
    #[must_use]
    pub fn has(&self, item: &Observed) -> bool {
        cleared(item).is_none_or(|op| self.policy.check(Lane::State, op, &self.links).is_ok())
    }
}

/// Returns what would clear an item, if it can be cleared.
fn cleared(item: &Observed) -> Option<Op> {
    Some(match item {
        Observed::Link(_)
        | Observed::LinkSettings(..)
        | Observed::AsKnown(_)
        | Observed::Rivals(_) => return None,
        Observed::TunnelDevice(tunnel, _) => Op::TunnelDevice(*tunnel, None),
        Observed::Neighbour(key, _) => Op::Neighbour(key.clone(), None),
        Observed::Fdb(key, _) => Op::Fdb(key.clone(), None),
        Observed::LinkAddress(key, _) => Op::LinkAddress(key.clone(), false),
        Observed::BpfRoute(prefix, _) => Op::BpfRoute(*prefix, None),
        Observed::KernelRoute(key, _) => Op::KernelRoute(key.clone(), None),
        Observed::Endpoint(link, _) => Op::Endpoint(link.clone(), None),
        Observed::Attachment(key) => Op::Attachment(key.clone(), false),
        Observed::Rule(rule) => Op::Rule(rule.clone(), false),
    })
}

/// Returns the number of an error.
pub(crate) fn errno_number(errno: Errno) -> i32 {
    std::io::Error::from(errno).raw_os_error().unwrap_or(0)
}
