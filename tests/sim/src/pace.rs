//! What the throttle promises, told from when it let an apply through alone.

use std::{
    collections::VecDeque,
    num::NonZeroU16,
    time::{Duration, Instant},
};

use super::rules::{Broken, broken};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Pace {
    burst: usize,
    interval: Duration,
    /// When it last let one through, and as many before that as are of interest.
    admitted: VecDeque<Instant>,
}

impl Pace {
    pub(super) fn new(burst: NonZeroU16, interval: Duration) -> Self {
        Self {
            burst: burst.get().into(),
            interval,
            admitted: VecDeque::new(),
        }
    }

    /// Takes in that an apply has had a token. In an interval there are the burst, and one that was
    /// earned meanwhile.
    pub(super) fn admitted(&mut self, now: Instant) -> Result<(), Broken> {
        if self.admitted.len() > self.burst
            && let Some(first) = self.admitted.pop_front()
            && now.saturating_duration_since(first) < self.interval
        {
            return broken("a storm coalesces", now - first);
        }
        self.admitted.push_back(now);
        Ok(())
    }

    /// Takes in that there was no token, and when there will be one.
    pub(super) fn refused(&self, now: Instant, until: Option<Instant>) -> Result<(), Broken> {
        let last = self.admitted.back();
        let latest = last.map(|last| *last + self.interval);
        match (until, latest) {
            (Some(until), Some(latest)) if now < until && until <= latest => Ok(()),
            (_, _) => broken(
                "nothing waits for longer than an interval after an apply",
                (last.map(|last| now - *last), until.map(|until| until - now)),
            ),
        }
    }
}
