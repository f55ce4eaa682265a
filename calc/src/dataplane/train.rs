//! Which batch is sent next: one that follows none, or those that follow it by themselves, each once all of
//! the one before it was made. Pure.

use std::collections::VecDeque;

use ipc_proto::{Ack, Batch, BatchId, Lane};

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Train {
    /// Those that have not been sent, in order.
    batches: VecDeque<Batch>,
    /// The one of [`Lane::State`] that has been sent and is not answered.
    in_flight: Option<BatchId>,
    /// The one that the helper has been sent ahead.
    prepared: Option<BatchId>,
    /// Whether more may follow: all so far was made, or may yet be, and none was called back.
    goes_on: bool,
}

impl Train {
    /// Takes in that a batch is sent that follows none, and that others may follow it.
    pub fn start(&mut self, batch: &Batch) {
        if batch.lane == Lane::State {
            self.in_flight = Some(batch.id);
            self.goes_on = true;
        }
    }

    /// Adds one that is to follow.
    pub fn add(&mut self, batch: Batch) {
        if self.goes_on {
            self.batches.push_back(batch);
        }
    }

    /// Has no more follow, and returns the one in flight.
    pub fn stop(&mut self) -> Option<BatchId> {
        self.goes_on = false;
        self.batches.clear();
        self.in_flight
    }

    /// Takes in an answer.
    pub fn answered(&mut self, ack: &Ack) {
        if self.in_flight == Some(ack.id) {
            self.in_flight = None;
            if !ack.failed.is_empty() {
                self.stop();
            }
        }
    }

    /// Returns the next one, to be sent now, and whether the helper has it already.
    #[expect(clippy::should_implement_trait, reason = "there is more after nothing")]
    pub fn next(&mut self) -> Option<(Batch, bool)> {
        if self.in_flight.is_some() {
            return None;
        }
        let batch = self.batches.pop_front()?;
        self.in_flight = Some(batch.id);
        let is_prepared = self.prepared == self.in_flight;
        Some((batch, is_prepared))
    }

    /// Returns the next one while there is one in flight, to be sent ahead now; once.
    pub fn ahead(&mut self) -> Option<&Batch> {
        self.in_flight?;
        let batch = self.batches.front()?;
        if self.prepared.replace(batch.id) == Some(batch.id) {
            return None;
        }
        Some(batch)
    }
}
