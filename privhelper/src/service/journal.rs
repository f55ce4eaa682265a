//! What is logged of what clients do, in lines that they cannot make too many of: a hostile one could
//! fill the disk, or push all else out of the journal.
//!
//! Some lines come through at once, then one in each interval; it says how many were left out.

use std::{
    fmt, mem,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How many lines come through at once after a quiet time.
const BURST: u32 = 10;
/// In what time there is one more.
const INTERVAL: Duration = Duration::from_secs(10);

/// The lines of all clients, the present one and those before.
#[derive(Clone, Debug)]
pub(super) struct Journal(Arc<Mutex<Lines>>);

impl Journal {
    pub(super) fn new(now: Instant) -> Self {
        Self(Arc::new(Mutex::new(Lines::new(now))))
    }

    /// Logs a line, or counts it.
    pub(super) fn warn(&self, line: impl fmt::Display) {
        if let Some(omitted) = self.admit() {
            tracing::warn!("{line}{omitted}");
        }
    }

    /// As [`warn`](Self::warn), for what is nobody's fault.
    pub(super) fn info(&self, line: impl fmt::Display) {
        if let Some(omitted) = self.admit() {
            tracing::info!("{line}{omitted}");
        }
    }

    fn admit(&self) -> Option<String> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Some(match lines.admit(Instant::now())? {
            0 => String::new(),
            omitted => format!(" ({omitted} lines before it were left out)"),
        })
    }
}

/// Which lines come through. Pure.
#[derive(Debug)]
struct Lines {
    left: u32,
    /// Since when the next one is being earned.
    since: Instant,
    omitted: u64,
}

impl Lines {
    fn new(now: Instant) -> Self {
        Self {
            left: BURST,
            since: now,
            omitted: 0,
        }
    }

    /// Lets a line through, with how many were left out before it, or leaves it out.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        while self.left < BURST && now.saturating_duration_since(self.since) >= INTERVAL {
            self.left += 1;
            self.since += INTERVAL;
        }
        if self.left == BURST {
            self.since = now;
        }
        let Some(left) = self.left.checked_sub(1) else {
            self.omitted += 1;
            return None;
        };
        self.left = left;
        Some(mem::take(&mut self.omitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_ten_lines_and_then_one_in_ten_seconds_that_tells_how_many_there_were() {
        let start = Instant::now();
        let mut lines = Lines::new(start);
        let flood = (0..60_000).map(|ms| start + Duration::from_millis(ms));
        let told: Vec<u64> = flood.filter_map(|now| lines.admit(now)).collect();
        let first = [0; 10];
        let later = [9_990, 9_999, 9_999, 9_999, 9_999];
        assert_eq!(told, [&first[..], &later[..]].concat());
    }

    #[test]
    fn after_a_quiet_time_lines_come_through_again() {
        let start = Instant::now();
        let mut lines = Lines::new(start);
        assert_eq!((0..20).filter_map(|_| lines.admit(start)).count(), 10);
        let later = start + Duration::from_hours(1);
        let told: Vec<u64> = (0..20).filter_map(|_| lines.admit(later)).collect();
        assert_eq!(told, [[10].as_slice(), &[0; 9]].concat());
    }
}
