//! Many entries and routes at once, as at a start: nearly all of them are new.
//!
//! What is wanted of a key that is neither wanted nor there concerns nothing else that is known of
//! it. Such keys are taken in as one run in order, which costs a fraction of one by one.

use std::mem;

use ipc_proto::{BpfRoute, KernelRoute, Op, RouteKey};
use ipnet::IpNet;

use super::{Reconciler, Unplaced};
use crate::prefix::Prefix;

/// What is new, in order.
#[derive(Debug, Default)]
struct Runs {
    /// Of one map.
    entries: Vec<(Prefix, BpfRoute)>,
    routes: Vec<(RouteKey, KernelRoute)>,
}

impl Runs {
    /// Returns whether an entry can come next.
    fn take_entry(&self, prefix: &IpNet) -> bool {
        let last = self.entries.last();
        last.is_none_or(|(last, _)| {
            *last < Prefix(*prefix) && last.0.max_prefix_len() == prefix.max_prefix_len()
        })
    }

    /// Returns whether a route can come next.
    fn take_route(&self, key: &RouteKey) -> bool {
        self.routes.last().is_none_or(|(last, _)| last < key)
    }
}

impl Reconciler {
    /// Says what many keys should be, one after the other.
    ///
    /// # Errors
    ///
    /// The first for which there is no table; the others are taken in.
    pub fn want_all(&mut self, ops: Vec<Op>) -> Result<(), Unplaced> {
        self.replan();
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
                runs.entries.push((Prefix(*prefix), route.clone()));
            } else if let Op::KernelRoute(key, Some(route)) = &op
                && many_routes
                && runs.take_route(key)
                && self.tables.is_new_route(key)
            {
                runs.routes.push((key.clone(), route.clone()));
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
        self.tables.want_new(entries, routes);
    }
}
