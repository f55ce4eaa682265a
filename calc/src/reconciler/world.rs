//! A world in one thread: the reconciler, a model of the helper and its kernel, a script.
//!
//! The script does the worst: crashes, lost and late messages, drift, faults, interfaces that come
//! and go. Whatever happened, once it stops the kernel holds what it should.

#![expect(
    clippy::wildcard_enum_match_arm,
    clippy::disallowed_methods,
    reason = "a model knows few ops, and any instant will do to start with"
)]

mod model;
mod script;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use ipc_proto::{Batch, Link, LinkEvent, Observed, Op};
use proptest::prelude::*;

use self::{
    model::{BPF_MAX_ENTRIES, DENIED, Helper, Kernel, Reply, op},
    script::{Event, Slot, script},
};
use super::{Input, Output, Peer, Reconciler};

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

    fn check(&self, batch: &Batch) {
        assert!(self.in_sync, "wrote before the datastore was in sync");
        let rank = |op: &Op| match op {
            Op::Neighbour(_, Some(_)) => 0,
            Op::BpfRoute(_, Some(_)) => 1,
            Op::KernelRoute(_, Some(_)) => 2,
            Op::KernelRoute(_, None) => 3,
            Op::BpfRoute(_, None) => 4,
            Op::Neighbour(_, None) => 5,
            other => panic!("{other:?}"),
        };
        let ops = || batch.steps.iter().map(|step| &step.op);
        for op in ops() {
            assert!(
                self.complete || self.ever_wanted.contains(&key(op)),
                "swept {op:?} although the datastore is incomplete"
            );
        }
        // Where the map is full, its clears come early.
        if !ops().any(|op| rank(op) == 4) {
            assert!(ops().is_sorted_by_key(rank), "{batch:?}");
        }
    }
}

/// All there is.
#[derive(Debug)]
struct World {
    now: Instant,
    helper: Helper,
    life: Life,
    wanted: BTreeMap<Slot, u8>,
    request: Option<Output>,
    reply: Option<Reply>,
    /// Requests that were thought lost.
    late: Vec<Output>,
}

impl World {
    fn new() -> Self {
        let mut helper = Helper::default();
        helper.new_link();
        Self {
            now: Instant::now(),
            helper,
            life: Life::default(),
            wanted: BTreeMap::new(),
            request: None,
            reply: None,
            late: Vec::new(),
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Want(slot, value) => {
                match value {
                    Some(value) => self.wanted.insert(slot, value),
                    None => self.wanted.remove(&slot),
                };
                self.life.want(&self.wanted);
            }
            Event::InSync(complete) => {
                self.life.in_sync = true;
                self.life.complete = complete;
                self.handle(Input::InSync { complete });
            }
            Event::Connect => self.cut(Input::Connected),
            Event::ConnectIfGone => {
                if matches!(self.life.calc.peer, Peer::Gone) {
                    self.cut(Input::Connected);
                }
            }
            Event::Resync => self.handle(Input::Resync),
            Event::Poll => self.poll(),
            Event::Serve => {
                if let Some(output) = self.request.take() {
                    self.reply = Some(self.helper.serve(output));
                }
            }
            Event::Receive => self.receive(),
            Event::Feed => self.feed(),
            Event::LoseReply => {
                if self.reply.is_some() {
                    self.cut(Input::Disconnected);
                }
            }
            Event::ServeLate => {
                if let Some(request @ Output::Apply(_)) = self.late.pop() {
                    self.helper.serve(request);
                }
            }
            Event::CrashHelper => {
                self.helper.lease = None;
                self.cut(Input::Disconnected);
            }
            Event::CrashCalc => {
                self.cut(Input::Disconnected);
                self.life = Life::default();
                self.life.want(&self.wanted);
            }
            Event::Drift(slot, value) => self.helper.drift(slot, value),
            Event::LinkGone => self.helper.end_link(),
            Event::LinkNew => self.helper.new_link(),
            Event::LinkDown => self.helper.set_up(false),
            Event::LinkUp if self.helper.kernel.link.is_none() => self.helper.new_link(),
            Event::LinkUp => self.helper.set_up(true),
            Event::FailNext => self.helper.fail_next = true,
            Event::Wait(ms) => self.now += Duration::from_millis(ms.into()),
        }
    }

    fn handle(&mut self, input: Input) {
        self.life.calc.handle(self.now, input);
    }

    /// The connection ends: what is under way is lost, or late.
    fn cut(&mut self, input: Input) {
        self.late.extend(self.request.take());
        self.reply = None;
        self.helper.feed.clear();
        self.handle(input);
    }

    fn poll(&mut self) {
        while let Some(output) = self.life.calc.poll(self.now) {
            match &output {
                Output::Notice(_) => continue,
                Output::Hello => {}
                Output::Apply(batch) => self.life.check(batch),
            }
            assert!(
                self.request.is_none() && self.reply.is_none(),
                "two in flight"
            );
            self.request = Some(output);
        }
        assert!(
            self.life.calc.poll_timeout().is_none_or(|at| at > self.now),
            "a timer that has passed would spin"
        );
    }

    fn receive(&mut self) {
        match self.reply.take() {
            Some(Reply::Welcome(welcome, observed)) => {
                let seen = welcome.feed;
                self.helper.feed.retain(|(seq, _)| *seq > seen);
                self.life.link = observed.iter().find_map(|item| match item {
                    Observed::Link(state) => Some(state.link.clone()),
                    _ => None,
                });
                self.handle(Input::Welcome(welcome, observed));
                self.life.want(&self.wanted);
            }
            Some(Reply::Ack(ack)) => self.handle(Input::Ack(ack)),
            Some(Reply::Refused) => self.cut(Input::Disconnected),
            None => {}
        }
    }

    /// The feed is held back until the answer to a Hello says what of it is known.
    fn feed(&mut self) {
        if matches!(self.life.calc.peer, Peer::Idle(_) | Peer::Busy(_))
            && let Some((_, event)) = self.helper.feed.pop_front()
        {
            self.life.link = match &event {
                LinkEvent::Set(state) => Some(state.link.clone()),
                LinkEvent::Gone(_) => None,
            };
            self.handle(Input::Link(event));
            self.life.want(&self.wanted);
        }
    }

    /// Checks that the kernel holds what it should, and that it is known to.
    fn check(&self) {
        let kernel = &self.helper.kernel;
        let link = kernel.link.as_ref().map(|state| &state.link);
        let mut desired = Kernel {
            link: kernel.link.clone(),
            ..Kernel::default()
        };
        let mut all_allowed = true;
        for (slot, value) in &self.wanted {
            match op(*slot, Some(*value), link).unwrap() {
                Op::BpfRoute(key, Some(route)) if *value == DENIED => {
                    all_allowed &= kernel.bpf.get(&key) == Some(&route);
                    // Whatever was there is still there.
                    let before = kernel.bpf.get(&key).cloned();
                    desired.bpf.extend(before.map(|value| (key, value)));
                }
                Op::BpfRoute(key, Some(route)) => drop(desired.bpf.insert(key, route)),
                other => desired.make(other).unwrap(),
            }
        }
        let fits = desired.bpf.len() <= BPF_MAX_ENTRIES;
        if !fits {
            let asked = desired.bpf.iter();
            let right = asked
                .filter(|(key, value)| kernel.bpf.get(key) == Some(value))
                .count();
            assert_eq!(right, BPF_MAX_ENTRIES, "as many as there is room for");
            desired.bpf.clone_from(&kernel.bpf);
        }
        assert_eq!(kernel, &desired);
        assert_eq!(self.life.calc.is_in_sync(), fits && all_allowed);
    }
}

/// Runs a script, lets the world settle, and checks that it did.
fn run(script: &[Event]) -> World {
    let settle = [Event::LinkUp, Event::InSync(true)];
    // Drift is only seen by a resync; anything else must heal without one.
    let drifted = script.iter().any(|event| matches!(event, Event::Drift(..)));
    let round = [
        Event::ConnectIfGone,
        Event::Poll,
        Event::Serve,
        Event::Receive,
        Event::Feed,
        // Longer than anything waits.
        Event::Wait(31_000),
    ];
    let mut world = World::new();
    script
        .iter()
        .copied()
        .chain(settle)
        .chain(drifted.then_some(Event::Resync))
        .chain(round.into_iter().cycle().take(6 * 30))
        .for_each(|event| world.take(event));
    world.check();
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

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
        prop_assert_eq!(run(&quiet).helper.redundant, 0);
    }
}
