//! How the kernel's state is brought to the desired one.
//!
//! Pure: time comes in with each call and requests go out as values. There is at most one request
//! in flight, so whatever changes meanwhile is coalesced by key, and any doubt about what the
//! kernel holds ends in a new lease. Nothing is written before the datastore has shown all that it
//! holds and the helper all that the kernel does.

mod answers;
mod devices;
mod grace;
mod links;
mod load;
mod look;
mod notice;
mod plan;
mod readings;
mod rivals;
mod steps;
mod tables;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use ipc_proto::{
    Ack, Batch, BatchId, BpfRoute, FlowsDone, KernelRoute, Known, Lease, Link, LinkEvent, Op,
    RouteKey, Welcome,
};
use ipnet::IpNet;

pub(crate) use self::notice::{Contested, OldFlows};
use self::{
    answers::is_birds,
    devices::Devices,
    grace::Grace,
    links::{Doubt, Links},
    plan::{Recall, Sent},
    readings::Readings,
    tables::Tables,
};
pub use self::{
    load::Load,
    notice::Notice,
    tables::{Page, Unplaced},
};
pub use crate::table::Counts;
use crate::{
    flows::Flows,
    reading::{All, Reading},
};

/// How many notices an answer may cause, lest a full table of failures floods the log.
const MAX_NOTICES: usize = 16;

/// What the world tells the reconciler.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a reading is rare, and moved no more often than it must be"
)]
pub enum Input {
    /// The datastore has shown all that it holds.
    InSync {
        /// Whether what it does not ask for may be swept from the kernel.
        complete: bool,
    },
    /// Something in the datastore can no longer be read. What that means is told later, by
    /// [`InSync`](Self::InSync); nothing is swept from now on.
    Unreadable,
    /// Whether the kernel's routes are ours to change; they are if nothing is said.
    RouteSync(bool),
    /// The links of workloads with which BIRD speaks BGP: its routes on those are its own, none
    /// if nothing is said.
    BgpPeers(BTreeSet<Link>),
    /// The helper can be reached, perhaps for the first time.
    Connected,
    /// The helper went away, or a request got no usable answer.
    Disconnected,
    /// The answer to [`Output::Hello`], with what the helper read.
    Welcome(Welcome, Reading),
    /// The answer to [`Output::Apply`] or [`Output::Follow`].
    Ack(Ack),
    /// The answer to [`Output::Recall`]: nothing follows any more, and this batch of [`Lane::State`] has been
    /// sent and is not answered.
    Recalled(Option<BatchId>),
    /// The flushes of a batch of [`Lane::Flows`] have ended.
    Flushed(FlowsDone),
    /// Somebody asks for the kernel to be read back.
    Resync,
    /// An interface has changed.
    Link(LinkEvent),
    /// Others have changed something else that may be ours.
    Drift,
}

/// What the reconciler asks of the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Start a lease, and read back what is not known.
    Hello(Known),
    /// Apply a batch.
    Apply(Arc<Batch>),
    /// Apply a batch after the last one of its lane, as soon as all of that is made; not at all if
    /// something of it fails, or what follows is called back before.
    Follow(Arc<Batch>),
    /// Send nothing that follows any more, and say what has been sent.
    Recall,
    /// Tell the operator.
    Notice(Notice),
    /// Tell allocators: nobody has this address any more, and nothing is left of who had it.
    AddressClean(IpAddr),
}

/// What consumers are to be told of the BPF route maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// These keys are no longer what was told of them; nothing is absent.
    Changes(Vec<(IpNet, Option<BpfRoute>)>),
    /// More has changed than is told one by one.
    Anew,
}

/// How things stand with the datastore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Datastore {
    /// It has not shown all that it holds.
    #[default]
    Starting,
    /// It has, but for documents that cannot be read: nothing may be swept.
    Incomplete,
    /// It has.
    Complete,
}

/// How things stand with the consumers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Telling {
    /// They were never told anything.
    #[default]
    Never,
    /// They were told, and no answer has been taken in since.
    Done,
    /// An answer has been taken in since.
    Due,
}

/// How things stand with the helper.
#[derive(Debug, Default)]
enum Peer {
    /// It cannot be reached.
    #[default]
    Gone,
    /// A lease is to be asked for.
    Fresh,
    /// A lease was asked for.
    Greeting,
    /// A lease is held.
    Idle(Grant),
    /// A batch is in flight.
    Busy(Flight),
}

/// What a lease allows.
#[derive(Clone, Copy, Debug)]
struct Grant {
    lease: Lease,
    max_steps: usize,
    bpf_max_entries: usize,
}

/// What is not answered yet.
#[derive(Debug)]
struct Flight {
    grant: Grant,
    /// The batch in flight, and those that follow it by themselves.
    batches: VecDeque<Sent>,
    /// What became doubtful meanwhile, be it before or after their steps were made.
    doubts: Vec<Doubt>,
    /// Whether what follows was looked for since the last answer.
    looked_ahead: bool,
    /// Whether what followed was called back: then nothing follows any more.
    called_back: bool,
    /// Whether anything else has happened since it began.
    disturbed: bool,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Reconciler {
    tables: Tables,
    links: Links,
    devices: Devices,
    grace: Grace,
    bgp_peers: BTreeSet<Link>,
    /// BIRD's routes to those, as they were read.
    birds_own: All<RouteKey, KernelRoute>,
    readings: Readings,
    flows: Flows,
    peer: Peer,
    /// Of the batches that follow the one in flight, those that are to be handed on.
    following: VecDeque<Arc<Batch>>,
    recall: Recall,
    datastore: Datastore,
    /// Whether this connection has had a lease.
    welcomed: bool,
    /// Whether the kernel is to be read back once the request in flight is answered.
    resync: bool,
    /// Whether it is to be read back once all changes are made.
    reread: bool,
    notices: VecDeque<Notice>,
    clean: VecDeque<IpAddr>,
    next_id: u64,
    /// How often a lease was asked for.
    hellos: u64,
    /// How often the kernel was read back.
    resyncs: u64,
    telling: Telling,
}

impl Reconciler {
    /// Makes one that forgets no flows, for where nothing tracks them: the recorded behaviour of the
    /// reference's BPF route manager, say.
    #[must_use]
    pub fn without_flows() -> Self {
        let mut reconciler = Self::default();
        reconciler.flows.turn_off();
        reconciler
    }

    /// Has a route that nobody wants spared for this long on a workload's link that is new, since
    /// it may be wanted soon: 10 seconds if nothing is said.
    #[must_use]
    pub fn with_grace(mut self, period: Duration) -> Self {
        self.grace = Grace::new(period);
        self
    }

    /// Says what one key should be.
    ///
    /// # Errors
    ///
    /// If there is no table for ops of its kind.
    pub fn want(&mut self, op: Op) -> Result<(), Unplaced> {
        self.replan();
        self.take_note(&op);
        self.tables.want(op)
    }

    /// Takes in what something that is wanted means for the rest: for flows, for the grace of links,
    /// and for what is spared.
    fn take_note(&mut self, op: &Op) {
        self.flows.want(op);
        let ends = self.grace.ends_with(op);
        self.tables.spare_none_for(op);
        // They are to be removed, as soon as the new one is there.
        self.reread |= self.tables.claims_others(op);
        if ends {
            self.tables
                .spare_only(|route| self.grace.until(route).is_some());
        }
    }

    /// Takes no more memory than it must: after a load, what came with it is in loose order.
    pub fn pack(&mut self) {
        self.tables.pack();
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::InSync { complete } => {
                let datastore = if complete {
                    Datastore::Complete
                } else {
                    Datastore::Incomplete
                };
                if self.datastore != datastore {
                    // Before it was read, nothing but a first load can be under way, which goes on.
                    if self.datastore != Datastore::Starting {
                        self.replan();
                    }
                    self.datastore = datastore;
                }
            }
            Input::Unreadable => {
                if self.datastore == Datastore::Complete {
                    self.replan();
                    self.datastore = Datastore::Incomplete;
                }
            }
            Input::RouteSync(syncs) => {
                if self.tables.sync_routes(syncs) {
                    // From here on, or again, they are what is read.
                    self.handle(now, Input::Resync);
                }
            }
            Input::BgpPeers(links) => {
                if self.bgp_peers != links {
                    self.bgp_peers = links;
                    self.birds_own.clear();
                    // Others of its routes are not to be known from here on.
                    self.handle(now, Input::Resync);
                    self.tables
                        .doubt_routes_that(|route| is_birds(route, &self.bgp_peers));
                }
            }
            Input::Connected => self.restart(Peer::Fresh),
            Input::Disconnected => self.restart(Peer::Gone),
            Input::Welcome(welcome, reading) => self.welcome(now, &welcome, reading),
            Input::Ack(ack) => self.ack(now, ack),
            Input::Recalled(in_flight) => self.recalled(in_flight),
            Input::Flushed(done) => self.flushed(now, done),
            Input::Drift => self.readings.hear(now),
            Input::Resync => {
                self.replan();
                match self.peer {
                    Peer::Idle(_) => self.peer = Peer::Fresh,
                    Peer::Greeting | Peer::Busy(_) => self.resync = true,
                    Peer::Gone | Peer::Fresh => {}
                }
            }
            Input::Link(event) => {
                self.replan();
                match &event {
                    LinkEvent::Set(state) => {
                        self.flows.link(state);
                        self.grace.seen(now, state);
                    }
                    LinkEvent::Gone(link) => self.grace.gone(link.index),
                }
                self.devices.hear(&event, &self.links);
                if let Some(doubt) = self.links.take(event, &mut self.tables) {
                    if self.tables.misses(&doubt) {
                        self.readings.hear(now);
                    }
                    self.tables.doubt(&doubt);
                    if let Peer::Busy(flight) = &mut self.peer {
                        flight.doubts.push(doubt);
                    }
                }
            }
        }
    }

    /// Returns the next request, if there is one to make.
    pub fn poll(&mut self, now: Instant) -> Option<Output> {
        if let Some(output) = self.call_back() {
            return Some(output);
        }
        if let Some(batch) = self.following.pop_front() {
            return Some(Output::Follow(batch));
        }
        let lane = self.lane();
        if lane.is_some() {
            self.review_links(now);
            let mut news = Vec::new();
            self.flows.start(self.tables.sets_of_routes());
            self.flows.review(now, &self.tables, &mut news);
            self.report(news);
        }
        if let Some(notice) = self.notices.pop_front() {
            return Some(Output::Notice(notice));
        }
        if let Some(address) = self.clean.pop_front() {
            return Some(Output::AddressClean(address));
        }
        // A reading begins with nothing unanswered on either lane.
        let is_fresh = matches!(self.peer, Peer::Fresh) && self.recall == Recall::Over;
        if is_fresh && !self.flows.awaits_ack() {
            return Some(self.hello());
        }
        let (grant, is_free) = lane?;
        let batch = is_free.then(|| self.changes(now, grant)).flatten();
        self.grace.go_on(now);
        let reading = self.reading().is_some_and(|at| at <= now);
        let answered = is_free && !self.flows.awaits_ack();
        if answered && batch.is_none() && (self.reread || reading) {
            return Some(self.hello());
        }
        if let Some(batch) = batch {
            return Some(Output::Apply(batch));
        }
        let id = BatchId(self.next_id);
        let flushes = self.flows.poll(now, grant.lease, id, grant.max_steps);
        if let Some(batch) = flushes {
            self.next_id += 1;
            return Some(Output::Apply(Arc::new(batch)));
        }
        self.plan_ahead();
        self.following.pop_front().map(Output::Follow)
    }

    /// Asks for a lease.
    fn hello(&mut self) -> Output {
        self.peer = Peer::Greeting;
        self.hellos = self.hellos.wrapping_add(1);
        let mut known = self.tables.known(self.hellos);
        // The helper does not know whose they are.
        if let Some(sum) = &mut known.kernel_routes {
            for (key, route) in &self.birds_own {
                sum.add(known.seed, key, route.as_ref());
            }
        }
        Output::Hello(known)
    }

    /// Returns the lease if anything may be written, and whether no change is in flight.
    fn lane(&self) -> Option<(Grant, bool)> {
        if self.datastore == Datastore::Starting {
            return None;
        }
        match &self.peer {
            Peer::Idle(grant) => Some((*grant, self.recall == Recall::Over)),
            Peer::Busy(flight) => Some((flight.grant, false)),
            Peer::Gone | Peer::Fresh | Peer::Greeting => None,
        }
    }

    /// Returns when to call [`poll`](Self::poll) again if nothing happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (_, is_free) = self.lane()?;
        let changes = is_free.then(|| self.tables.poll_timeout()).flatten();
        let grace = is_free.then(|| self.grace.poll_timeout()).flatten();
        let answered = is_free && !self.flows.awaits_ack();
        let reading = answered.then(|| self.reading()).flatten();
        [changes, grace, reading, self.flows.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns when all is to be read for a cause.
    fn reading(&self) -> Option<Instant> {
        self.readings.next(self.grace.is_due())
    }

    /// Returns whether what nobody wants may be swept from the kernel.
    fn sweeps(&self) -> bool {
        self.datastore == Datastore::Complete
    }
}
