//! Which batch is sent next: one that follows none, or those that follow it by themselves, each once all of
//! the one before it was made. Pure.

use std::{collections::VecDeque, sync::Arc};

use ipc_proto::{Ack, Batch, BatchId, Lane};

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Train {
    /// Those that have not been sent, in order.
    batches: VecDeque<Arc<Batch>>,
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
    pub fn add(&mut self, batch: Arc<Batch>) {
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
    pub fn next(&mut self) -> Option<(Arc<Batch>, bool)> {
        if self.in_flight.is_some() {
            return None;
        }
        let batch = self.batches.pop_front()?;
        self.in_flight = Some(batch.id);
        let is_prepared = self.prepared == self.in_flight;
        Some((batch, is_prepared))
    }

    /// Returns the next one while there is one in flight, to be sent ahead now; once.
    pub fn ahead(&mut self) -> Option<&Arc<Batch>> {
        self.in_flight?;
        let batch = self.batches.front()?;
        if self.prepared.replace(batch.id) == Some(batch.id) {
            return None;
        }
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use ipc_proto::{Lease, OpError};

    use super::*;

    fn batch(lane: Lane, id: u64) -> Arc<Batch> {
        Arc::new(Batch {
            lease: Lease(1),
            lane,
            id: BatchId(id),
            steps: Vec::new(),
        })
    }

    /// Starts with the first in flight and two that follow.
    fn train() -> Train {
        let mut train = Train::default();
        train.start(&batch(Lane::State, 1));
        train.add(batch(Lane::State, 2));
        train.add(batch(Lane::State, 3));
        train
    }

    fn made(id: u64) -> Ack {
        Ack {
            id: BatchId(id),
            failed: Vec::new(),
        }
    }

    /// Returns the number of the next, and whether it was sent ahead.
    fn next(train: &mut Train) -> Option<(u64, bool)> {
        let (batch, is_prepared) = train.next()?;
        Some((batch.id.0, is_prepared))
    }

    #[test]
    fn each_goes_ahead_once_and_follows_the_answer_to_the_one_before() {
        let mut train = train();
        assert_eq!(train.ahead().map(|batch| batch.id), Some(BatchId(2)));
        assert_eq!(train.ahead(), None);
        assert_eq!(next(&mut train), None, "the first is not answered");
        train.answered(&made(1));
        assert_eq!(train.ahead(), None, "it is called for instead");
        assert_eq!(next(&mut train), Some((2, true)));
        train.answered(&made(1));
        assert_eq!(next(&mut train), None, "that answers another");
        train.answered(&made(2));
        assert_eq!(next(&mut train), Some((3, false)), "none was sent ahead");
        train.answered(&made(3));
        train.add(batch(Lane::State, 4));
        assert_eq!(next(&mut train), Some((4, false)), "late, but it follows");
    }

    #[test]
    fn nothing_follows_what_failed_or_was_called_back_until_another_starts() {
        let fail = |train: &mut Train| {
            train.answered(&Ack {
                failed: vec![(0, OpError::NotTried(0))],
                ..made(1)
            });
            None
        };
        for stop in [fail, |train: &mut Train| train.stop()] {
            let mut train = train();
            let in_flight = stop(&mut train);
            train.answered(&made(1));
            train.add(batch(Lane::State, 4));
            train.start(&batch(Lane::Flows, 5));
            train.add(batch(Lane::State, 6));
            assert_eq!(next(&mut train), None, "{in_flight:?}");
            train.start(&batch(Lane::State, 7));
            train.add(batch(Lane::State, 8));
            train.answered(&made(7));
            assert_eq!(next(&mut train), Some((8, false)));
        }
    }

    #[test]
    fn it_is_known_which_is_in_flight_when_the_others_are_called_back() {
        assert_eq!(train().stop(), Some(BatchId(1)));
        let mut train = train();
        train.answered(&made(1));
        assert_eq!(train.stop(), None, "the next was not sent");
        let mut train = self::train();
        train.answered(&made(1));
        next(&mut train);
        assert_eq!(train.stop(), Some(BatchId(2)));
    }
}
