//! One child's life, without regard to the other.

use std::time::{Duration, Instant};

use super::{FIRST_DELAY, LAST_DELAY, STABLE, START_LIMIT, WATCHDOG};

/// Where a child is in its life; `until` is when something is to be done about it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Life {
    /// There is no process.
    Down { until: Instant },
    /// There is one, and it is not ready.
    Starting { until: Instant },
    /// It is ready.
    Up { until: Instant },
    /// It is to end; once it has been killed there is nothing left to do but wait.
    Stopping { until: Option<Instant> },
    /// A service manager keeps it; whether its face is seen.
    Foreign { seen: bool },
}

/// What is known of a child.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) life: Life,
    /// How often it was started, as far as is known.
    pub(super) starts: u32,
    /// How often in a row it failed.
    failures: u32,
    /// When this process became ready.
    up_since: Option<Instant>,
    /// The incarnation that this process last showed.
    incarnation: Option<u64>,
    /// Whether the connection that showed it has ended.
    lost: bool,
}

impl Record {
    pub(super) fn new(now: Instant) -> Self {
        Self::with(Life::Down { until: now })
    }

    pub(super) fn foreign() -> Self {
        Self::with(Life::Foreign { seen: false })
    }

    fn with(life: Life) -> Self {
        Self {
            life,
            starts: 0,
            failures: 0,
            up_since: None,
            incarnation: None,
            lost: false,
        }
    }

    pub(super) fn start(&mut self, now: Instant) {
        self.starts = self.starts.saturating_add(1);
        self.life = Life::Starting {
            until: now + START_LIMIT,
        };
    }

    /// Starts the time that it may take to be ready over.
    pub(super) fn grant(&mut self, now: Instant) {
        if let Life::Starting { until } = &mut self.life {
            *until = now + START_LIMIT;
        }
    }

    /// Returns whether it was starting.
    pub(super) fn ready(&mut self, now: Instant) -> bool {
        let starting = matches!(self.life, Life::Starting { .. });
        if starting {
            self.up_since = Some(now);
            self.life = Life::Up {
                until: now + WATCHDOG,
            };
        }
        starting
    }

    pub(super) fn alive(&mut self, now: Instant) {
        if let Life::Up { until } = &mut self.life {
            *until = now + WATCHDOG;
        }
    }

    pub(super) fn exited(&mut self, now: Instant) {
        let stable = self
            .up_since
            .is_some_and(|since| now.saturating_duration_since(since) >= STABLE);
        if stable {
            self.failures = 0;
        }
        self.life = Life::Down {
            until: now + delay(self.failures),
        };
        self.failures = self.failures.saturating_add(1);
        self.up_since = None;
        self.incarnation = None;
        self.lost = false;
    }

    /// Returns whether it has crashed since it was last seen, without its exit having been seen.
    pub(super) fn seen(&mut self, incarnation: u64) -> bool {
        if let Life::Down { .. } = self.life {
            // Heard late, of the life that is over; its end has been seen.
            return false;
        }
        let lost = std::mem::take(&mut self.lost);
        let before = self.incarnation.replace(incarnation);
        if let Life::Foreign { seen } = &mut self.life {
            *seen = true;
            if before != Some(incarnation) {
                self.starts = self.starts.saturating_add(1);
            }
        }
        lost || before.is_some_and(|before| before != incarnation)
    }

    pub(super) fn lost(&mut self) {
        if let Life::Foreign { seen } = &mut self.life {
            *seen = false;
        }
        self.lost = self.incarnation.is_some();
    }
}

/// Returns how long a child stays down that had failed `failures` times in a row before.
fn delay(failures: u32) -> Duration {
    FIRST_DELAY
        .saturating_mul(2_u32.saturating_pow(failures))
        .min(LAST_DELAY)
}
