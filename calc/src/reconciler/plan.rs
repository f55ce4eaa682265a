//! Which changes are sent, and which follow them by themselves.
//!
//! While a full batch is in flight the ones after it are planned. The connection sends each of them as soon
//! as all of the one before it was made, so the helper waits for nothing but the wire. Where something of a
//! batch failed, or anything else has happened, those that were not sent are called back, and what
//! is next is looked for anew.

use std::{collections::VecDeque, mem, sync::Arc, time::Instant};

use ipc_proto::{Batch, BatchId, Lane, Op, Step};

use super::{Flight, Grant, Output, Peer, Reconciler, links::Doubt, steps::Steps};

/// How many batches are planned at a time.
const PLANNED: usize = 8;
/// How many are unanswered when more are planned: looking for them takes less than making those.
const FEW: usize = 2;

/// A batch that is not answered yet, be it in flight or one that follows.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) batch: Arc<Batch>,
    /// Whether it was sent before the tables knew of it: to them its changes are not to be asked for.
    pub(super) early: bool,
}

impl Sent {
    pub(super) fn ops(&self) -> impl Iterator<Item = &Op> {
        self.batch.steps.iter().map(|step| &step.op)
    }

    /// As [`ops`](Self::ops). Once it has been sent, nobody else has them.
    pub(super) fn into_ops(self) -> impl ExactSizeIterator<Item = Op> {
        let steps = Arc::unwrap_or_clone(self.batch).steps;
        steps.into_iter().map(|step| step.op)
    }
}

/// How things stand with batches that are to follow no longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Recall {
    /// There are none.
    #[default]
    Over,
    /// They are to be called back.
    Due,
    /// They were called back, and it is not known which of them has been sent.
    Asked,
}

impl Reconciler {
    /// Returns the first of the changes that can be made, and has them in flight.
    pub(super) fn changes(&mut self, now: Instant, grant: Grant) -> Option<Arc<Batch>> {
        self.tables.tick(now);
        let steps = self.offered(grant, 1, self.sweeps()).pop_front()?;
        Some(self.number(grant, steps, false))
    }

    /// Returns the first batches of changes that can be made.
    pub(super) fn offered(&self, grant: Grant, batches: usize, sweep: bool) -> VecDeque<Vec<Step>> {
        let mut steps = Steps::new(grant.max_steps, batches);
        self.tables
            .offer(grant.bpf_max_entries, sweep, &self.flows, &mut steps);
        steps.into_batches()
    }

    /// Plans what follows the batches that are not answered, if those are full and few, once for each
    /// answer. What is offered begins with them, and goes on as it will when all of them are made.
    pub(super) fn plan_ahead(&mut self) {
        let Peer::Busy(flight) = &mut self.peer else {
            return;
        };
        let (grant, unanswered) = (flight.grant, flight.batches.len());
        let is_full = |sent: &Sent| sent.batch.steps.len() >= grant.max_steps;
        if unanswered > FEW
            || flight.called_back
            || !flight.doubts.is_empty()
            || !flight.batches.iter().all(is_full)
            || mem::replace(&mut flight.looked_ahead, true)
        {
            return;
        }
        let doubts = |sent: &Sent| sent.ops().any(|op| Doubt::after(op).is_some());
        if flight.batches.iter().any(doubts) {
            return;
        }
        let mut batches = self.offered(grant, unanswered + PLANNED, self.sweeps());
        let ahead = batches.split_off(unanswered.min(batches.len()));
        let Peer::Busy(flight) = &self.peer else {
            return;
        };
        let offered = batches.iter().flatten().map(|step| &step.op);
        if !offered.eq(flight.batches.iter().flat_map(Sent::ops)) {
            return;
        }
        for steps in ahead {
            let batch = self.number(grant, steps, false);
            self.following.push_back(batch);
        }
    }

    /// Makes a batch of steps, the last of those that are not answered.
    pub(super) fn number(&mut self, grant: Grant, steps: Vec<Step>, early: bool) -> Arc<Batch> {
        let id = BatchId(self.next_id);
        self.next_id += 1;
        for step in &steps {
            self.flows.sent(&step.op);
        }
        let batch = Arc::new(Batch {
            lease: grant.lease,
            lane: Lane::State,
            id,
            steps,
        });
        let sent = Sent {
            batch: Arc::clone(&batch),
            early,
        };
        if let Peer::Busy(flight) = &mut self.peer {
            flight.batches.push_back(sent);
        } else {
            self.peer = Peer::Busy(Flight {
                grant,
                batches: VecDeque::from([sent]),
                doubts: Vec::new(),
                looked_ahead: false,
                called_back: false,
                disturbed: false,
            });
        }
        batch
    }

    /// Has what follows called back: something else has happened.
    pub(super) fn replan(&mut self) {
        if let Peer::Busy(flight) = &mut self.peer {
            flight.disturbed = true;
            // These were not even handed on.
            let kept = flight.batches.len().saturating_sub(self.following.len());
            let unsent = flight.batches.split_off(kept);
            self.following.clear();
            if flight.batches.len() > 1 && !mem::replace(&mut flight.called_back, true) {
                self.recall = Recall::Due;
            }
            self.forget(unsent);
        }
    }

    /// Returns the request to send nothing more of what follows, if that is to be made: at once, for whatever
    /// else there is may wait.
    pub fn call_back(&mut self) -> Option<Output> {
        if self.recall != Recall::Due {
            return None;
        }
        self.recall = Recall::Asked;
        Some(Output::Recall)
    }

    /// Takes in that batches were not sent after all.
    pub(super) fn forget(&mut self, unsent: VecDeque<Sent>) {
        for sent in unsent {
            for op in sent.ops() {
                self.flows.unsent(op);
                if sent.early {
                    self.tables.bring_back(op);
                }
            }
        }
    }

    /// Returns how many changes are asked for of which the tables do not say so.
    pub(super) fn early_len(&self) -> usize {
        let Peer::Busy(flight) = &self.peer else {
            return 0;
        };
        let early = flight.batches.iter().filter(|sent| sent.early);
        early.map(|sent| sent.batch.steps.len()).sum()
    }

    /// Takes in that no more batches follow, and which one is in flight.
    pub(super) fn recalled(&mut self, in_flight: Option<BatchId>) {
        if mem::take(&mut self.recall) != Recall::Asked {
            return;
        }
        if let Peer::Busy(flight) = &mut self.peer {
            let is_sent = |sent: &Sent| Some(sent.batch.id) == in_flight;
            let (kept, unsent) = mem::take(&mut flight.batches)
                .into_iter()
                .partition(is_sent);
            flight.batches = kept;
            let grant = flight.batches.is_empty().then_some(flight.grant);
            self.forget(unsent);
            if let Some(grant) = grant {
                self.idle(grant);
            }
        }
    }
}
