//! `calc`'s process around its real cores: what one hears, the other is told, as its shell does.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    net::IpAddr,
    num::NonZeroU16,
    time::{Duration, Instant},
};

use calc::{Calculator, FeedOrder, Input, Output, Page, Reconciler, Throttle, event::Event};
use ipc_proto::{
    Ack, Batch, BatchId, Feed, FlowsDone, Lane, LinkEvent, Observed, Op, OpError, view,
};
use ipnet::IpNet;

use super::{
    bug::Bug,
    cluster::{self, Doc},
    datastore::Datastore,
    helper::{Arrival, Message},
    kernel::{Key, lead},
    pace::Pace,
    rules::{Broken, broken},
};

/// No space left.
const ENOSPC: i32 = 28;
/// How many applies whoever was idle has at once, by default.
const APPLY_BURST: NonZeroU16 = NonZeroU16::new(10).unwrap();
/// In what time there is one more.
const APPLY_INTERVAL: Duration = Duration::from_millis(100);
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

/// What has come in since it was last looked at.
#[derive(Debug, Default)]
struct News {
    /// Something that an apply is to follow from.
    input: bool,
    /// A reading of the kernel, for which the apply that asked for it had its token.
    reading: bool,
    /// An answer of the helper, which may be sent more.
    answer: bool,
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
    news: News,
    throttle: Throttle,
    pace: Pace,
    /// An apply waits for a token.
    pub(super) throttled: bool,
    /// Changes of interfaces that the cores have not heard: they hear of them in an apply.
    links: Vec<LinkEvent>,
    /// What is unfinished passes for complete, by a bug.
    doubt_forgotten: bool,
    /// Since when its clock stands still, by a bug.
    frozen: Option<Instant>,
    bug: Option<Bug>,
}

impl Node {
    pub(super) fn new(now: Instant, throttled: bool, bug: Option<Bug>) -> Self {
        let interval = if throttled {
            APPLY_INTERVAL
        } else {
            Duration::ZERO
        };
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
            news: News::default(),
            throttle: Throttle::new(now, APPLY_BURST, interval),
            pace: Pace::new(APPLY_BURST, interval),
            throttled: false,
            links: Vec::new(),
            doubt_forgotten: false,
            frozen: (bug == Some(Bug::HoldForever)).then_some(now),
            bug,
        };
        if bug == Some(Bug::EarlyWrite) {
            node.handle(now, Input::InSync { complete: true });
        }
        node
    }

    /// Takes in an answer of the helper, or news that come before it.
    fn answered(&mut self, now: Instant, input: Input) {
        self.news.answer = true;
        if !matches!(input, Input::Ack(_) | Input::Flushed(_)) {
            self.hear_links(now);
        }
        self.handle(now, input);
    }

    /// Returns whether it has something to do at once.
    pub(super) fn is_stirred(&self) -> bool {
        self.news.answer || self.news.input && self.read && !self.throttled
    }

    fn handle(&mut self, now: Instant, input: Input) {
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
    pub(super) fn deliver(&mut self, datastore: &Datastore, from: u8) {
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
        self.news.input = true;
        self.doubt_forgotten = false;
        self.complete = datastore.is_complete(&self.known);
    }

    pub(super) fn connect(&mut self, now: Instant) {
        self.connected = true;
        self.order = FeedOrder::default();
        self.answered(now, Input::Connected);
        self.doubt_forgotten = self.bug == Some(Bug::DoubtForgotten) && self.read;
    }

    pub(super) fn disconnect(&mut self, now: Instant) {
        self.connected = false;
        self.asked.clear();
        self.answered(now, Input::Disconnected);
    }

    pub(super) fn resync(&mut self, now: Instant) {
        self.news.input = true;
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
                self.answered(now, Input::Flushed(done));
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
                // What was heard before is older than what was read.
                self.hear_links(now);
                self.calculator.handle(Event::Links(links));
                self.news.input = true;
                self.news.reading = true;
                let reading = observed.into_iter().collect();
                self.answered(now, Input::Welcome(welcome, reading));
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
        self.answered(now, Input::Ack(ack));
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
            self.news.input = true;
            self.links.extend(feed.events);
            if !feed.drift.is_empty() && self.bug != Some(Bug::DriftUnheard) {
                self.answered(now, Input::Drift);
            }
        }
    }

    /// The cores hear of changes of interfaces.
    fn hear_links(&mut self, now: Instant) {
        for event in mem::take(&mut self.links) {
            if self.bug != Some(Bug::FlapUnheard) {
                self.handle(now, Input::Link(event.clone()));
            }
            self.calculator.handle(Event::Link(event));
        }
    }

    /// Computes what follows from what came in, as far as it may, and returns what is sent.
    pub(super) fn think(&mut self, now: Instant) -> Result<Vec<Arrival>, Broken> {
        let admitted = self.admit(now)?;
        let answered = mem::take(&mut self.news.answer);
        if admitted {
            self.apply(now)?;
        }
        if admitted || answered || !self.read {
            self.send(now)
        } else {
            Ok(Vec::new())
        }
    }

    /// Whether to apply now: the datastore has been read, there is a cause, and there is a token.
    fn admit(&mut self, now: Instant) -> Result<bool, Broken> {
        let reading = mem::take(&mut self.news.reading);
        if !self.read {
            self.hear_links(now);
            return Ok(false);
        }
        let clock = self.clock(now);
        let timer = self.reconciler.poll_timeout();
        let is_due = self.news.input || timer.is_some_and(|at| at <= clock);
        self.throttled = false;
        if !is_due || reading {
            return Ok(is_due);
        }
        self.throttled = !self.throttle.admit(now);
        if self.throttled {
            self.pace.refused(now, self.throttle.next())?;
            self.news.input &= self.bug != Some(Bug::ThrottledForgotten);
        } else {
            self.pace.admitted(now)?;
        }
        Ok(!self.throttled)
    }

    /// Has the reconciler hear of what should be.
    fn apply(&mut self, now: Instant) -> Result<(), Broken> {
        self.news.input = false;
        self.hear_links(now);
        let mut wanted = Vec::new();
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
            wanted.push(op);
        }
        if let Err(unplaced) = self.reconciler.want_all(wanted) {
            return broken("each op has a table", unplaced);
        }
        let lax = self.doubt_forgotten || self.bug == Some(Bug::SweepIncomplete);
        let complete = self.complete || lax;
        self.handle(now, Input::InSync { complete });
        Ok(())
    }

    /// Asks for all that can be asked at present.
    fn send(&mut self, now: Instant) -> Result<Vec<Arrival>, Broken> {
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
        let retry = if self.throttled {
            self.throttle.next()
        } else {
            let retry = self.reconciler.poll_timeout();
            retry.filter(|_| self.read && self.frozen.is_none())
        };
        [call, retry].into_iter().flatten().min()
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
