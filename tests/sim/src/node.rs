//! `calc`'s process around its real cores: what one hears, the other is told, as its shell does.

mod hear;
mod send;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    net::IpAddr,
    num::NonZeroU16,
    time::{Duration, Instant},
};

use calc::{Calculator, FeedOrder, Input, Output, Page, Reconciler, Throttle, Train};
use ipc_proto::{BatchId, IfName, Lane, LinkEvent, Op, view};
use ipnet::IpNet;

use super::{
    bug::Bug,
    cluster::{self, Doc},
    datastore::Datastore,
    helper::Arrival,
    kernel::{Key, lead},
    pace::Pace,
    rules::{Broken, broken},
};

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

/// What has been wanted.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub(super) ever: BTreeSet<Key>,
    pub(super) bpf: BTreeSet<IpNet>,
    /// Which routes are wanted to pods here.
    leads: BTreeMap<Key, (IpAddr, u32)>,
}

impl Wanted {
    /// Takes note of ops, and returns those of which the model knows: it has no packet programs, which are
    /// for tests/packets.rs.
    fn note(&mut self, ops: Vec<Op>) -> Vec<Op> {
        let of_the_model = |op: Op| Some((Key::of(&op)?, op));
        let ops = ops.into_iter().filter_map(of_the_model);
        let noted = ops.map(|(key, op)| {
            if let Op::BpfRoute(prefix, route) = &op {
                if route.is_some() {
                    self.bpf.insert(*prefix);
                } else {
                    self.bpf.remove(prefix);
                }
            }
            if is_set(&op) {
                self.ever.insert(key.clone());
            }
            match lead(&op) {
                Some(lead) => self.leads.insert(key, lead),
                None => self.leads.remove(&key),
            };
            op
        });
        noted.collect()
    }
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
    /// What the connection sends by itself,
    train: Train,
    /// what it has sent so,
    sent: Vec<Arrival>,
    /// what it has heard and the cores have not,
    heard: VecDeque<Input>,
    /// and whether it is about to hear that nothing is to follow.
    recalling: bool,
    /// What is asked for while all is computed.
    early: Vec<Output>,
    /// The documents as this process knows them.
    known: BTreeMap<Doc, u16>,
    read: bool,
    complete: bool,
    pub(super) wanted: Wanted,
    /// The interfaces of the workloads with which BIRD speaks BGP, as the reconciler should know them.
    pub(super) peers: BTreeSet<IfName>,
    /// How often it has told of drift.
    pub(super) drifts: u64,
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
            train: Train::default(),
            sent: Vec::new(),
            heard: VecDeque::new(),
            recalling: false,
            early: Vec::new(),
            known: BTreeMap::new(),
            read: false,
            complete: false,
            wanted: Wanted::default(),
            peers: BTreeSet::new(),
            drifts: 0,
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

    /// Returns whether it has something to do at once.
    pub(super) fn is_stirred(&self) -> bool {
        self.news.answer
            || !self.heard.is_empty()
            || self.is_to_recall()
            || self.news.input && self.read && !self.throttled
    }

    /// Returns whether nothing else makes the connection hear that nothing is to follow.
    fn is_to_recall(&self) -> bool {
        let is_state = |asked: &Asked| asked.batch.is_some_and(|(lane, _)| lane == Lane::State);
        self.recalling && !self.asked.iter().any(is_state)
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
        self.news.input = true;
        self.doubt_forgotten = false;
        self.complete = datastore.is_complete(&self.known);
        if !self.complete && self.bug != Some(Bug::SweepIncomplete) {
            self.handle(now, Input::Unreadable);
        }
    }

    pub(super) fn resync(&mut self, now: Instant) {
        self.news.input = true;
        self.handle(now, Input::Resync);
    }

    /// Computes what follows from what came in, as far as it may, and returns what is sent.
    pub(super) fn think(&mut self, now: Instant) -> Result<Vec<Arrival>, Broken> {
        if self.is_to_recall() {
            self.recall();
        }
        if !self.news.input {
            // Either side may have its turn first.
            self.take_in_heard(now);
        }
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
        self.peers = cluster::peers(&self.known);
        if self.bug != Some(Bug::PeersUnheard) {
            let peers = self.calculator.bgp_peers();
            self.handle(now, Input::BgpPeers(peers));
        }
        self.resolve()?;
        let lax = self.doubt_forgotten || self.bug == Some(Bug::SweepIncomplete);
        let complete = self.complete || lax;
        self.handle(now, Input::InSync { complete });
        Ok(())
    }

    /// Computes what should be, as `calc::resolve` does.
    fn resolve(&mut self) -> Result<(), Broken> {
        let Self {
            calculator,
            reconciler,
            wanted,
            early,
            ..
        } = self;
        let is_new = calculator.is_new();
        let load = is_new.then(|| reconciler.load(calculator.named()));
        let result = if let Some(mut load) = load.flatten() {
            let mut send = |output| early.push(output);
            let begun = load.begin(wanted.note(calculator.resolve_first()), &mut send);
            let rest = calculator.resolve_early(load.size(), |ops| {
                load.add(wanted.note(ops), &mut send);
            });
            begun.and(load.end(wanted.note(rest)))
        } else {
            reconciler.want_all(wanted.note(calculator.resolve()))
        };
        result.or_else(|unplaced| broken("each op has a table", unplaced))
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
        for (address, link) in self.wanted.leads.values() {
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
            view::Kind::LinkAddresses,
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

/// Returns whether an op sets something.
pub(super) fn is_set(op: &Op) -> bool {
    match op {
        Op::LinkSettings(_, value) => value.is_some(),
        Op::TunnelDevice(_, value) => value.is_some(),
        Op::Neighbour(_, value) => value.is_some(),
        Op::Fdb(_, value) => value.is_some(),
        Op::BpfRoute(_, value) => value.is_some(),
        Op::KernelRoute(_, value) => value.is_some(),
        Op::LinkAddress(_, set) => *set,
        Op::Rule(..)
        | Op::Attachment(..)
        | Op::Endpoint(..)
        | Op::Vtep(..)
        | Op::ProgramSettings(_)
        | Op::Masquerade(_)
        | Op::FlowFlush(_) => true,
    }
}
