//! The way of signals from the shell to each connection.
//!
//! The shell never waits: a connection that falls behind by more than the queue loses what is
//! oldest, and is told to read all anew in its place.

use std::{future::pending, sync::Arc};

use tokio::sync::broadcast::{self, error::RecvError};

use crate::consumers::Signal;

/// How many signals are kept for those that are slow.
const QUEUE: usize = 16;

/// The signals from when this was made or cloned on.
#[derive(Debug)]
pub(crate) struct Signals {
    receiver: broadcast::Receiver<Arc<Signal>>,
    /// What is next, once what was lost has been told.
    next: Option<Arc<Signal>>,
}

impl Clone for Signals {
    fn clone(&self) -> Self {
        Self::new(self.receiver.resubscribe())
    }
}

impl Signals {
    fn new(receiver: broadcast::Receiver<Arc<Signal>>) -> Self {
        Self {
            receiver,
            next: None,
        }
    }

    /// Makes the two ends.
    pub(crate) fn channel() -> (broadcast::Sender<Arc<Signal>>, Self) {
        let (sender, receiver) = broadcast::channel(QUEUE);
        (sender, Self::new(receiver))
    }

    /// Returns the next signal.
    pub(super) async fn next(&mut self) -> Arc<Signal> {
        if let Some(next) = self.next.take() {
            return next;
        }
        let mut lost = false;
        loop {
            match self.receiver.recv().await {
                Ok(signal) if lost => {
                    let seq = signal.after();
                    self.next = Some(signal);
                    return Arc::new(Signal::Reset { seq });
                }
                Ok(signal) => return signal,
                Err(RecvError::Lagged(_)) => lost = true,
                // The process ends.
                Err(RecvError::Closed) => return pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(seq: u64) -> Arc<Signal> {
        Arc::new(Signal::HostIps {
            seq,
            addresses: Vec::new(),
        })
    }

    #[tokio::test]
    async fn whoever_falls_behind_is_reset_to_what_is_left() {
        let (sender, mut signals) = Signals::channel();
        let last = u64::try_from(QUEUE).unwrap() + 3;
        for seq in 1..=last {
            sender.send(numbered(seq)).unwrap();
        }
        let mut late = signals.clone();
        assert_eq!(*signals.next().await, Signal::Reset { seq: 3 });
        for seq in 4..=last {
            assert_eq!(signals.next().await, numbered(seq));
        }
        // One that was made later has missed nothing.
        sender.send(numbered(last + 1)).unwrap();
        assert_eq!(late.next().await, numbered(last + 1));
    }
}
