//! Many entries and routes at once, as at a start: nearly all of them are new.
//!
//! What is wanted of a key that is neither wanted nor there concerns nothing else that is known of
//! it. Such keys are taken in as one run in order, which costs a fraction of one by one.
//!
//! The very first entries of the BPF route maps are sent as they are computed, and taken in when all
//! are.

use std::mem;

use ipc_proto::{BpfRoute, KernelRoute, Op, RouteKey, Step};
use ipnet::IpNet;

use super::{Grant, Output, Peer, Reconciler, Unplaced, plan::Recall, steps};
use crate::{delta::Fresh, prefix::Prefix};

/// What is new, in order.
#[derive(Debug, Default)]
struct Runs {
    /// Of one map.
    entries: Fresh<Prefix, BpfRoute>,
    routes: Fresh<RouteKey, KernelRoute>,
}

impl Runs {
    /// Returns whether an entry can come next.
    fn take_entry(&self, prefix: &IpNet) -> bool {
        let last = self.entries.keys().next_back();
        last.is_none_or(|last| {
            *last < Prefix(*prefix) && last.0.max_prefix_len() == prefix.max_prefix_len()
        })
    }

    /// Returns whether a route can come next.
    fn take_route(&self, key: &RouteKey) -> bool {
        self.routes.keys().next_back().is_none_or(|last| last < key)
    }
}

impl Reconciler {
    /// Says what many keys should be, one after the other.
    ///
    /// # Errors
    ///
    /// The first for which there is no table; the others are taken in.
    pub fn want_all(&mut self, ops: Vec<Op>) -> Result<(), Unplaced> {
        if !ops.is_empty() {
            self.replan();
        }
        self.take_in(ops)
    }

    fn take_in(&mut self, ops: Vec<Op>) -> Result<(), Unplaced> {
        let [entries, routes] = self.tables.desired_lens();
        let count = |is_set: fn(&&Op) -> bool| ops.iter().filter(is_set).count();
        let many_entries = count(|op| matches!(op, Op::BpfRoute(_, Some(_)))) > entries / 8;
        let many_routes = count(|op| matches!(op, Op::KernelRoute(_, Some(_)))) > routes / 8;
        let mut runs = Runs::default();
        let mut result = Ok(());
        for op in ops {
            self.take_note(&op);
            if let Op::BpfRoute(prefix, Some(route)) = &op
                && many_entries
                && runs.take_entry(prefix)
                && self.tables.is_new_entry(prefix)
            {
                runs.entries.push(Prefix(*prefix), route.clone());
            } else if let Op::KernelRoute(key, Some(route)) = &op
                && many_routes
                && runs.take_route(key)
                && self.tables.is_new_route(key)
            {
                runs.routes.push(key.clone(), (**route).clone());
            } else {
                self.end(&mut runs);
                result = result.and(self.tables.want(op));
            }
        }
        self.end(&mut runs);
        result
    }

    fn end(&mut self, runs: &mut Runs) {
        let Runs { entries, routes } = mem::take(runs);
        self.tables.want_new_entries(entries);
        self.tables.want_new_routes(routes);
    }
}

/// A first load that is sent as it is computed. Nothing else happens meanwhile.
#[derive(Debug)]
pub struct Load<'a> {
    reconciler: &'a mut Reconciler,
    grant: Grant,
    /// The entries of each map, in order.
    v4: Fresh<Prefix, BpfRoute>,
    v6: Fresh<Prefix, BpfRoute>,
}

impl Reconciler {
    /// Starts a load of at most so many entries, if they are more than a batch and no more than a map holds, the
    /// helper waits for something to do, the BPF route maps are empty, and nothing is wanted of them. Only once the datastore has shown all
    /// that it holds; to be [ended](Load::end).
    pub fn load(&mut self, count: usize) -> Option<Load<'_>> {
        let Peer::Idle(grant) = self.peer else {
            return None;
        };
        let is_much = count > grant.max_steps && count <= grant.bpf_max_entries;
        let is_first = self.recall == Recall::Over && self.tables.have_no_entries();
        (is_much && is_first).then(|| Load {
            reconciler: self,
            grant,
            v4: Fresh::with_capacity(count),
            v6: Fresh::with_capacity(count),
        })
    }
}

impl Load<'_> {
    /// Returns how many steps are best told at a time.
    #[must_use]
    pub fn size(&self) -> usize {
        self.grant.max_steps.min(steps::SHORT)
    }

    /// Says what is to be made before all entries, and has that `sent`.
    ///
    /// # Errors
    ///
    /// The first for which there is no table; the others are taken in.
    pub fn begin(&mut self, ops: Vec<Op>, mut sent: impl FnMut(Output)) -> Result<(), Unplaced> {
        let result = self.reconciler.take_in(ops);
        // What nobody wants so far may be wanted in a moment.
        for steps in self.reconciler.offered(self.grant, usize::MAX, false) {
            self.send(steps, false, &mut sent);
        }
        result
    }

    /// Says what entries should be that are new and come in order, and has that `sent`.
    pub fn add(&mut self, ops: Vec<Op>, mut sent: impl FnMut(Output)) {
        let mut steps = Vec::with_capacity(ops.len());
        for op in ops {
            let Op::BpfRoute(prefix, Some(route)) = &op else {
                continue;
            };
            let map = match prefix {
                IpNet::V4(_) => &mut self.v4,
                IpNet::V6(_) => &mut self.v6,
            };
            map.push(Prefix(*prefix), route.clone());
            steps.push(Step { op, needs: None });
            if steps.len() == self.size() {
                self.send(mem::take(&mut steps), true, &mut sent);
            }
        }
        if !steps.is_empty() {
            self.send(steps, true, sent);
        }
    }

    /// Says what else should be, which is sent later.
    ///
    /// # Errors
    ///
    /// As [`begin`](Self::begin).
    pub fn end(self, ops: Vec<Op>) -> Result<(), Unplaced> {
        for entries in [self.v4, self.v6] {
            self.reconciler.tables.want_asked_entries(entries);
        }
        self.reconciler.take_in(ops)
    }

    /// Has a batch sent, be it `early`: before the tables know of it.
    fn send(&mut self, steps: Vec<Step>, early: bool, mut sent: impl FnMut(Output)) {
        let follows = matches!(self.reconciler.peer, Peer::Busy(_));
        let batch = self.reconciler.number(self.grant, steps, early);
        sent(if follows {
            Output::Follow(batch)
        } else {
            Output::Apply(batch)
        });
    }
}
