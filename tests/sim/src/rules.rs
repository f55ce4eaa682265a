//! What must hold at each write, whatever happens.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use ipc_proto::{BpfTarget, Op, RouteKind, Step};
use ipnet::IpNet;
use privhelper::{links::Links, policy::Policy};

use super::{
    cluster,
    kernel::{Entry, Kernel, Key, Origin, Route, is_ours, lead, owns},
    tally::Tally,
};

/// A rule that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Which rule.
    pub rule: &'static str,
    /// What happened.
    pub how: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.how)
    }
}

pub(super) fn broken<T>(rule: &'static str, how: impl fmt::Debug) -> Result<T, Broken> {
    Err(Broken {
        rule,
        how: format!("{how:?}"),
    })
}

/// What the helper took the interfaces for. What is ours is told from their names, which may be
/// others by the time a write is made.
#[derive(Debug)]
pub(super) struct Sight {
    /// When it began and when it ended to check the batch.
    pub(super) checked: Box<[Links; 2]>,
    /// When it carries it out.
    pub(super) latest: Links,
}

impl Sight {
    fn any(&self, ours: impl Fn(&Links) -> bool) -> bool {
        self.checked.iter().any(&ours) || ours(&self.latest)
    }
}

/// Looks at each write before and after it is made.
#[derive(Debug)]
pub(super) struct Watchman {
    probes: Vec<IpAddr>,
    /// The addresses that shall have an entry before, at and after the batch in flight.
    kept: BTreeSet<IpAddr>,
    /// The addresses that two pods claim, or that have waited for long enough.
    disputed: BTreeSet<IpAddr>,
    /// The batch in flight may be unable to make before it breaks.
    excused: bool,
    /// What is not ours under the key that is about to be written.
    others: Others,
    /// What is under that key may have become another's since it was read, which the kernel does not ask.
    unasked: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Others {
    routes: Vec<Route>,
    neighbour: Option<Entry<ipc_proto::Mac>>,
    addresses: Vec<(IpNet, Origin)>,
}

impl Watchman {
    pub(super) fn new() -> Self {
        Self {
            probes: cluster::probes(),
            kept: BTreeSet::new(),
            disputed: BTreeSet::new(),
            excused: true,
            others: Others::default(),
            unasked: false,
        }
    }

    /// Takes in that a batch is sent by who wants these BPF entries; `excused` if it has reason to
    /// break before it makes.
    pub(super) fn sent(
        &mut self,
        steps: &[Step],
        desired: &BTreeSet<IpNet>,
        kernel: &Kernel,
        excused: bool,
        disputed: BTreeSet<IpAddr>,
        waiting: &BTreeSet<IpAddr>,
    ) {
        self.kept.clear();
        self.excused = excused;
        self.disputed = disputed;
        for step in steps {
            let Op::BpfRoute(prefix, _) = &step.op else {
                continue;
            };
            for probe in self.probes.iter().filter(|probe| prefix.contains(*probe)) {
                let covers = |entry: &IpNet| entry.contains(probe);
                // What waits for flows to be forgotten has no entry of its own for as long.
                if waiting.contains(probe) {
                    continue;
                }
                if kernel.bpf.keys().any(covers) && desired.iter().any(covers) {
                    self.kept.insert(*probe);
                }
            }
        }
    }

    /// Takes in that a write fails, so that what was to come before others does not.
    pub(super) fn fault(&mut self) {
        self.excused = true;
    }

    pub(super) fn before(
        &mut self,
        op: &Op,
        kernel: &mut Kernel,
        policy: &Policy,
        sight: &Sight,
        tally: &mut Tally,
    ) -> Result<(), Broken> {
        self.others = others(op, kernel, policy, sight);
        self.unasked = Key::of(op).is_some_and(|key| {
            matches!(key, Key::Address(..)) && kernel.disturbed.keys.contains(&key)
        });
        tally.add(kind(op));
        if let Some((address, link)) = lead(op)
            && let Some(links) = kernel.flows.get(&address)
            && links.iter().any(|other| *other != link)
            && !self.disputed.contains(&address)
        {
            return broken(
                "I6: no new owner is reached by flows of the former one",
                (op, links),
            );
        }
        if !kernel.is_so(op, policy, &sight.latest) {
            if Key::of(op).is_some_and(|key| kernel.drifted.remove(&key)) {
                tally.add("drift repaired");
            }
            return Ok(());
        }
        if is_disturbed(op, kernel, policy) {
            tally.add("written again, not to be sure");
            return Ok(());
        }
        broken("I2: what is right is not written", op)
    }

    pub(super) fn after(
        &mut self,
        op: &Op,
        kernel: &Kernel,
        policy: &Policy,
        sight: &Sight,
        made: bool,
    ) -> Result<(), Broken> {
        if !made {
            self.excused = true;
        }
        if let Op::BpfRoute(prefix, None) = op {
            self.uncovered(prefix, kernel)?;
        }
        if self.unasked || others(op, kernel, policy, sight) == self.others {
            Ok(())
        } else {
            broken("I3: what is not ours is not changed", op)
        }
    }

    /// Checks that no address of a prefix lacks an entry that shall keep one.
    pub(super) fn uncovered(&self, prefix: &IpNet, kernel: &Kernel) -> Result<(), Broken> {
        let covered = |probe: &&IpAddr| kernel.bpf.keys().any(|entry| entry.contains(*probe));
        let mut kept = self.kept.iter().filter(|probe| prefix.contains(*probe));
        match kept.find(|probe| !covered(probe)) {
            Some(probe) if !self.excused => broken("I5: no moment without an entry", probe),
            Some(_) | None => Ok(()),
        }
    }
}

/// What is not ours under an op's key.
fn others(op: &Op, kernel: &Kernel, policy: &Policy, sight: &Sight) -> Others {
    let mut others = Others::default();
    match Key::of(op) {
        Some(Key::Route(key)) => {
            let routes = kernel.routes.get(&key).into_iter().flatten();
            let foreign =
                routes.filter(|route| !sight.any(|links| owns(&key, route, policy, links)));
            others.routes = foreign.cloned().collect();
        }
        Some(Key::Neighbour(index, address)) => {
            let ours = |links: &Links| {
                let state = links.by_index(index);
                state.is_some_and(|state| is_ours(state.role, address.is_ipv6()))
            };
            if !sight.any(ours) {
                others.neighbour = kernel.neighbours.get(&(index, address)).cloned();
            }
        }
        Some(Key::Address(index, address)) => {
            others.addresses = kernel.others_addresses(index, address, policy);
        }
        Some(Key::Settings(_) | Key::Tunnel(_) | Key::Fdb(..) | Key::Bpf(_)) | None => {}
    }
    others
}

/// Returns whether the sender of an op may be unsure whether it is so.
fn is_disturbed(op: &Op, kernel: &Kernel, policy: &Policy) -> bool {
    let disturbed = &kernel.disturbed;
    let Some(key) = Key::of(op) else {
        return false;
    };
    if disturbed.keys.contains(&key) {
        return true;
    }
    let link = |index: u32| disturbed.links.contains(&index);
    match (&key, op) {
        (
            Key::Settings(index)
            | Key::Neighbour(index, _)
            | Key::Fdb(index, _)
            | Key::Address(index, _),
            _,
        ) => link(*index),
        // The one below it is known by its name as well.
        (Key::Tunnel(_), Op::TunnelDevice(_, Some(device))) if link(device.parent.index) => true,
        (Key::Tunnel(tunnel), _) => kernel.index(policy.tunnel(*tunnel)).is_none_or(link),
        // A clear does not say where the route led.
        (Key::Route(_), Op::KernelRoute(_, None)) => !disturbed.links.is_empty(),
        (Key::Route(_), Op::KernelRoute(_, Some(route))) => {
            let by_source = route.source.is_some_and(|source| {
                !disturbed.links.is_empty() || disturbed.sources.contains(&source)
            });
            by_source
                || match &route.kind {
                    RouteKind::Unicast(hop) => link(hop.link.index),
                    RouteKind::Multipath(_)
                    | RouteKind::Local(_)
                    | RouteKind::Blackhole
                    | RouteKind::Prohibit
                    | RouteKind::Unreachable
                    | RouteKind::Throw => false,
                }
        }
        // The map has the index alone.
        (Key::Bpf(_), Op::BpfRoute(_, Some(route))) => match &route.target {
            BpfTarget::Link(to) => link(to.index),
            BpfTarget::NextHop(_) | BpfTarget::None => false,
        },
        (Key::Bpf(_) | Key::Route(_), _) => false,
    }
}

fn kind(op: &Op) -> &'static str {
    match op {
        Op::LinkSettings(..) => "wrote link settings",
        Op::TunnelDevice(_, Some(_)) => "set tunnel device",
        Op::TunnelDevice(_, None) => "cleared tunnel device",
        Op::Neighbour(_, Some(_)) => "set neighbour",
        Op::Neighbour(_, None) => "cleared neighbour",
        Op::Fdb(_, Some(_)) => "set forwarding entry",
        Op::Fdb(_, None) => "cleared forwarding entry",
        Op::BpfRoute(_, Some(_)) => "set BPF route",
        Op::BpfRoute(_, None) => "cleared BPF route",
        Op::KernelRoute(_, Some(_)) => "set kernel route",
        Op::KernelRoute(_, None) => "cleared kernel route",
        Op::LinkAddress(_, true) => "set link address",
        Op::LinkAddress(_, false) => "cleared link address",
        Op::Rule(..)
        | Op::Attachment(..)
        | Op::Endpoint(..)
        | Op::Vtep(..)
        | Op::ProgramSettings(_)
        | Op::Masquerade(_) => "other",
        Op::FlowFlush(_) => "forgot flows",
    }
}
