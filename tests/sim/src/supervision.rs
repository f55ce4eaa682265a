//! The supervisor's process around its real machine, and what it hears of the children.

use std::{collections::VecDeque, time::Instant};

use supervisor::machine::{Action, Child, Input, Machine};

use super::{
    rules::{Broken, broken},
    tally::Tally,
};

/// More actions than there is reason for at a time.
const MAX_ACTIONS: u32 = 64;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Supervisor {
    pub(super) machine: Machine,
    /// What it has not heard of yet.
    pub(super) inputs: VecDeque<Input>,
}

impl Supervisor {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            machine: Machine::new(now),
            inputs: VecDeque::new(),
        }
    }

    /// Hears of the next thing.
    pub(super) fn hear(&mut self, now: Instant) {
        if let Some(input) = self.inputs.pop_front() {
            self.machine.handle(now, input);
        }
    }

    /// Returns what is to be done.
    pub(super) fn actions(
        &mut self,
        now: Instant,
        tally: &mut Tally,
    ) -> Result<Vec<Action>, Broken> {
        let mut actions = Vec::new();
        for _ in 0..MAX_ACTIONS {
            let Some(action) = self.machine.poll(now) else {
                return match self.machine.poll_timeout() {
                    Some(at) if at <= now => broken("I10: the supervisor's timer spins", now - at),
                    Some(_) | None => Ok(actions),
                };
            };
            match action {
                Action::Kill(..) => tally.add("killed by the watchdog"),
                Action::Resync => tally.add("resyncs by the supervisor"),
                Action::Spawn(_) | Action::Terminate(_) | Action::NotifyReady | Action::Quit => {}
            }
            actions.push(action);
        }
        broken("the supervisor comes to rest", actions)
    }

    pub(super) fn has_both_up(&self) -> bool {
        Child::ALL
            .into_iter()
            .all(|child| self.machine.state(child) == "up")
    }
}
