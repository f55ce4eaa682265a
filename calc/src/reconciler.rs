//! How the kernel's state is brought to the desired one.
//!
//! Pure: time comes in with each call and requests go out as values. There is at most one request
//! in flight, so whatever changes meanwhile is coalesced by key, and any doubt about what the
//! kernel holds ends in a new lease. What follows a batch is planned with it, and sent before that
//! one's answer is taken in, if all of it was made and nothing else has happened.
//! Nothing is written before the datastore has shown all that it
//! holds and the helper all that the kernel does.

mod devices;
mod grace;
mod links;
mod load;
mod notice;
mod readings;
mod rivals;
mod steps;
mod tables;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
    time::{Duration, Instant},
};

use ipc_proto::{
    Ack, Batch, BatchId, BpfRoute, FlowsDone, KernelRoute, Known, Lane, Lease, Link, LinkEvent,
    Many, Op, OpError, Protocol, Rivals, RouteKey, Step, Welcome,
    view::{self, Row},
};
use ipnet::IpNet;

use self::{
    devices::Devices,
    grace::Grace,
    links::{Doubt, Links},
    readings::Readings,
    steps::{Steps, hops},
    tables::Tables,
};
pub use self::{
    notice::Notice,
    tables::{Page, Unplaced},
};
pub(crate) use self::{
    notice::{Contested, OldFlows},
    readings::Drift,
};
pub use crate::table::Counts;
use crate::{
    flows::{Flows, News},
    reading::{All, Reading},
    table::Verdict,
};

/// How many batches are planned at a time: each but the first is sent if all before it was made and
/// nothing else has happened, so that the helper waits for nothing but the wire.
const PLANNED: usize = 8;

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
    /// The answer to [`Output::Apply`].
    Ack(Ack),
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
    Apply(Batch),
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
    /// They were told, and no answer has come since.
    Done,
    /// An answer has come since.
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

/// A batch that is not answered yet.
#[derive(Debug)]
struct Flight {
    grant: Grant,
    id: BatchId,
    ops: Vec<Op>,
    /// What became doubtful meanwhile, be it before or after its steps were made.
    doubts: Vec<Doubt>,
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
    /// The batches that follow the one in flight.
    plan: VecDeque<Vec<Step>>,
    /// What was made, and when; it is taken in once what follows is on its way.
    made: Option<(Instant, Vec<Op>)>,
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
                    self.replan();
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
        if let Some(batch) = self.follow() {
            return Some(Output::Apply(batch));
        }
        self.take_in_made();
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
        if matches!(self.peer, Peer::Fresh) && !self.flows.awaits_ack() {
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
        let id = BatchId(self.next_id);
        let batch = batch.or_else(|| self.flows.poll(now, grant.lease, id, grant.max_steps))?;
        self.next_id += 1;
        Some(Output::Apply(batch))
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
            Peer::Idle(grant) => Some((*grant, true)),
            Peer::Busy(flight) => Some((flight.grant, false)),
            Peer::Gone | Peer::Fresh | Peer::Greeting => None,
        }
    }

    /// Returns the first of the changes that can be made, and has them in flight.
    fn changes(&mut self, now: Instant, grant: Grant) -> Option<Batch> {
        self.tables.tick(now);
        let mut steps = Steps::new(grant.max_steps, PLANNED);
        let sweeps = self.sweeps();
        self.tables
            .offer(grant.bpf_max_entries, sweeps, &self.flows, &mut steps);
        self.plan = steps.into_batches();
        let steps = self.plan.pop_front()?;
        let batch = self.send(grant, steps);
        Some(batch)
    }

    /// Returns the batch that was planned for after the one that was made, and has it in flight.
    fn follow(&mut self) -> Option<Batch> {
        let Peer::Idle(grant) = self.peer else {
            return None;
        };
        let steps = self.plan.pop_front()?;
        let batch = self.send(grant, steps);
        self.next_id += 1;
        Some(batch)
    }

    /// Forgets what is planned: something else has happened.
    fn replan(&mut self) {
        self.plan.clear();
        self.take_in_made();
    }

    /// Takes in what was made.
    fn take_in_made(&mut self) {
        if let Some((now, ops)) = self.made.take() {
            self.settle(now, ops, BTreeMap::new());
        }
    }

    /// Has changes in flight.
    fn send(&mut self, grant: Grant, steps: Vec<Step>) -> Batch {
        for step in &steps {
            self.flows.sent(&step.op);
        }
        let id = BatchId(self.next_id);
        self.peer = Peer::Busy(Flight {
            grant,
            id,
            ops: steps.iter().map(|step| step.op.clone()).collect(),
            doubts: Vec::new(),
        });
        Batch {
            lease: grant.lease,
            lane: Lane::State,
            id,
            steps,
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

    /// Returns how much readings have found, by kind, that others have changed.
    pub(crate) fn drift(&self) -> &Drift {
        self.readings.drift()
    }

    /// Returns the addresses whose new owner waits for flows to be forgotten.
    pub fn waiting_for_flows(&self) -> impl Iterator<Item = IpAddr> {
        self.flows.waiting()
    }

    /// Returns the addresses whose new owner got its route although flows of the former one may be
    /// there, and why.
    pub fn with_old_flows(&self) -> impl Iterator<Item = (IpAddr, Option<&OpError>)> {
        self.flows.overdue()
    }

    /// Returns how often the kernel was read back; a reading that was overtaken does not count.
    #[must_use]
    pub fn resyncs(&self) -> u64 {
        self.resyncs
    }

    /// Returns whether the helper can be reached and has granted a lease.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.welcomed
    }

    /// Returns whether the kernel is known to hold all that the datastore asks for.
    #[must_use]
    pub fn is_in_sync(&self) -> bool {
        let counts = self.totals();
        self.datastore != Datastore::Starting
            && self.welcomed
            && counts.pending == 0
            && counts.held == 0
            && counts.contested == 0
    }

    /// Returns what others undo again and again.
    pub(crate) fn contested(&self) -> impl Iterator<Item = Contested> {
        self.tables.contested().map(Contested::from)
    }

    /// Returns what of others may count in place of routes that are ours, for the operator.
    pub(crate) fn rivals(&self) -> impl Iterator<Item = String> {
        self.tables.rivals()
    }

    /// Counts the keys of a table.
    #[must_use]
    pub fn counts(&self, kind: view::Kind) -> Counts {
        self.tables.counts(kind, self.sweeps())
    }

    /// Counts the keys of all tables.
    #[must_use]
    pub fn totals(&self) -> Counts {
        self.tables.totals(self.sweeps())
    }

    /// Returns rows of a table in the order of its keys.
    #[must_use]
    pub fn rows(&self, page: &Page) -> Vec<Row> {
        self.tables.rows(page, self.sweeps(), &self.flows)
    }

    /// Returns what the helper has made of the BPF route maps, if it is time to tell: after an
    /// answer, or when there is nothing to do; to be called when [`poll`](Self::poll) has no more.
    pub fn tell(&mut self) -> Option<Told> {
        let settled = matches!(self.peer, Peer::Idle(_)) && self.datastore != Datastore::Starting;
        // What is read back is told with what was made of it, so that a repair is no news. The
        // first time, all is to be right.
        if !settled && self.telling != Telling::Due {
            return None;
        }
        self.telling = Telling::Done;
        Some(self.tables.tell().map_or(Told::Anew, Told::Changes))
    }

    /// Returns whether changes are asked for that are not answered yet.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        matches!(self.peer, Peer::Busy(_))
    }

    /// Returns the BPF routes as of the last [`tell`](Self::tell), in order from the prefix that
    /// follows `after`; or nothing if the next one tells all of them anew.
    #[must_use]
    pub fn told_after(
        &self,
        after: Option<&IpNet>,
    ) -> Option<impl Iterator<Item = (&IpNet, &BpfRoute)>> {
        self.tables.told_after(after)
    }

    /// Returns whether a change of a BPF route is to be made, or is not answered yet.
    #[must_use]
    pub fn awaits(&self, prefix: &IpNet) -> bool {
        self.tables.awaits(prefix)
    }

    /// Returns whether what nobody wants may be swept from the kernel.
    fn sweeps(&self) -> bool {
        self.datastore == Datastore::Complete
    }

    /// Starts over with `peer`. What is in flight may be carried out or not.
    fn restart(&mut self, peer: Peer) {
        self.replan();
        if let Peer::Busy(flight) = std::mem::replace(&mut self.peer, peer) {
            for op in flight.ops {
                self.tables.lose(op);
            }
        }
        self.flows.restart();
        self.welcomed = false;
        self.resync = false;
        if self.telling == Telling::Due {
            self.telling = Telling::Done;
        }
    }

    fn welcome(&mut self, now: Instant, welcome: &Welcome, mut reading: Reading) {
        if !matches!(self.peer, Peer::Greeting) {
            return;
        }
        let mut as_known = reading.as_known.iter();
        if !as_known.all(|many| self.tables.is_known(*many)) {
            // What it was known to be is in doubt since.
            self.peer = Peer::Fresh;
            return;
        }
        self.resyncs += 1;
        if !self.tables.syncs_routes() {
            reading.kernel_routes = All::default();
            reading.rivals = Rivals::default();
        }
        let routes_as_known = reading.as_known.contains(&Many::KernelRoutes);
        if !routes_as_known {
            let peers = &self.bgp_peers;
            let is_birds = |(_, route): &mut (_, Option<KernelRoute>)| {
                route.as_ref().is_some_and(|route| is_birds(route, peers))
            };
            let birds = reading.kernel_routes.extract_if(.., is_birds);
            self.birds_own = birds.collect();
        }
        self.tables
            .add_outdone(&self.birds_own, &mut reading.rivals);
        self.flows.observed(&reading);
        self.grace.all(now, &reading.links);
        let spared = if routes_as_known {
            let strays = || self.tables.stray_routes();
            self.grace
                .spared(|| strays().map(|(key, route)| (key, Some(route))))
        } else {
            let read = || reading.kernel_routes.iter();
            self.grace
                .spared(|| read().map(|(key, route)| (key, route.as_ref())))
        };
        for doubt in self.links.lost_by(&reading.links) {
            if routes_as_known {
                // They were found as they were.
                self.tables.doubt_l2(&doubt);
            } else {
                self.tables.doubt(&doubt);
            }
        }
        let (links, recovered) = self.tables.resync(now, reading);
        self.tables.spare(spared);
        let news = self.readings.end(now, self.tables.drift());
        self.notices.extend(news.map(Notice::Drift));
        self.links = Links::new(links);
        self.devices.take_suspects();
        self.reread = false;
        self.notify(recovered.into_iter().map(Notice::Recovered).collect());
        let size = |number| usize::try_from(number).unwrap_or(usize::MAX);
        self.welcomed = true;
        self.idle(Grant {
            lease: welcome.lease,
            max_steps: size(welcome.max_steps).max(1),
            bpf_max_entries: size(welcome.bpf_max_entries),
        });
    }

    fn ack(&mut self, now: Instant, ack: Ack) {
        if let Some(done) = self.flows.acked(ack.id) {
            self.flushed(now, done);
            return;
        }
        let flight = match std::mem::take(&mut self.peer) {
            Peer::Busy(flight) if flight.id == ack.id => flight,
            peer @ (Peer::Gone | Peer::Fresh | Peer::Greeting | Peer::Idle(_) | Peer::Busy(_)) => {
                self.peer = peer;
                return;
            }
        };
        self.take_in_made();
        if ack.failed.is_empty() && !self.plan.is_empty() {
            self.made = Some((now, flight.ops));
        } else {
            self.plan.clear();
            self.settle(now, flight.ops, ack.failed.into_iter().collect());
            for doubt in &flight.doubts {
                self.tables.doubt(doubt);
            }
        }
        if self.telling == Telling::Done {
            self.telling = Telling::Due;
        }
        self.idle(flight.grant);
    }

    /// Takes in what became of the steps of a batch: those that `failed`, by their index, and the
    /// others, which were made.
    fn settle(&mut self, now: Instant, ops: Vec<Op>, mut failed: BTreeMap<u32, OpError>) {
        let mut notices = Vec::new();
        let mut neighbour_set = false;
        for (index, op) in (0..).zip(ops) {
            let error = failed.remove(&index);
            self.flows.settled(now, &op, error.as_ref());
            neighbour_set |= error.is_none() && matches!(op, Op::Neighbour(_, Some(_)));
            match self.tables.settle(now, op.clone(), error.clone()) {
                Verdict::Unchanged => {}
                Verdict::Failed => notices.extend(error.map(|error| Notice::Failed(op, error))),
                Verdict::Recovered => notices.push(Notice::Recovered(op)),
            }
        }
        if neighbour_set {
            self.tables.retry_not_tried();
        }
        self.notify(notices);
    }

    fn flushed(&mut self, now: Instant, done: FlowsDone) {
        self.replan();
        let mut news = Vec::new();
        self.flows.done(now, done, &self.tables, &mut news);
        self.report(news);
    }

    /// Tells what has come of flows.
    fn report(&mut self, news: Vec<News>) {
        let mut notices = Vec::new();
        for news in news {
            match news {
                News::Clean(address) => self.clean.push_back(address),
                News::Kept(address, error) => notices.push(Notice::FlowsKept(address, error)),
                News::Forgotten(address) => notices.push(Notice::FlowsForgotten(address)),
            }
        }
        self.notify(notices);
    }

    /// Goes on with a lease, or asks for another if somebody wants the kernel read back.
    fn idle(&mut self, grant: Grant) {
        self.peer = if std::mem::take(&mut self.resync) {
            Peer::Fresh
        } else {
            Peer::Idle(grant)
        };
    }

    fn notify(&mut self, mut notices: Vec<Notice>) {
        let more = notices.len().saturating_sub(MAX_NOTICES);
        notices.truncate(MAX_NOTICES);
        self.notices.extend(notices);
        if more > 0 {
            self.notices.push_back(Notice::More(more));
        }
    }
}

/// Returns whether a route is BIRD's own: it leads to nobody but its `peers`.
fn is_birds(route: &KernelRoute, peers: &BTreeSet<Link>) -> bool {
    let hops = hops(route);
    route.protocol == Protocol::Bird
        && !hops.is_empty()
        && hops.iter().all(|hop| peers.contains(&hop.link))
}
