//! How long to leave a key alone after a failure. Pure; a failure is news once.

use std::time::{Duration, Instant};

use ipc_proto::OpError;

use super::{Kind, Table, Verdict};

/// The wait after the first failure; it doubles from there.
const RETRY_MIN: Duration = Duration::from_millis(500);
/// The longest wait.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Returns how long to wait after so many failures and one more.
pub(crate) fn backoff(attempts: u32) -> Duration {
    let factor = 1_u32.checked_shl(attempts).unwrap_or(u32::MAX);
    let wait = RETRY_MIN.checked_mul(factor).unwrap_or(RETRY_MAX);
    wait.min(RETRY_MAX)
}

/// What the failure of a key's desired value means for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    /// Why it failed.
    pub(super) error: OpError,
    /// When it may be tried again.
    pub(super) wait: Wait,
    /// How often it has failed in a row.
    attempts: u32,
    /// Whether the operator was told.
    told: bool,
}

/// When a key may be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// At once.
    Over,
    /// Then.
    Until(Instant),
    /// Once another value is wanted of it, or the helper starts a new lease.
    UntilChanged,
}

impl Hold {
    /// Adds a failure to those before.
    pub(super) fn after(before: Option<Self>, error: OpError, now: Instant) -> (Self, Verdict) {
        let attempts = before.as_ref().map_or(0, |hold| hold.attempts);
        let told = before.as_ref().is_some_and(|hold| hold.told);
        let wait = if error.is_transient() {
            Wait::Until(now + backoff(attempts))
        } else {
            Wait::UntilChanged
        };
        // Not having been tried is no reason of its own, and none to forget the real one.
        let (error, is_news) = match (before.map(|hold| hold.error), error) {
            (Some(reason), OpError::NotTried(_)) => (reason, false),
            (None, error @ OpError::NotTried(_)) => (error, false),
            (Some(reason), error) => {
                let is_news = !told || reason != error;
                (error, is_news)
            }
            // An interface may go under one's hands, which is heard of soon: that is no failure yet.
            (None, error) => {
                let is_news = !is_race(&error);
                (error, is_news)
            }
        };
        let hold = Self {
            error,
            wait,
            attempts: attempts.saturating_add(1),
            told: told || is_news,
        };
        let verdict = if is_news {
            Verdict::Failed
        } else {
            Verdict::Unchanged
        };
        (hold, verdict)
    }

    /// Returns whether the operator was told.
    pub(super) fn is_told(&self) -> bool {
        self.told
    }
}

/// Returns whether an interface has gone, or gone down, under the helper's hands.
fn is_race(error: &OpError) -> bool {
    /// `ENODEV` and `ENETDOWN`.
    const RACES: [i32; 2] = [19, 100];
    match error {
        OpError::StaleLink(_) => true,
        OpError::Kernel { errno, .. } => RACES.contains(errno),
        OpError::Denied(_) | OpError::NotTried(_) | OpError::Unsupported(_) => false,
    }
}

impl<K: Kind> Table<K> {
    /// Ends the waiting of those that failed and of which `is_due` says so.
    pub(crate) fn retry(&mut self, is_due: impl Fn(&K::Key, Option<&K::Value>, &OpError) -> bool) {
        let due: Vec<K::Key> = self
            .timers
            .iter()
            .map(|(_, key)| key)
            .filter(|key| {
                self.holds
                    .get(key)
                    .is_some_and(|hold| is_due(key, self.tracker.desired(key), &hold.error))
            })
            .cloned()
            .collect();
        for key in due {
            self.wake(key);
        }
    }

    /// Ends the waiting that is over by `now`.
    pub(crate) fn tick(&mut self, now: Instant) {
        while let Some((_, key)) = self.timers.first().filter(|(at, _)| *at <= now).cloned() {
            self.wake(key);
        }
        for key in self.contests.tick(now) {
            self.refile(key);
        }
    }

    pub(super) fn wake(&mut self, key: K::Key) {
        if self.release_spared(&key) {
            self.refile(key.clone());
        }
        if let Some(hold) = self.holds.get_mut(&key) {
            if let Wait::Until(at) = hold.wait {
                self.timers.remove(&(at, key.clone()));
            }
            hold.wait = Wait::Over;
            self.refile(key);
        }
    }

    /// Removes the hold of a key, but does not file it.
    pub(super) fn release(&mut self, key: &K::Key) -> Option<Hold> {
        let hold = self.holds.remove(key)?;
        if let Wait::Until(at) = hold.wait {
            self.timers.remove(&(at, key.clone()));
        }
        Some(hold)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "any instant will do")]

    use super::*;

    fn errno(errno: i32) -> OpError {
        OpError::Kernel {
            call: "RTM_NEWROUTE".to_owned(),
            errno,
        }
    }

    #[test]
    fn waits_double_up_to_half_a_minute_and_never_overflow() {
        let now = Instant::now();
        let mut hold = None;
        let mut waits = Vec::new();
        for _ in 0..100 {
            let (next, _) = Hold::after(hold, errno(12), now);
            if let Wait::Until(at) = next.wait {
                waits.push((at - now).as_millis());
            }
            hold = Some(next);
        }
        assert_eq!(
            waits[..8],
            [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]
        );
        assert_eq!(waits[8..], vec![30000; 92]);
    }

    #[test]
    fn only_another_reason_is_news() {
        let now = Instant::now();
        let mut hold = None;
        for (error, verdict) in [
            (OpError::NotTried(1), Verdict::Unchanged),
            (errno(12), Verdict::Failed),
            (errno(12), Verdict::Unchanged),
            (OpError::NotTried(2), Verdict::Unchanged),
            (errno(12), Verdict::Unchanged),
            (errno(22), Verdict::Failed),
            (OpError::Denied("no".to_owned()), Verdict::Failed),
            (errno(19), Verdict::Failed),
        ] {
            let (next, got) = Hold::after(hold, error.clone(), now);
            assert_eq!(got, verdict, "{error:?}");
            hold = Some(next);
        }
        assert_eq!(hold.map(|hold| hold.attempts), Some(8));
    }

    #[test]
    fn an_interface_that_goes_under_its_hands_is_news_only_if_it_stays_so() {
        let now = Instant::now();
        let (first, verdict) = Hold::after(None, errno(19), now);
        assert_eq!((first.is_told(), verdict), (false, Verdict::Unchanged));
        let (second, verdict) = Hold::after(Some(first), errno(19), now);
        assert_eq!((second.is_told(), verdict), (true, Verdict::Failed));
        let (third, verdict) = Hold::after(Some(second), errno(19), now);
        assert_eq!((third.is_told(), verdict), (true, Verdict::Unchanged));
    }
}
