//! What a client has asked and nobody has answered, and whether its connection shall end.
//!
//! Invariant: of one client there are never more than [`MAX_CALLS`] calls in memory, nor more than
//! [`MAX_BYTES`] and one call. One that does not read its answers is not read from.

use std::{io, sync::Arc};

use tokio::sync::watch;

use super::framing::Start;
use crate::bus::MAX_BODY;

/// The most calls that wait for their answers.
const MAX_CALLS: usize = 32;
/// With so many bytes waiting for answers, no further call is read.
const MAX_BYTES: usize = MAX_BODY;

#[derive(Debug, Default)]
struct State {
    /// The number and the length of each call.
    unanswered: Vec<(u32, usize)>,
    ended: bool,
}

impl State {
    fn has_room(&self) -> bool {
        let bytes: usize = self.unanswered.iter().map(|(_, length)| length).sum();
        self.unanswered.len() < MAX_CALLS && bytes < MAX_BYTES
    }
}

/// Ends a connection at once, whatever its two halves and those who use it are at.
#[derive(Clone, Debug, Default)]
pub struct Hangup(Arc<watch::Sender<State>>);

impl Hangup {
    /// Ends it: reads and writes fail from now on.
    pub fn end(&self) {
        self.0.send_modify(|state| state.ended = true);
    }

    /// Returns whether it has ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.0.borrow().ended
    }

    pub(super) fn follow(&self) -> Account {
        Account {
            hangup: self.clone(),
            state: self.0.subscribe(),
        }
    }
}

/// One half's view of it.
#[derive(Debug)]
pub(super) struct Account {
    hangup: Hangup,
    state: watch::Receiver<State>,
}

impl Account {
    /// Takes in a call.
    pub(super) fn asked(&self, start: Start) {
        let call = (start.serial, start.length);
        self.hangup
            .0
            .send_modify(|state| state.unanswered.push(call));
    }

    /// Takes in an answer.
    pub(super) fn answered(&self, serial: u32) {
        self.hangup.0.send_modify(|state| {
            let at = state.unanswered.iter().position(|call| call.0 == serial);
            at.map(|at| state.unanswered.swap_remove(at));
        });
    }

    /// Waits until there is room for another call.
    pub(super) async fn room(&mut self) -> io::Result<()> {
        let waited = self
            .state
            .wait_for(|state| state.ended || state.has_room())
            .await;
        match waited {
            Ok(state) if !state.ended => Ok(()),
            Ok(_) | Err(_) => Err(hung_up()),
        }
    }

    /// Does something with the socket, unless the connection ends meanwhile; ends it if that fails.
    pub(super) async fn unless_ended<T>(
        &mut self,
        work: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        let done = tokio::select! {
            biased;
            _ = self.state.wait_for(|state| state.ended) => Err(hung_up()),
            done = work => done,
        };
        if done.is_err() {
            self.hangup.end();
        }
        done
    }
}

fn hung_up() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was ended")
}
