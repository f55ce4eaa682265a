//! A world in one thread: the reconciler, a model of the helper and its kernel, a script.
//!
//! The script does the worst: crashes, lost and late messages, drift, faults, interfaces that come
//! and go. Whatever happened, once it stops the kernel holds what it should.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use ipc_proto::{
    Ack, Batch, BpfRoute, BpfTarget, Flags, Hop, IfName, Incarnation, KernelRoute, Lease, Link,
    LinkEvent, LinkRole, LinkState, Mac, NeighbourKey, Observed, Op, OpError, Protocol, RouteKey,
    RouteKind, SnapshotId, Table, Welcome,
};
use ipnet::IpNet;
use proptest::prelude::*;

use super::{Input, Output, Reconciler};

/// What is wanted, before it is known which interface there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Slot {
    /// A BPF route; the value [`DENIED`] is against the policy.
    Bpf(u8),
    /// A neighbour on the interface.
    Neighbour(u8),
    /// A kernel route: by one of the neighbours, or to nowhere.
    Route(u8),
}

/// One thing that can happen.
#[derive(Clone, Copy, Debug)]
enum Event {
    Want(Slot, Option<u8>),
    InSync(bool),
    Connect,
    ConnectIfGone,
    Resync,
    Poll,
    Serve,
    Receive,
    /// The next change of an interface is heard of.
    Feed,
    LoseReply,
    /// A request that was thought lost arrives after all.
    ServeLate,
    CrashHelper,
    CrashCalc,
    Drift(Slot, Option<u8>),
    LinkGone,
    LinkNew,
    LinkDown,
    LinkUp,
    FailNext,
    Wait(u16),
}

fn slot() -> impl Strategy<Value = Slot> {
    prop_oneof![
        (0..4_u8).prop_map(Slot::Bpf),
        (0..2_u8).prop_map(Slot::Neighbour),
        (0..2_u8).prop_map(Slot::Route),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let change = || (slot(), prop::option::of(0..3_u8));
    prop_oneof![
        10 => change().prop_map(|(slot, value)| Event::Want(slot, value)),
        1 => any::<bool>().prop_map(Event::InSync),
        2 => Just(Event::ConnectIfGone),
        1 => Just(Event::Connect),
        1 => Just(Event::Resync),
        8 => Just(Event::Poll),
        8 => Just(Event::Serve),
        8 => Just(Event::Receive),
        4 => Just(Event::Feed),
        1 => Just(Event::LoseReply),
        1 => Just(Event::ServeLate),
        1 => Just(Event::CrashHelper),
        1 => Just(Event::CrashCalc),
        1 => change().prop_map(|(slot, value)| Event::Drift(slot, value)),
        1 => prop_oneof![
            Just(Event::LinkGone), Just(Event::LinkNew), Just(Event::LinkDown), Just(Event::LinkUp)
        ],
        1 => Just(Event::FailNext),
        1 => (0..1000_u16).prop_map(Event::Wait),
    ]
}

/// A script most of which happens to a world that works.
fn script() -> impl Strategy<Value = Vec<Event>> {
    (
        proptest::bool::weighted(0.8),
        any::<bool>(),
        proptest::collection::vec(event(), 0..50),
    )
        .prop_map(|(started, complete, events)| {
            let start = [
                Event::InSync(complete),
                Event::Connect,
                Event::Poll,
                Event::Serve,
                Event::Receive,
            ];
            start
                .into_iter()
                .filter(|_| started)
                .chain(events)
                .collect()
        })
}

const DENIED: u8 = 2;
const MAX_STEPS: u32 = 3;
const BPF_MAX_ENTRIES: u32 = 3;
const ENOMEM: i32 = 12;
const ENOSPC: i32 = 28;
const ENETDOWN: i32 = 100;

fn prefix(n: u8) -> IpNet {
    format!("10.0.{n}.0/24").parse().unwrap()
}

/// Returns the op that a slot's value is on a certain interface.
fn op(slot: Slot, value: Option<u8>, link: Option<&Link>) -> Option<Op> {
    let neighbour = |n: u8| {
        Some(NeighbourKey {
            link: link?.clone(),
            address: [192, 0, 2, n].into(),
        })
    };
    Some(match slot {
        Slot::Bpf(n) => {
            let route = value.map(|value| BpfRoute {
                flags: Flags(value.into()),
                target: BpfTarget::None,
            });
            Op::BpfRoute(prefix(n), route)
        }
        Slot::Neighbour(n) => Op::Neighbour(neighbour(n)?, value.map(|value| Mac([value; 6]))),
        Slot::Route(n) => {
            let route = match value {
                None => None,
                Some(n @ 0..2) => {
                    let NeighbourKey { link, address } = neighbour(n)?;
                    Some(RouteKind::Unicast(Hop {
                        link,
                        via: Some(address),
                        onlink: true,
                    }))
                }
                Some(_) => Some(RouteKind::Blackhole),
            };
            let route = route.map(|kind| KernelRoute {
                kind,
                protocol: Protocol::Safe,
                source: None,
                mtu: None,
            });
            Op::KernelRoute(RouteKey::new(Table::Main, prefix(n), 0), route)
        }
    })
}

fn link_of(route: &KernelRoute) -> Option<&Link> {
    match &route.kind {
        RouteKind::Unicast(hop) => Some(&hop.link),
        _ => None,
    }
}

fn errno(errno: i32) -> OpError {
    OpError::Kernel {
        call: "model".to_owned(),
        errno,
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Kernel {
    bpf: BTreeMap<IpNet, BpfRoute>,
    neighbours: BTreeMap<NeighbourKey, Mac>,
    /// Drift can add a second route under one key.
    routes: BTreeMap<RouteKey, Vec<KernelRoute>>,
    link: Option<LinkState>,
}

impl Kernel {
    /// Makes an op true, or says why not.
    fn make(&mut self, op: Op) -> Result<(), OpError> {
        let up = |link: &Link| match &self.link {
            Some(state) if state.link == *link => Ok(state.up),
            _ => Err(OpError::StaleLink(link.clone())),
        };
        match op {
            Op::BpfRoute(key, Some(value)) => {
                let max = usize::try_from(BPF_MAX_ENTRIES).unwrap();
                if self.bpf.len() >= max && !self.bpf.contains_key(&key) {
                    return Err(errno(ENOSPC));
                }
                self.bpf.insert(key, value);
            }
            Op::BpfRoute(key, None) => drop(self.bpf.remove(&key)),
            Op::Neighbour(key, value) => {
                up(&key.link)?;
                match value {
                    Some(mac) => self.neighbours.insert(key, mac),
                    None => self.neighbours.remove(&key),
                };
            }
            Op::KernelRoute(key, Some(route)) => {
                if let Some(link) = link_of(&route)
                    && !up(link)?
                {
                    return Err(errno(ENETDOWN));
                }
                self.routes.insert(key, vec![route]);
            }
            Op::KernelRoute(key, None) => drop(self.routes.remove(&key)),
            other => panic!("{other:?}"),
        }
        Ok(())
    }

    fn is_so(&self, op: &Op) -> bool {
        match op {
            Op::BpfRoute(key, value) => self.bpf.get(key) == value.as_ref(),
            Op::Neighbour(key, value) => self.neighbours.get(key) == value.as_ref(),
            Op::KernelRoute(key, value) => {
                let want: Vec<_> = value.iter().cloned().collect();
                self.routes.get(key).cloned().unwrap_or_default() == want
            }
            other => panic!("{other:?}"),
        }
    }

    /// The interface's routes and neighbours go away.
    fn flush(&mut self) {
        self.neighbours.clear();
        self.routes.retain(|_, routes| {
            routes.retain(|route| link_of(route).is_none());
            !routes.is_empty()
        });
    }

    fn read(&self) -> Vec<Observed> {
        let bpf = self.bpf.clone().into_iter();
        let neighbours = self.neighbours.clone().into_iter();
        let routes = self.routes.iter();
        let link = self.link.iter().cloned().map(Observed::Link);
        link.chain(bpf.map(|(k, v)| Observed::BpfRoute(k, Some(v))))
            .chain(neighbours.map(|(k, v)| Observed::Neighbour(k, v)))
            .chain(routes.flat_map(|(k, all)| {
                all.iter()
                    .map(|v| Observed::KernelRoute(k.clone(), Some(v.clone())))
            }))
            .collect()
    }
}

#[derive(Debug)]
enum Reply {
    Welcome(Welcome, Vec<Observed>),
    Ack(Ack),
    Refused,
}

/// The kernel and the helper in front of it.
#[derive(Debug, Default)]
struct Helper {
    kernel: Kernel,
    lease: Option<Lease>,
    leases: u64,
    indexes: u32,
    fail_next: bool,
    writes: u64,
    /// Writes of what was so already.
    redundant: u64,
    feed: VecDeque<(u64, LinkEvent)>,
    seq: u64,
}

impl Helper {
    fn serve(&mut self, request: Output) -> Reply {
        match request {
            Output::Hello => {
                self.leases += 1;
                let lease = Lease(self.leases);
                self.lease = Some(lease);
                let welcome = Welcome {
                    version: ipc_proto::VERSION,
                    incarnation: Incarnation(1),
                    lease,
                    max_steps: MAX_STEPS,
                    bpf_max_entries: BPF_MAX_ENTRIES,
                    snapshot: SnapshotId(1),
                    pages: 1,
                    feed: self.seq,
                };
                Reply::Welcome(welcome, self.kernel.read())
            }
            Output::Apply(batch) if Some(batch.lease) == self.lease => {
                Reply::Ack(self.apply(batch))
            }
            Output::Apply(_) => Reply::Refused,
            Output::Notice(_) => panic!("not for the helper"),
        }
    }

    fn apply(&mut self, batch: Batch) -> Ack {
        assert!((1..=3).contains(&batch.steps.len()), "{batch:?}");
        let mut failed: Vec<(u32, OpError)> = Vec::new();
        for (index, step) in (0..).zip(batch.steps) {
            let failed_before = |need: &u32| failed.iter().any(|(index, _)| index == need);
            assert!(step.needs.is_none_or(|need| need < index), "needs a later");
            let result = if let Some(need) = step.needs.filter(failed_before) {
                Err(OpError::NotTried(need))
            } else if std::mem::take(&mut self.fail_next) {
                Err(errno(ENOMEM))
            } else if matches!(&step.op, Op::BpfRoute(_, Some(route)) if route.flags.0 == u32::from(DENIED))
            {
                Err(OpError::Denied("model".to_owned()))
            } else {
                self.writes += 1;
                self.redundant += u64::from(self.kernel.is_so(&step.op));
                self.kernel.make(step.op)
            };
            failed.extend(result.err().map(|error| (index, error)));
        }
        Ack {
            id: batch.id,
            failed,
        }
    }

    fn link(&mut self, event: LinkEvent) {
        self.seq += 1;
        self.kernel.link = match event.clone() {
            LinkEvent::Set(state) => Some(state),
            LinkEvent::Gone(_) => None,
        };
        if !self.kernel.link.as_ref().is_some_and(|link| link.up) {
            self.kernel.flush();
        }
        self.feed.push_back((self.seq, event));
    }

    fn set_up(&mut self, up: bool) {
        if let Some(state) = self.kernel.link.clone().filter(|state| state.up != up) {
            self.link(LinkEvent::Set(LinkState { up, ..state }));
        }
    }

    fn new_link(&mut self) {
        if let Some(state) = self.kernel.link.clone() {
            self.link(LinkEvent::Gone(state.link));
        }
        self.indexes += 1;
        let name: IfName = "cali1".parse().unwrap();
        self.link(LinkEvent::Set(LinkState {
            link: Link {
                index: self.indexes,
                name,
            },
            role: LinkRole::Workload,
            up: true,
            mac: None,
            mtu: 1500,
            addresses: Vec::new(),
        }));
    }

    fn drift(&mut self, slot: Slot, value: Option<u8>) {
        let link = self.kernel.link.clone().map(|state| state.link);
        match op(slot, value, link.as_ref()) {
            Some(Op::KernelRoute(key, Some(route))) => {
                let routes = self.kernel.routes.entry(key).or_default();
                if !routes.contains(&route) {
                    routes.push(route);
                }
            }
            Some(op) => drop(self.kernel.make(op)),
            None => {}
        }
    }
}

/// What a key is told apart by in this test.
fn key(op: &Op) -> String {
    match op {
        Op::BpfRoute(key, _) => format!("{key:?}"),
        Op::Neighbour(key, _) => format!("{key:?}"),
        Op::KernelRoute(key, _) => format!("{key:?}"),
        other => panic!("{other:?}"),
    }
}

fn cleared(op: &Op) -> Option<Op> {
    match op {
        Op::BpfRoute(key, _) => Some(Op::BpfRoute(*key, None)),
        Op::Neighbour(key, _) => Some(Op::Neighbour(key.clone(), None)),
        Op::KernelRoute(key, _) => Some(Op::KernelRoute(key.clone(), None)),
        _ => None,
    }
}

/// One life of the process under test, and what it was told.
#[derive(Debug, Default)]
struct Life {
    calc: Reconciler,
    link: Option<Link>,
    told: BTreeMap<String, Op>,
    ever_wanted: BTreeSet<String>,
    in_sync: bool,
    complete: bool,
    /// A Hello is out: the feed is held back.
    greeting: bool,
}

impl Life {
    /// Says what should be, by what it knows of the interface.
    fn want(&mut self, wanted: &BTreeMap<Slot, u8>) {
        let ops: BTreeMap<String, Op> = wanted
            .iter()
            .filter_map(|(slot, value)| op(*slot, Some(*value), self.link.as_ref()))
            .map(|op| (key(&op), op))
            .collect();
        for (key, op) in &self.told {
            if !ops.contains_key(key) {
                self.calc.want(cleared(op).unwrap()).unwrap();
            }
        }
        for op in ops.values() {
            self.calc.want(op.clone()).unwrap();
        }
        self.ever_wanted.extend(ops.keys().cloned());
        self.told = ops;
    }

    fn link(&mut self, now: Instant, event: LinkEvent) {
        self.link = match &event {
            LinkEvent::Set(state) => Some(state.link.clone()),
            LinkEvent::Gone(_) => None,
        };
        self.calc.handle(now, Input::Link(event));
    }

    fn check(&self, batch: &Batch, kernel: &Kernel) {
        assert!(self.in_sync, "wrote before the datastore was in sync");
        let rank = |op: &Op| match op {
            Op::Neighbour(_, Some(_)) => 0,
            Op::BpfRoute(key, Some(_)) if kernel.bpf.contains_key(key) => 1,
            Op::BpfRoute(_, Some(_)) => 2,
            Op::KernelRoute(_, Some(_)) => 3,
            Op::KernelRoute(_, None) => 4,
            Op::BpfRoute(_, None) => 5,
            Op::Neighbour(_, None) => 6,
            other => panic!("{other:?}"),
        };
        let ops = || batch.steps.iter().map(|step| &step.op);
        for op in ops() {
            assert!(
                self.complete || self.ever_wanted.contains(&key(op)),
                "swept {op:?} although the datastore is incomplete"
            );
        }
        let clears_bpf = ops().any(|op| matches!(op, Op::BpfRoute(_, None)));
        if !clears_bpf {
            // Where the map is full, its clears come early; else the order is always this.
            let coarse = |op: &Op| match rank(op) {
                1 => 2,
                rank => rank,
            };
            assert!(ops().is_sorted_by_key(coarse), "{batch:?}");
        }
    }
}

/// Runs a script, lets the world settle, and checks that it did.
fn run(script: &[Event]) -> (Helper, Life) {
    let mut now = Instant::now();
    let mut helper = Helper::default();
    helper.new_link();
    let mut life = Life::default();
    let mut wanted: BTreeMap<Slot, u8> = BTreeMap::new();
    let (mut request, mut reply): (Option<Output>, Option<Reply>) = (None, None);
    let mut late: Vec<Output> = Vec::new();

    // Drift is only seen by a resync; anything else must heal without one.
    let drifted = script.iter().any(|e| matches!(e, Event::Drift(..)));
    let settle = [
        Event::LinkUp,
        Event::InSync(true),
        Event::Receive,
        Event::ConnectIfGone,
    ];
    let round = [
        Event::Poll,
        Event::Serve,
        Event::Receive,
        Event::Feed,
        Event::ConnectIfGone,
        Event::Wait(31_000),
    ];
    let settle = settle
        .into_iter()
        .chain(drifted.then_some(Event::Resync))
        .chain(round.into_iter().cycle().take(6 * 30));
    for event in script.iter().copied().chain(settle) {
        match event {
            Event::Want(slot, value) => {
                match value {
                    Some(value) => wanted.insert(slot, value),
                    None => wanted.remove(&slot),
                };
                life.want(&wanted);
            }
            Event::InSync(complete) => {
                life.in_sync = true;
                life.complete = complete;
                life.calc.handle(now, Input::InSync { complete });
            }
            Event::Connect => {
                late.extend(request.take());
                reply = None;
                helper.feed.clear();
                life.greeting = false;
                life.calc.handle(now, Input::Connected);
            }
            Event::ConnectIfGone => {
                if !life.calc.is_connected() && request.is_none() && reply.is_none() {
                    helper.feed.clear();
                    life.calc.handle(now, Input::Connected);
                }
            }
            Event::Resync => life.calc.handle(now, Input::Resync),
            Event::Poll => {
                while let Some(output) = life.calc.poll(now) {
                    match &output {
                        Output::Notice(_) => continue,
                        Output::Hello => life.greeting = true,
                        Output::Apply(batch) => life.check(batch, &helper.kernel),
                    }
                    assert!(request.is_none() && reply.is_none(), "two in flight");
                    request = Some(output);
                }
                assert!(
                    life.calc.poll_timeout().is_none_or(|at| at > now),
                    "a timer that has passed would spin"
                );
            }
            Event::Serve => {
                if let Some(output) = request.take() {
                    reply = Some(helper.serve(output));
                }
            }
            Event::Receive => match reply.take() {
                Some(Reply::Welcome(welcome, observed)) => {
                    life.greeting = false;
                    helper.feed.retain(|(seq, _)| *seq > welcome.feed);
                    life.link = observed.iter().find_map(|item| match item {
                        Observed::Link(state) => Some(state.link.clone()),
                        _ => None,
                    });
                    life.calc.handle(now, Input::Welcome(welcome, observed));
                    life.want(&wanted);
                }
                Some(Reply::Ack(ack)) => life.calc.handle(now, Input::Ack(ack)),
                Some(Reply::Refused) => {
                    helper.feed.clear();
                    life.calc.handle(now, Input::Disconnected);
                }
                None => {}
            },
            Event::Feed => {
                if !life.greeting
                    && life.calc.is_connected()
                    && let Some((_, event)) = helper.feed.pop_front()
                {
                    life.link(now, event);
                    life.want(&wanted);
                }
            }
            Event::LoseReply => {
                if reply.take().is_some() {
                    helper.feed.clear();
                    life.greeting = false;
                    life.calc.handle(now, Input::Disconnected);
                }
            }
            Event::ServeLate => {
                if let Some(request @ Output::Apply(_)) = late.pop() {
                    helper.serve(request);
                }
            }
            Event::CrashHelper => {
                helper.lease = None;
                helper.feed.clear();
                late.extend(request.take());
                reply = None;
                life.greeting = false;
                life.calc.handle(now, Input::Disconnected);
            }
            Event::CrashCalc => {
                late.extend(request.take());
                reply = None;
                helper.feed.clear();
                life = Life::default();
                life.want(&wanted);
            }
            Event::Drift(slot, value) => helper.drift(slot, value),
            Event::LinkGone => {
                if let Some(state) = helper.kernel.link.clone() {
                    helper.link(LinkEvent::Gone(state.link));
                }
            }
            Event::LinkNew => helper.new_link(),
            Event::LinkDown => helper.set_up(false),
            Event::LinkUp if helper.kernel.link.is_none() => helper.new_link(),
            Event::LinkUp => helper.set_up(true),
            Event::FailNext => helper.fail_next = true,
            Event::Wait(ms) => now += Duration::from_millis(ms.into()),
        }
    }
    check(&helper, &wanted);
    (helper, life)
}

/// Checks that the kernel holds what it should.
fn check(helper: &Helper, wanted: &BTreeMap<Slot, u8>) {
    let kernel = &helper.kernel;
    let link = kernel.link.as_ref().map(|state| &state.link);
    let mut expected = Kernel {
        link: kernel.link.clone(),
        ..Kernel::default()
    };
    for (slot, value) in wanted {
        match op(*slot, Some(*value), link).unwrap() {
            Op::BpfRoute(key, Some(_)) if *value == DENIED => {
                // Whatever was there is still there.
                let before = kernel.bpf.get(&key).cloned();
                expected.bpf.extend(before.map(|value| (key, value)));
            }
            // More than the map can hold: insert what was, if it is right.
            Op::BpfRoute(key, Some(route)) => {
                expected.bpf.insert(key, route);
            }
            other => expected.make(other).unwrap(),
        }
    }
    if expected.bpf.len() > usize::try_from(BPF_MAX_ENTRIES).unwrap() {
        let right = |(key, value): (&IpNet, _)| kernel.bpf.get(key) == Some(value);
        assert_eq!(expected.bpf.iter().filter(|e| right(*e)).count(), 3);
        expected.bpf.clone_from(&kernel.bpf);
    }
    assert_eq!(kernel, &expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn whatever_happens_it_converges(script in script()) {
        run(&script);
    }

    /// As long as calc and helper live, answers arrive and nobody interferes.
    #[test]
    fn what_is_right_is_not_written(script in script()) {
        let quiet: Vec<Event> = script
            .into_iter()
            .filter(|event| matches!(
                event,
                Event::Want(..) | Event::InSync(_) | Event::ConnectIfGone | Event::Resync
                | Event::Poll | Event::Serve | Event::Receive | Event::Feed | Event::Wait(_)
            ))
            .collect();
        let (helper, life) = run(&quiet);
        prop_assert_eq!(helper.redundant, 0);
        prop_assert!(life.calc.totals().pending == 0);
    }
}
