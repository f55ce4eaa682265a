//! `calc`'s process around its real cores: what one hears, the other is told, as its shell does.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
    time::{Duration, Instant},
};

use calc::{Calculator, FeedOrder, Input, Output, Page, Reconciler, event::Event};
use ipc_proto::{Ack, Batch, BatchId, Feed, FlowsDone, Lane, Observed, Op, OpError, view};
use ipnet::IpNet;

use super::{
    bug::Bug,
    cluster::{self, Doc},
    datastore::Datastore,
    helper::{Arrival, Message},
    kernel::{Key, lead},
    rules::{Broken, broken},
};

/// No space left.
const ENOSPC: i32 = 28;
/// How long `calc` waits for an answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A request on its way.
#[derive(Debug)]
struct Asked {
    at: Instant,
    batch: Option<(Lane, BatchId)>,
    /// Whether its end was told before it was answered.
    ended: bool,
}

/// See the [module](self).
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Node {
    calculator: Calculator,
    pub(super) reconciler: Reconciler,
    order: FeedOrder,
    pub(super) connected: bool,
    /// The requests that have no answer yet.
    asked: VecDeque<Asked>,
    batch: Option<BatchId>,
    /// The documents as this process knows them.
    known: BTreeMap<Doc, u16>,
    read: bool,
    complete: bool,
    ever_wanted: BTreeSet<Key>,
    pub(super) bpf_desired: BTreeSet<IpNet>,
    /// Which routes are wanted to pods here.
    leads: BTreeMap<Key, (IpAddr, u32)>,
    /// Something came in since it last computed.
    pub(super) stirred: bool,
    /// Since when its clock stands still, by a bug.
    frozen: Option<Instant>,
    bug: Option<Bug>,
}

impl Node {
    pub(super) fn new(now: Instant, bug: Option<Bug>) -> Self {
        let mut node = Self {
            calculator: Calculator::new(cluster::node_name(0)),
            reconciler: Reconciler::default(),
            order: FeedOrder::default(),
            connected: false,
            asked: VecDeque::new(),
            batch: None,
            known: BTreeMap::new(),
            read: false,
            complete: false,
            ever_wanted: BTreeSet::new(),
            bpf_desired: BTreeSet::new(),
            leads: BTreeMap::new(),
            stirred: true,
            frozen: (bug == Some(Bug::HoldForever)).then_some(now),
            bug,
        };
        if bug == Some(Bug::EarlyWrite) {
            node.handle(now, Input::InSync { complete: true });
        }
        node
    }

    fn handle(&mut self, now: Instant, input: Input) {
        self.stirred = true;
        let now = self.clock(now);
        self.reconciler.handle(now, input);
    }

    fn clock(&self, now: Instant) -> Instant {
        self.frozen.unwrap_or(now)
    }

    /// Wakes up on a host that has slept since then.
    pub(super) fn slept(&mut self, since: Instant) {
        if self.bug == Some(Bug::TimersLostInSleep) {
            self.frozen = Some(self.frozen.unwrap_or(since));
        }
    }

    /// Returns whether the datastore has something that this process does not know.
    pub(super) fn is_behind(&self, datastore: &Datastore) -> bool {
        !self.read
            || self.complete != datastore.is_complete(&self.known)
            || datastore.has_news(&self.known)
    }

    /// Reads the datastore.
    pub(super) fn deliver(&mut self, now: Instant, datastore: &Datastore, from: u8) {
        let news: Vec<(Doc, Option<u16>)> = datastore.news(&self.known, from).collect();
        for (doc, variant) in news {
            match variant {
                Some(variant) => self.known.insert(doc, variant),
                None => self.known.remove(&doc),
            };
            if variant.is_some() || self.bug != Some(Bug::RemovalLost) {
                self.calculator.handle(cluster::event(doc, variant));
            }
        }
        self.read = true;
        self.complete = datastore.is_complete(&self.known);
        let complete = self.complete || self.bug == Some(Bug::SweepIncomplete);
        self.handle(now, Input::InSync { complete });
    }

    pub(super) fn connect(&mut self, now: Instant) {
        self.connected = true;
        self.order = FeedOrder::default();
        self.handle(now, Input::Connected);
        if self.bug == Some(Bug::DoubtForgotten) && self.read {
            self.handle(now, Input::InSync { complete: true });
        }
    }

    pub(super) fn disconnect(&mut self, now: Instant) {
        self.connected = false;
        self.asked.clear();
        self.handle(now, Input::Disconnected);
    }

    pub(super) fn resync(&mut self, now: Instant) {
        self.handle(now, Input::Resync);
    }

    /// Takes in a message, or returns why the connection must end.
    pub(super) fn hear(&mut self, now: Instant, message: Message) -> Result<(), &'static str> {
        match message {
            Message::Closed => return Err("closed"),
            Message::Refused => return Err("refused"),
            Message::Feed(mut feed) => {
                if self.bug == Some(Bug::FeedLost) && feed.seq % 7 == 0 {
                    feed.events.clear();
                }
                let feed = self.order.push(feed).map_err(|_gap| "gap")?;
                self.feeds(now, feed);
            }
            Message::Ack(mut ack) => {
                // As on D-Bus, an answer tells which request it is for.
                let id = |asked: &Asked| asked.batch.map(|(_, id)| id);
                let of_this = |asked: &Asked| id(asked) == Some(ack.id);
                let at = match self.bug {
                    Some(Bug::AckOfOlder) => Some(0),
                    _ => self.asked.iter().position(of_this),
                };
                if at.and_then(|at| self.asked.remove(at)).is_none() {
                    return Err("not asked for");
                }
                if self.bug == Some(Bug::FullForEver) {
                    for (_, error) in &mut ack.failed {
                        if matches!(error, OpError::Kernel { errno: ENOSPC, .. }) {
                            *error = OpError::Denied("full".into());
                        }
                    }
                }
                if self.bug == Some(Bug::FailureUnheard) {
                    ack.failed
                        .retain(|(_, error)| matches!(error, OpError::Denied(_)));
                }
                self.ack(now, ack);
            }
            Message::Flushed(done) => {
                // Only where its acknowledgement, which comes first, was lost is it still waited for.
                let of_this = |asked: &&mut Asked| asked.batch.is_some_and(|(_, id)| id == done.id);
                if let Some(asked) = self.asked.iter_mut().find(of_this) {
                    asked.ended = true;
                }
                self.handle(now, Input::Flushed(done));
            }
            Message::Welcome(welcome, mut observed) => {
                let at = self.asked.iter().position(|asked| asked.batch.is_none());
                if at.and_then(|at| self.asked.remove(at)).is_none() {
                    return Err("not asked for");
                }
                let held = self.order.follow(welcome.feed).map_err(|_gap| "gap")?;
                if self.bug == Some(Bug::SnapshotIgnored) {
                    observed.retain(|item| matches!(item, Observed::Link(_)));
                }
                let links = observed
                    .iter()
                    .filter_map(Observed::link)
                    .cloned()
                    .collect();
                self.calculator.handle(Event::Links(links));
                self.handle(now, Input::Welcome(welcome, observed.into_iter().collect()));
                self.feeds(now, held);
            }
        }
        Ok(())
    }

    fn ack(&mut self, now: Instant, mut ack: Ack) {
        if self.bug == Some(Bug::AckOfOlder)
            && let Some(batch) = self.batch
        {
            ack.id = batch;
        }
        self.handle(now, Input::Ack(ack));
    }

    /// Takes in an acknowledgement of who knows when, which the shell would not let through.
    pub(super) fn late_ack(&mut self, now: Instant, ack: Ack) {
        if self.bug == Some(Bug::AckOfOlder) {
            self.asked.retain(|asked| asked.batch.is_none());
        }
        self.ack(now, ack);
    }

    fn feeds(&mut self, now: Instant, feeds: impl IntoIterator<Item = Feed>) {
        for feed in feeds {
            for event in feed.events {
                if self.bug != Some(Bug::FlapUnheard) {
                    self.handle(now, Input::Link(event.clone()));
                }
                self.calculator.handle(Event::Link(event));
                self.stirred = true;
            }
            if !feed.drift.is_empty() && self.bug != Some(Bug::DriftUnheard) {
                self.handle(now, Input::Drift);
            }
        }
    }

    /// Computes what follows, and returns what is sent.
    pub(super) fn think(&mut self, now: Instant) -> Result<Vec<Arrival>, Broken> {
        self.stirred = false;
        for op in self.calculator.resolve() {
            if Key::of(&op).is_none() {
                // The model has no packet programs; those are for tests/packets.rs.
                continue;
            }
            if let Op::BpfRoute(prefix, route) = &op {
                if route.is_some() {
                    self.bpf_desired.insert(*prefix);
                } else {
                    self.bpf_desired.remove(prefix);
                }
            }
            match (Key::of(&op), lead(&op)) {
                (Some(key), Some(lead)) => drop(self.leads.insert(key, lead)),
                (Some(key), None) => drop(self.leads.remove(&key)),
                (None, _) => {}
            }
            if is_set(&op) {
                self.ever_wanted.extend(Key::of(&op));
            }
            if let Err(unplaced) = self.reconciler.want(op) {
                return broken("each op has a table", unplaced);
            }
        }
        let mut sent = Vec::new();
        let clock = self.clock(now);
        while let Some(output) = self.reconciler.poll(clock) {
            let arrival = match output {
                Output::Notice(_) | Output::AddressClean(_) => continue,
                Output::Hello => {
                    self.order.hold();
                    Arrival::Hello
                }
                Output::Apply(batch) => {
                    self.check(&batch)?;
                    match batch.lane {
                        Lane::State => self.batch = Some(batch.id),
                        Lane::Flows if self.bug == Some(Bug::FlushNotAwaited) => {
                            let (lease, id) = (batch.lease, batch.id);
                            let failed = Vec::new();
                            let done = FlowsDone { lease, id, failed };
                            self.reconciler.handle(clock, Input::Flushed(done));
                        }
                        Lane::Flows => {}
                    }
                    Arrival::Apply(batch)
                }
            };
            let batch = match &arrival {
                Arrival::Apply(batch) => Some((batch.lane, batch.id)),
                Arrival::Hello | Arrival::Late(_) | Arrival::End => None,
            };
            let lane = |asked: &Asked| asked.batch.map(|(lane, _)| lane);
            let is_busy = self.asked.iter().filter(|asked| !asked.ended).any(|asked| {
                // A lease may be asked for while flows are on their way.
                let lane = lane(asked).unwrap_or(Lane::State);
                lane == batch.map_or(Lane::State, |(lane, _)| lane)
            });
            if !self.connected || is_busy {
                return broken("one request at a time on a lane, to who is there", arrival);
            }
            self.asked.push_back(Asked {
                at: now,
                batch,
                ended: false,
            });
            sent.push(arrival);
        }
        match self.reconciler.poll_timeout() {
            Some(at) if at <= clock => broken("I10: no timer spins", clock - at),
            Some(_) | None => Ok(sent),
        }
    }

    fn check(&self, batch: &Batch) -> Result<(), Broken> {
        if !self.read {
            return broken(
                "I1: nothing is written before the datastore is in sync",
                batch,
            );
        }
        if batch.lane == Lane::Flows {
            let is_flush = |step: &ipc_proto::Step| matches!(step.op, Op::FlowFlush(_));
            return if batch.steps.iter().all(is_flush) {
                Ok(())
            } else {
                broken("nothing but flushes on the lane of flows", batch)
            };
        }
        // Where a BPF map is full, its clears come early.
        let places = || batch.steps.iter().map(|step| place(&step.op));
        let breaks_early = places().any(|place| place == 11 - 4);
        if !breaks_early && !places().is_sorted() {
            return broken("what leads to something is made after it", batch);
        }
        let mut clears = batch.steps.iter().filter(|step| !is_set(&step.op));
        let sweep = clears.find(|step| {
            let key = Key::of(&step.op);
            !key.is_some_and(|key| self.ever_wanted.contains(&key))
        });
        match sweep {
            Some(step) if !self.complete => broken("no sweep of an incomplete datastore", step),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns when it has something to do if nothing happens.
    pub(super) fn due(&self) -> Option<Instant> {
        let call = self.asked.front().map(|asked| asked.at + CALL_TIMEOUT);
        let retry = self.reconciler.poll_timeout();
        [call, retry.filter(|_| self.frozen.is_none())]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns whether an answer is overdue.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        let asked = self.asked.front();
        asked.is_some_and(|asked| asked.at + CALL_TIMEOUT <= now)
    }

    /// Returns the addresses that two pods claim, and those whose new owner no longer waits for
    /// flows to be forgotten.
    pub(super) fn disputed(&self) -> BTreeSet<IpAddr> {
        let mut disputed: BTreeSet<IpAddr> = self
            .reconciler
            .with_old_flows()
            .map(|(address, _)| address)
            .collect();
        let mut first = BTreeMap::new();
        for (address, link) in self.leads.values() {
            if *first.entry(*address).or_insert(*link) != *link {
                disputed.insert(*address);
            }
        }
        disputed
    }

    /// Returns what it wants, by key.
    pub(super) fn desired(&self) -> BTreeMap<Key, Op> {
        let kinds = [
            view::Kind::LinkSettings,
            view::Kind::TunnelDevices,
            view::Kind::Neighbours,
            view::Kind::Fdb,
            view::Kind::BpfRoutes,
            view::Kind::KernelRoutes,
        ];
        kinds
            .into_iter()
            .flat_map(|kind| {
                self.reconciler.rows(&Page {
                    kind,
                    skip: 0,
                    max: usize::MAX,
                    differing: false,
                })
            })
            .filter_map(|row| row.desired)
            .filter_map(|op| Some((Key::of(&op)?, op)))
            .collect()
    }
}

/// Returns when in a batch an op has its place: what others need is set first and cleared last.
fn place(op: &Op) -> u8 {
    let place = match op {
        Op::LinkSettings(..) => 0,
        Op::TunnelDevice(..) => 1,
        Op::Fdb(..) => 2,
        Op::Neighbour(..) => 3,
        Op::BpfRoute(..) => 4,
        Op::KernelRoute(..)
        | Op::Rule(..)
        | Op::Attachment(..)
        | Op::Endpoint(..)
        | Op::Vtep(..)
        | Op::ProgramSettings(_)
        | Op::Masquerade(_)
        | Op::FlowFlush(_) => 5,
    };
    if is_set(op) { place } else { 11 - place }
}

/// Returns whether an op sets something.
pub(super) fn is_set(op: &Op) -> bool {
    match op {
        Op::LinkSettings(_, value) => value.is_some(),
        Op::TunnelDevice(_, value) => value.is_some(),
        Op::Neighbour(_, value) => value.is_some(),
        Op::Fdb(_, value) => value.is_some(),
        Op::BpfRoute(_, value) => value.is_some(),
        Op::KernelRoute(_, value) => value.is_some(),
        Op::Rule(..)
        | Op::Attachment(..)
        | Op::Endpoint(..)
        | Op::Vtep(..)
        | Op::ProgramSettings(_)
        | Op::Masquerade(_)
        | Op::FlowFlush(_) => true,
    }
}
