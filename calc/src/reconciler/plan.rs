//! Which changes are sent next, and which follow them.
//!
//! While a batch is in flight the ones after it are planned, and the first of those is sent ahead.
//! They are applied if all of the one before is made and nothing else happens; else they are
//! forgotten, and planned anew from what is so by then. What was made is taken in once what follows
//! is on its way.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    time::Instant,
};

use ipc_proto::{Batch, BatchId, Lane, Op, Step};

use super::{Flight, Grant, Peer, Reconciler, steps::Steps};

/// How many batches are planned at a time for after the one in flight: each is sent if all before it
/// was made and nothing else has happened, so that the helper waits for nothing but the wire.
const PLANNED: usize = 8;

/// A batch that the helper was sent before it is in flight.
#[derive(Debug)]
pub(super) struct Prepared {
    id: BatchId,
    ops: Vec<Op>,
}

impl Reconciler {
    /// Returns the first of the changes that can be made, and has them in flight.
    pub(super) fn changes(&mut self, now: Instant, grant: Grant) -> Option<Batch> {
        self.tables.tick(now);
        self.drop_plan();
        let steps = self.offered(grant, 1).pop_front()?;
        let id = self.number();
        let ops = ops(&steps);
        Some(self.send(grant, Prepared { id, ops }, steps))
    }

    /// Returns the first batches of changes that can be made.
    fn offered(&self, grant: Grant, batches: usize) -> VecDeque<Vec<Step>> {
        let mut steps = Steps::new(grant.max_steps, batches);
        self.tables.offer(
            grant.bpf_max_entries,
            self.sweeps(),
            &self.flows,
            &mut steps,
        );
        steps.into_batches()
    }

    /// Plans what follows a full batch in flight, once. What is offered begins with that one, as long
    /// as it is not answered, and goes on as it will when all of it is made.
    pub(super) fn plan_ahead(&mut self) {
        let Peer::Busy(flight) = &mut self.peer else {
            return;
        };
        let grant = flight.grant;
        let is_full = flight.ops.len() >= grant.max_steps && flight.doubts.is_empty();
        if mem::replace(&mut flight.looked_ahead, true) || !is_full || !self.plan.is_empty() {
            return;
        }
        let mut batches = self.offered(grant, 1 + PLANNED);
        let first = batches.pop_front().unwrap_or_default();
        if let Peer::Busy(flight) = &self.peer
            && first.iter().map(|step| &step.op).eq(&flight.ops)
        {
            self.plan = batches;
        }
    }

    /// Returns the batch that was planned for after the one that was made, and has it in flight.
    pub(super) fn follow(&mut self) -> Option<Batch> {
        let Peer::Idle(grant) = self.peer else {
            return None;
        };
        let steps = self.plan.pop_front()?;
        let prepared = self.prepared.take().unwrap_or_else(|| Prepared {
            id: self.number(),
            ops: ops(&steps),
        });
        Some(self.send(grant, prepared, steps))
    }

    /// Returns the batch that is planned for after the one in flight, once.
    pub(super) fn prepare(&mut self) -> Option<Batch> {
        let Peer::Busy(Flight { grant, .. }) = self.peer else {
            return None;
        };
        let steps = self.plan.front()?;
        if self.prepared.is_some() {
            return None;
        }
        let (ops, steps) = (ops(steps), steps.clone());
        let id = self.number();
        self.prepared = Some(Prepared { id, ops });
        Some(batch(grant, id, steps))
    }

    /// Returns the number of the next batch.
    fn number(&mut self) -> BatchId {
        let id = BatchId(self.next_id);
        self.next_id += 1;
        id
    }

    /// Forgets what is planned: something else has happened.
    pub(super) fn replan(&mut self) {
        self.drop_plan();
        self.take_in_made();
    }

    pub(super) fn drop_plan(&mut self) {
        self.plan.clear();
        self.prepared = None;
    }

    /// Takes in what was made.
    pub(super) fn take_in_made(&mut self) {
        if let Some((now, ops)) = self.made.take() {
            self.settle(now, ops, BTreeMap::new());
        }
    }

    /// Has changes in flight.
    fn send(&mut self, grant: Grant, prepared: Prepared, steps: Vec<Step>) -> Batch {
        let Prepared { id, ops } = prepared;
        for step in &steps {
            self.flows.sent(&step.op);
        }
        self.peer = Peer::Busy(Flight {
            grant,
            id,
            ops,
            doubts: Vec::new(),
            looked_ahead: false,
        });
        batch(grant, id, steps)
    }
}

fn ops(steps: &[Step]) -> Vec<Op> {
    steps.iter().map(|step| step.op.clone()).collect()
}

fn batch(grant: Grant, id: BatchId, steps: Vec<Step>) -> Batch {
    Batch {
        lease: grant.lease,
        lane: Lane::State,
        id,
        steps,
    }
}
