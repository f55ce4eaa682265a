//! Routes that nobody wants, on a workload's link that is new: they may be wanted soon.
//!
//! A network plugin makes a pod's route before the datastore tells of the pod. So what is found on
//! such a link is spared for a while from when the link was first seen, unless a route on it has
//! been wanted: then all is known. Links are told apart by index, so that one that is made again
//! has a grace of its own, and one that flaps has not. When it ends, all is read once more: what the
//! plugin has made since the last reading, with another metric, say, must not stay. Pure.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::{Duration, Instant},
};

use ipc_proto::{KernelRoute, LinkRole, LinkState, Op, RouteKey};

/// How long a route is spared where nothing else is said; that of Felix.
const PERIOD: Duration = Duration::from_secs(10);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Grace {
    period: Duration,
    /// Until when, by the index of the link; none where it is over.
    links: BTreeMap<u32, Option<Instant>>,
    /// Whether something was asked for since all was read.
    went_on: bool,
    /// Whether all is to be read: the grace of a link has ended, on which a plugin may have made a route
    /// since the last reading.
    due: bool,
}

impl Default for Grace {
    fn default() -> Self {
        Self::new(PERIOD)
    }
}

impl Grace {
    pub(super) fn new(period: Duration) -> Self {
        Self {
            period,
            links: BTreeMap::new(),
            went_on: false,
            due: false,
        }
    }

    /// Takes in an interface that there is.
    pub(super) fn seen(&mut self, now: Instant, state: &LinkState) {
        if state.role == LinkRole::Workload && !self.period.is_zero() {
            let until = now.checked_add(self.period);
            self.links.entry(state.link.index).or_insert(until);
        }
    }

    /// Takes in that an interface is gone.
    pub(super) fn gone(&mut self, index: u32) {
        self.links.remove(&index);
    }

    /// Takes in all interfaces that there are.
    pub(super) fn all(&mut self, now: Instant, states: &[LinkState]) {
        let former = std::mem::take(&mut self.links);
        (self.went_on, self.due) = (false, false);
        for state in states {
            match former.get(&state.link.index) {
                Some(until) => drop(self.links.insert(state.link.index, *until)),
                None => self.seen(now, state),
            }
        }
    }

    /// Takes in that something is wanted, and returns whether that ends the grace of a link.
    pub(super) fn ends_with(&mut self, op: &Op) -> bool {
        let Op::KernelRoute(_, Some(route)) = op else {
            return false;
        };
        let mut ends = false;
        for hop in route.hops() {
            match self.links.entry(hop.link.index) {
                Entry::Vacant(unseen) => drop(unseen.insert(None)),
                Entry::Occupied(mut seen) => ends |= seen.insert(None).is_some(),
            }
        }
        self.due |= ends && self.went_on;
        ends
    }

    /// Takes in that all that was known at the last reading has been asked for.
    pub(super) fn go_on(&mut self, now: Instant) {
        self.went_on = true;
        for until in self
            .links
            .values_mut()
            .filter(|until| until.is_some_and(|at| at <= now))
        {
            *until = None;
            self.due = true;
        }
    }

    /// Returns whether all is to be read for the sake of new links.
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// Returns when the next grace ends.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.links.values().copied().flatten().min()
    }

    /// Returns which of the routes that were read are to be spared, and until when.
    pub(super) fn spared<'a, I>(&self, read: impl Fn() -> I) -> BTreeMap<RouteKey, Instant>
    where
        I: Iterator<Item = (&'a RouteKey, Option<&'a KernelRoute>)>,
    {
        let routes = || read().map(|(key, route)| (key, route.and_then(|route| self.until(route))));
        let mut spared = BTreeMap::new();
        for (key, until) in routes() {
            if let Some(until) = until {
                let sooner = spared.entry(key.clone()).or_insert(until);
                *sooner = until.min(*sooner);
            }
        }
        // Of several under one key, all are spared or none.
        if !spared.is_empty() {
            for (key, _) in routes().filter(|(_, until)| until.is_none()) {
                spared.remove(key);
            }
        }
        spared
    }

    /// Returns until when a route is spared.
    pub(super) fn until(&self, route: &KernelRoute) -> Option<Instant> {
        let ends = route
            .hops()
            .iter()
            .map(|hop| self.links.get(&hop.link.index).copied().flatten());
        ends.reduce(|a, b| Some(a?.min(b?))).flatten()
    }
}
