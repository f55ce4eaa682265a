//! Workloads that have just moved here: their routes win over those that still lead to where they
//! were, until all others have heard of the move.
//!
//! The target of a live migration that has none any more counts as moved for a while (Felix's
//! `liveMigrationRouteConvergenceTime`). Pure: the time comes in with each call. What it knows is lost
//! with the process, which only ends the while sooner.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crate::event::{Config, Event, MigrationRole, Workload, WorkloadKey};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Convergence {
    /// This node.
    node: String,
    period: Duration,
    /// Those that are taking over.
    targets: BTreeSet<WorkloadKey>,
    /// Those that have, until when they count as moved, and what they are.
    moved: BTreeMap<WorkloadKey, (Instant, Workload)>,
}

impl Convergence {
    pub(crate) fn new(node: String) -> Self {
        Self {
            node,
            period: Config::default().migration_convergence,
            targets: BTreeSet::new(),
            moved: BTreeMap::new(),
        }
    }

    /// Takes in an event, and returns it as the calculator is to hear it.
    pub(crate) fn handle(&mut self, now: Instant, event: Event) -> Event {
        match event {
            Event::Workload(key, Some(workload)) if key.node == self.node => {
                let workload = self.follow(now, &key, workload);
                Event::Workload(key, Some(workload))
            }
            Event::Workload(key, None) => {
                self.forget(&key);
                Event::Workload(key, None)
            }
            Event::Config(config) => {
                self.period = config.migration_convergence;
                Event::Config(config)
            }
            event @ (Event::Node(..)
            | Event::Pool(..)
            | Event::Block(..)
            | Event::Workload(..)
            | Event::Bgp(_)
            | Event::Link(_)
            | Event::Links(_)) => event,
        }
    }

    fn follow(&mut self, now: Instant, key: &WorkloadKey, workload: Workload) -> Workload {
        match workload.migration {
            MigrationRole::Target => {
                self.moved.remove(key);
                self.targets.insert(key.clone());
                return workload;
            }
            MigrationRole::Source => {
                self.forget(key);
                return workload;
            }
            MigrationRole::None | MigrationRole::Moved => {}
        }
        if self.targets.remove(key)
            && let Some(until) = now.checked_add(self.period)
        {
            self.moved.insert(key.clone(), (until, workload.clone()));
        }
        let Some((_, kept)) = self.moved.get_mut(key) else {
            return workload;
        };
        kept.clone_from(&workload);
        Workload {
            migration: MigrationRole::Moved,
            ..workload
        }
    }

    fn forget(&mut self, key: &WorkloadKey) {
        self.targets.remove(key);
        self.moved.remove(key);
    }

    /// Returns those that no longer count as moved.
    pub(crate) fn poll(&mut self, now: Instant) -> Vec<Event> {
        let over = self.moved.extract_if(.., |_, (until, _)| *until <= now);
        over.map(|(key, (_, workload))| Event::Workload(key, Some(workload)))
            .collect()
    }

    /// Returns when [`poll`](Self::poll) has something to tell if nothing happens.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.moved.values().map(|(until, _)| *until).min()
    }
}
