//! What a node asks of the helper, and what must hold of that.

use std::{mem, time::Instant};

use calc::{Input, Notice, Output};
use ipc_proto::{Batch, BatchId, FlowsDone, Lane, Op};

use super::{Asked, Node, is_set};
use crate::{
    bug::Bug,
    helper::Arrival,
    kernel::Key,
    rules::{Broken, broken},
};

impl Node {
    /// Asks for all that can be asked at present.
    pub(super) fn send(&mut self, now: Instant) -> Result<Vec<Arrival>, Broken> {
        let clock = self.clock(now);
        let mut early = mem::take(&mut self.early).into_iter();
        while let Some(output) = early.next().or_else(|| self.reconciler.poll(clock)) {
            match output {
                Output::Notice(notice) => {
                    self.drifts += u64::from(matches!(notice, Notice::Drift(_)));
                }
                Output::AddressClean(_) => {}
                Output::Hello(known) => {
                    self.order.hold();
                    self.ask(now, Arrival::Hello(known))?;
                }
                Output::Apply(batch) => {
                    self.check(&batch)?;
                    match batch.lane {
                        Lane::State => self.batch = Some(batch.id),
                        Lane::Flows if self.bug == Some(Bug::FlushNotAwaited) => {
                            let (lease, id) = (batch.lease, batch.id);
                            let failed = Vec::new();
                            let done = FlowsDone { lease, id, failed };
                            self.reconciler.handle(clock, Input::Flushed(done));
                        }
                        Lane::Flows => {}
                    }
                    self.train.start(&batch);
                    self.ask(now, Arrival::Apply(Batch::clone(&batch)))?;
                }
                Output::Follow(batch) => {
                    self.check(&batch)?;
                    self.train.add(batch);
                    self.follow(now)?;
                }
                Output::Recall => {
                    self.recalling = true;
                    // Before it is heard, more may be sent.
                    if self.batch.is_none_or(|BatchId(id)| id.is_multiple_of(2)) {
                        self.recall();
                    }
                }
            }
        }
        match self.reconciler.poll_timeout() {
            Some(at) if at <= clock => broken("I10: no timer spins", clock - at),
            Some(_) | None => Ok(mem::take(&mut self.sent)),
        }
    }

    /// The connection goes on after a message: it sends what follows, and then hears that nothing is to, if
    /// that is on its way; returns whether it was.
    pub(crate) fn go_on(&mut self, now: Instant) -> Result<(Vec<Arrival>, bool), Broken> {
        let is_late = self.recalling;
        self.follow(now)?;
        self.recall();
        Ok((mem::take(&mut self.sent), is_late))
    }

    fn follow(&mut self, now: Instant) -> Result<(), Broken> {
        if let Some((batch, _)) = self.train.next() {
            self.batch = Some(batch.id);
            self.ask(now, Arrival::Apply(Batch::clone(&batch)))?;
        }
        Ok(())
    }

    /// The connection hears that nothing is to follow.
    pub(super) fn recall(&mut self) {
        if mem::take(&mut self.recalling) {
            let in_flight = if self.bug == Some(Bug::RecallUnheard) {
                self.batch
            } else {
                self.train.stop()
            };
            self.heard.push_back(Input::Recalled(in_flight));
        }
    }

    fn ask(&mut self, now: Instant, arrival: Arrival) -> Result<(), Broken> {
        let batch = match &arrival {
            Arrival::Apply(batch) => Some((batch.lane, batch.id)),
            Arrival::Hello(_) | Arrival::Late(_) | Arrival::End => None,
        };
        let lane = |asked: &Asked| asked.batch.map(|(lane, _)| lane);
        let is_busy = self.asked.iter().filter(|asked| !asked.ended).any(|asked| {
            // A lease may be asked for while flows are on their way.
            let lane = lane(asked).unwrap_or(Lane::State);
            lane == batch.map_or(Lane::State, |(lane, _)| lane)
        });
        if !self.connected || is_busy {
            return broken("one request at a time on a lane, to who is there", arrival);
        }
        self.asked.push_back(Asked {
            at: now,
            batch,
            ended: false,
        });
        self.sent.push(arrival);
        Ok(())
    }

    fn check(&self, batch: &Batch) -> Result<(), Broken> {
        let mut keys: Vec<String> = batch.steps.iter().map(|step| key(&step.op)).collect();
        keys.sort_unstable();
        let twice = |two: &&[String]| matches!(two, [a, b] if a == b);
        if let Some(twice) = keys.windows(2).find(twice) {
            return broken("a batch has each key once", twice);
        }
        if !self.read {
            return broken(
                "I1: nothing is written before the datastore is in sync",
                batch,
            );
        }
        if batch.lane == Lane::Flows {
            let is_flush = |step: &ipc_proto::Step| matches!(step.op, Op::FlowFlush(_));
            return if batch.steps.iter().all(is_flush) {
                Ok(())
            } else {
                broken("nothing but flushes on the lane of flows", batch)
            };
        }
        // Where a BPF map is full, its clears come early.
        let places = || batch.steps.iter().map(|step| place(&step.op));
        let breaks_early = places().any(|place| place == PLACES - BPF);
        if !breaks_early && !places().is_sorted() {
            return broken("what leads to something is made after it", batch);
        }
        let mut clears = batch.steps.iter().filter(|step| !is_set(&step.op));
        let sweep = clears.find(|step| {
            let key = Key::of(&step.op);
            !key.is_some_and(|key| self.wanted.ever.contains(&key))
        });
        match sweep {
            Some(step) if !self.complete => broken("no sweep of an incomplete datastore", step),
            Some(_) | None => Ok(()),
        }
    }
}

/// The places of sets, and then those of clears in reverse.
const PLACES: u8 = 13;
/// The place of BPF routes.
const BPF: u8 = 5;

/// Returns when in a batch an op has its place: what others need is set first and cleared last.
fn place(op: &Op) -> u8 {
    let place = match op {
        Op::LinkSettings(..) => 0,
        Op::TunnelDevice(..) => 1,
        Op::Fdb(..) => 2,
        Op::Neighbour(..) => 3,
        Op::LinkAddress(..) => 4,
        Op::BpfRoute(..) => BPF,
        Op::KernelRoute(..)
        | Op::Rule(..)
        | Op::Attachment(..)
        | Op::Endpoint(..)
        | Op::Vtep(..)
        | Op::ProgramSettings(_)
        | Op::Masquerade(_)
        | Op::FlowFlush(_) => 6,
    };
    if is_set(op) { place } else { PLACES - place }
}

/// Returns what tells an op's key apart from all others, its interface's name included.
fn key(op: &Op) -> String {
    match op {
        Op::LinkSettings(link, _) => format!("settings {link:?}"),
        Op::TunnelDevice(tunnel, _) => format!("device {tunnel:?}"),
        Op::Neighbour(key, _) => format!("neighbour {key:?}"),
        Op::Fdb(key, _) => format!("fdb {key:?}"),
        Op::LinkAddress(key, _) => format!("address {key:?}"),
        Op::BpfRoute(prefix, _) => format!("entry {prefix}"),
        Op::KernelRoute(key, _) => format!("route {key:?}"),
        op @ (Op::Rule(..)
        | Op::Attachment(..)
        | Op::Endpoint(..)
        | Op::Vtep(..)
        | Op::ProgramSettings(_)
        | Op::Masquerade(_)
        | Op::FlowFlush(_)) => format!("{op:?}"),
    }
}
