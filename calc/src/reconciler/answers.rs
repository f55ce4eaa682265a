//! What the helper has answered, and what follows from that.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Instant,
};

use ipc_proto::{Ack, FlowsDone, KernelRoute, Link, Many, Op, OpError, Protocol, Rivals, Welcome};

use super::{
    Flight, Grant, MAX_NOTICES, Notice, Peer, Reconciler, Telling,
    links::{Doubt, Links},
    plan::{Recall, Sent},
};
use crate::{
    flows::News,
    reading::{All, Reading},
    table::Verdict,
};

impl Reconciler {
    /// Starts over with `peer`. What is in flight may be carried out or not.
    pub(super) fn restart(&mut self, peer: Peer) {
        // What was there to be told is told with the next reading; what is taken in only now, at once.
        if self.telling == Telling::Due {
            self.telling = Telling::Done;
        }
        self.following.clear();
        self.recall = Recall::Over;
        if let Peer::Busy(flight) = mem::replace(&mut self.peer, peer) {
            for op in flight.batches.into_iter().flat_map(Sent::into_ops) {
                self.tables.lose(op);
            }
        }
        self.flows.restart();
        self.welcomed = false;
        self.resync = false;
    }

    pub(super) fn welcome(&mut self, now: Instant, welcome: &Welcome, mut reading: Reading) {
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
        self.take_over_links(Links::new(links));
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

    pub(super) fn ack(&mut self, now: Instant, ack: Ack) {
        if let Some(done) = self.flows.acked(ack.id) {
            self.flushed(now, done);
            return;
        }
        let Peer::Busy(flight) = &mut self.peer else {
            return;
        };
        let Some(sent) = flight.batches.pop_front_if(|sent| sent.batch.id == ack.id) else {
            return;
        };
        flight.looked_ahead = false;
        let is_new = sent.early && !flight.disturbed && ack.failed.is_empty();
        if is_new && self.tables.settle_new(&sent.batch.steps) {
            self.told_otherwise();
            self.land();
            return;
        }
        let mut doubts = flight.doubts.clone();
        doubts.extend(sent.ops().filter_map(Doubt::after));
        if !ack.failed.is_empty() {
            // Nothing follows what failed.
            self.following.clear();
            let unsent = mem::take(&mut flight.batches);
            self.forget(unsent);
        }
        self.settle(now, sent.into_ops(), ack.failed.into_iter().collect());
        for doubt in &doubts {
            self.tables.doubt(doubt);
        }
        self.land();
    }

    /// Goes on where nothing is unanswered any more.
    fn land(&mut self) {
        if let Peer::Busy(Flight { grant, batches, .. }) = &self.peer
            && batches.is_empty()
        {
            self.idle(*grant);
        }
    }

    /// Takes in that what was told is no longer so.
    fn told_otherwise(&mut self) {
        if self.telling == Telling::Done {
            self.telling = Telling::Due;
        }
    }

    /// Takes in what became of the steps of a batch: those that `failed`, by their index, and the
    /// others, which were made.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        ops: impl ExactSizeIterator<Item = Op>,
        mut failed: BTreeMap<u32, OpError>,
    ) {
        self.told_otherwise();
        let mut notices = Vec::new();
        let mut made = Vec::with_capacity(ops.len());
        let mut neighbour_set = false;
        for (index, op) in (0..).zip(ops) {
            let error = failed.remove(&index);
            self.flows.settled(now, &op, error.as_ref());
            let Some(error) = error else {
                neighbour_set |= matches!(op, Op::Neighbour(_, Some(_)));
                made.push(op);
                continue;
            };
            match self.tables.settle(now, op.clone(), Some(error.clone())) {
                Verdict::Unchanged => {}
                Verdict::Failed => notices.push(Notice::Failed(op, error)),
                Verdict::Recovered => notices.push(Notice::Recovered(op)),
            }
        }
        let recovered = self.tables.settle_all(now, made);
        notices.extend(recovered.into_iter().map(Notice::Recovered));
        if neighbour_set {
            self.tables.retry_not_tried();
        }
        self.notify(notices);
    }

    pub(super) fn flushed(&mut self, now: Instant, done: FlowsDone) {
        self.replan();
        let mut news = Vec::new();
        self.flows.done(now, done, &self.tables, &mut news);
        self.report(news);
    }

    /// Tells what has come of flows.
    pub(super) fn report(&mut self, news: Vec<News>) {
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
    pub(super) fn idle(&mut self, grant: Grant) {
        self.peer = if mem::take(&mut self.resync) {
            Peer::Fresh
        } else {
            Peer::Idle(grant)
        };
    }

    pub(super) fn notify(&mut self, mut notices: Vec<Notice>) {
        let more = notices.len().saturating_sub(MAX_NOTICES);
        notices.truncate(MAX_NOTICES);
        self.notices.extend(notices);
        if more > 0 {
            self.notices.push_back(Notice::More(more));
        }
    }
}

/// Returns whether a route is BIRD's own: it leads to nobody but its `peers`.
pub(super) fn is_birds(route: &KernelRoute, peers: &BTreeSet<Link>) -> bool {
    let hops = route.hops();
    route.protocol == Protocol::Bird
        && !hops.is_empty()
        && hops.iter().all(|hop| peers.contains(&hop.link))
}
