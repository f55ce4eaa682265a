//! What is said of how things stand: to consumers, to the operator, in the log.
//!
//! Only what the helper has acknowledged is told to consumers; a failure is logged once.

use std::{mem, net::IpAddr, sync::Arc, time::Instant};

use super::Node;
use crate::{
    consumers::Signal,
    face::Status,
    reconciler::{Notice, OldFlows},
    shell::memory,
};

/// How many failures are shown by name.
const MAX_FAILING: usize = 16;

impl Node {
    /// Tells consumers what the helper has made, and which addresses are free of who had them.
    pub(super) fn tell(&mut self, clean: &[IpAddr]) {
        let more = self.reconciler.is_writing();
        if self.calculator.knows_own_node()
            && let Some(told) = self.reconciler.tell()
        {
            let local = self.calculator.host_addresses().collect();
            let awaits = |prefix: &_| self.reconciler.awaits(prefix);
            let signals = self.consumers.settle(told, &local, awaits, more);
            self.signal(signals);
        } else if !more {
            let signal = self.consumers.catch_up();
            self.signal(signal);
        }
        let signals = self.consumers.clean(clean);
        self.signal(signals);
    }

    fn signal(&self, signals: impl IntoIterator<Item = Signal>) {
        for signal in signals {
            // Nobody may be there to hear it.
            drop(self.outputs.signals.send(Arc::new(signal)));
        }
    }

    /// Logs what the operator is to know, and keeps it while it lasts.
    pub(super) fn notice(&mut self, notice: &Notice) {
        match notice {
            Notice::Failed(op, _) => {
                tracing::warn!("{notice}");
                if self.failing.len() < MAX_FAILING {
                    self.failing.insert(Notice::subject(op), notice.to_string());
                }
            }
            Notice::Recovered(op) => {
                tracing::info!("{notice}");
                self.failing.remove(&Notice::subject(op));
            }
            Notice::FlowsForgotten(_) | Notice::Drift(_) => tracing::info!("{notice}"),
            Notice::FlowsKept(..) | Notice::More(_) => tracing::warn!("{notice}"),
        }
    }

    /// Returns all that is wrong, worst first.
    fn problems(&mut self, held: usize) -> Vec<String> {
        let mut datastore = self.datastore_problems.lines().peekable();
        let is_unread = self.complete.is_none() && datastore.peek().is_none();
        let unread = is_unread.then(|| "the datastore has not been read yet".to_owned());
        if held == 0 {
            self.failing.clear();
        }
        let failing = self.failing.values().cloned();
        let rest = held.saturating_sub(self.failing.len());
        let rest = (rest > 0).then(|| format!("{rest} more changes fail; see cairnctl routes"));
        let old_flows = self.reconciler.with_old_flows().take(MAX_FAILING);
        let old_flows = old_flows.map(|(address, why)| OldFlows(address, why).to_string());
        let helper = self.helper_problem.clone().into_iter();
        let obstacles = self.obstacles.lines();
        helper
            .chain(unread)
            .chain(datastore)
            .chain(failing)
            .chain(self.contested.lines())
            .chain(self.rivals.lines())
            .chain(old_flows)
            .chain(rest)
            .chain(obstacles)
            .collect()
    }

    /// Publishes how things stand.
    pub(super) fn publish(&mut self, now: Instant) {
        let contested = self.reconciler.contested();
        self.contested
            .set(contested.map(|contested| contested.to_string()));
        let more = self.reconciler.more_rivals();
        self.rivals.set_with(self.reconciler.rivals(), more);
        let counts = self.reconciler.totals();
        let problems = self.problems(counts.held);
        let in_sync = !self.news.input
            && self.reconciler.is_in_sync()
            && self.calculator.knows_own_node()
            && !self.calculator.awaits_tunnel();
        if in_sync {
            self.first_in_sync(now);
        }
        let status = Status {
            in_sync,
            connected: self.reconciler.is_connected(),
            desired: counts.desired,
            pending: counts.pending,
            held: counts.held + counts.contested,
            foreign: self.rivals.len(),
            resyncs: self.reconciler.resyncs(),
            answered: self.answered.min(self.documents),
            read: self.read,
            datastore: self.standing,
            datastore_changed: self.changed,
            batches: self.batches,
            drift: self.reconciler.drift().clone(),
            problems,
        };
        self.outputs.status.send_if_modified(|published| {
            let changed = *published != status;
            *published = status;
            changed
        });
    }

    /// Says once that the kernel holds all that the datastore asks for.
    fn first_in_sync(&mut self, now: Instant) {
        if mem::replace(&mut self.was_in_sync, true) {
            return;
        }
        let took = now.saturating_duration_since(self.started);
        tracing::info!(?took, applies = self.applies, "in sync for the first time");
        let signal = self.consumers.in_sync();
        self.signal([signal]);
        self.calculator.pack();
        self.reconciler.pack();
        memory::trim();
    }
}
