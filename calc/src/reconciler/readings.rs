//! When all is read once more for a cause, and what readings find that others have changed.
//!
//! It is read at once if the last reading is a while ago, or else a while after it. Causes are new
//! links, on which a plugin may have made a route, and what the helper hears of others. Where such a
//! reading finds nothing changed, the next one waits for longer: whoever changes much beside what is
//! ours must not have it read all the time. Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ipc_proto::view::Kind;

/// How long after a reading there is another.
const PAUSE: Duration = Duration::from_secs(1);
/// How long at most, however many were in vain.
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// How much of each kind.
pub(crate) type Drift = BTreeMap<Kind, u64>;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Readings {
    /// When all was read, if it was.
    last: Option<Instant>,
    /// Whether others have changed something since then, as the helper hears.
    others: bool,
    /// How many readings for their sake have found nothing, one after the other.
    vain: u32,
    /// Whether the last one found something.
    found: bool,
    drift: Drift,
}

impl Readings {
    /// Takes in that others have changed something that may be ours.
    pub(super) fn hear(&mut self, now: Instant) {
        self.others = true;
        let quiet = self.last.map(|last| now.saturating_duration_since(last));
        if quiet.is_some_and(|quiet| quiet > 2 * self.pause()) {
            self.vain = 0;
        }
    }

    /// Takes in that all was read, and what was found otherwise than it was known to be. Returns that
    /// if it is news: not before, and not in the reading before.
    pub(super) fn end(&mut self, now: Instant, found: Drift) -> Option<Drift> {
        // A process that starts knows nothing.
        let found = self.last.map(|_| found).unwrap_or_default();
        for (kind, count) in &found {
            let sum = self.drift.entry(*kind).or_default();
            *sum = sum.saturating_add(*count);
        }
        let is_drift = !found.is_empty();
        let is_news = is_drift && !self.found;
        self.vain = match (is_drift, self.others) {
            (true, _) => 0,
            (false, true) => self.vain.saturating_add(1),
            (false, false) => self.vain,
        };
        (self.last, self.others, self.found) = (Some(now), false, is_drift);
        is_news.then_some(found)
    }

    /// Returns when all is to be read, if it is: for the sake of new links, if it is `due` for them, or
    /// of what others have changed.
    pub(super) fn next(&self, due: bool) -> Option<Instant> {
        let pause = if due {
            PAUSE
        } else {
            self.others.then(|| self.pause())?
        };
        self.last?.checked_add(pause)
    }

    /// Returns how much readings have found otherwise than it was known to be.
    pub(super) fn drift(&self) -> &Drift {
        &self.drift
    }

    fn pause(&self) -> Duration {
        let factor = 1_u32.checked_shl(self.vain).unwrap_or(u32::MAX);
        let pause = PAUSE.checked_mul(factor).unwrap_or(PAUSE_MAX);
        pause.min(PAUSE_MAX)
    }
}
