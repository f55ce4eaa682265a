//! How often new input may start an apply: a bucket of tokens, one for each apply.
//!
//! Pure: the time comes in with each call. Whoever was idle has tokens, so a single change never
//! waits; of a storm, all that comes while there is no token is one apply. Time that an apply takes
//! earns nothing, so a long one is not followed by a burst.

use std::{
    num::NonZeroU16,
    time::{Duration, Instant},
};

/// See the [module](self).
#[derive(Debug)]
pub struct Throttle {
    burst: u16,
    interval: Duration,
    tokens: u16,
    /// Since when the next token is being earned.
    since: Instant,
}

impl Throttle {
    /// Makes a bucket that holds up to `burst` tokens, has one, and earns another in each
    /// `interval` from now on; without an interval it lets all through.
    #[must_use]
    pub fn new(now: Instant, burst: NonZeroU16, interval: Duration) -> Self {
        Self {
            burst: burst.get(),
            interval,
            tokens: 1,
            since: now,
        }
    }

    /// Takes a token, if there is one.
    pub fn admit(&mut self, now: Instant) -> bool {
        self.earn(now);
        if self.interval.is_zero() {
            return true;
        }
        let left = self.tokens.checked_sub(1);
        self.tokens = left.unwrap_or_default();
        left.is_some()
    }

    /// Takes in how long what was admitted took.
    pub fn took(&mut self, time: Duration) {
        self.since = self.since.checked_add(time).unwrap_or(self.since);
    }

    /// Returns when there will be a token, if there is none.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.since.checked_add(self.interval)
    }

    fn earn(&mut self, now: Instant) {
        while self.tokens < self.burst
            && let Some(at) = self.next()
            && at <= now
        {
            self.tokens += 1;
            self.since = at;
        }
        // A full bucket earns nothing.
        if self.tokens == self.burst {
            self.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins now")]

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(100);

    fn throttle() -> (Throttle, Instant) {
        let burst = NonZeroU16::new(10).unwrap();
        let now = Instant::now();
        (Throttle::new(now, burst, INTERVAL), now)
    }

    /// Counts how many are admitted at once.
    fn admitted(throttle: &mut Throttle, now: Instant) -> usize {
        (0..100).take_while(|_| throttle.admit(now)).count()
    }

    #[test]
    fn the_first_is_admitted_and_the_next_one_an_interval_later() {
        let (mut throttle, start) = throttle();
        assert_eq!(admitted(&mut throttle, start), 1);
        assert_eq!(throttle.next(), Some(start + INTERVAL));
        assert_eq!(admitted(&mut throttle, start + INTERVAL / 2), 0);
        assert_eq!(throttle.next(), Some(start + INTERVAL));
        assert_eq!(admitted(&mut throttle, start + INTERVAL), 1);
    }

    #[test]
    fn whoever_was_idle_has_a_burst_and_no_more() {
        let (mut throttle, start) = throttle();
        assert_eq!(admitted(&mut throttle, start), 1);
        let later = start + Duration::from_secs(5);
        assert_eq!(admitted(&mut throttle, later), 10);
        assert_eq!(throttle.next(), Some(later + INTERVAL));
    }

    #[test]
    fn an_idle_time_before_the_first_counts() {
        let (mut throttle, start) = throttle();
        let later = start + Duration::from_secs(5);
        assert_eq!(admitted(&mut throttle, later), 10);
    }

    #[test]
    fn a_storm_has_one_apply_in_each_interval_and_the_burst_once() {
        let (mut throttle, start) = throttle();
        assert_eq!(admitted(&mut throttle, start), 1);
        let storm = start + Duration::from_secs(5);
        let moments = (0..10_000).map(|n| storm + Duration::from_millis(n));
        let count = moments.filter(|now| throttle.admit(*now)).count();
        assert_eq!(count, 10 + 99);
    }

    #[test]
    fn a_part_of_an_interval_is_not_lost() {
        let (mut throttle, start) = throttle();
        assert_eq!(admitted(&mut throttle, start), 1);
        assert_eq!(admitted(&mut throttle, start + INTERVAL * 3 / 2), 1);
        assert_eq!(throttle.next(), Some(start + INTERVAL * 2));
        assert_eq!(admitted(&mut throttle, start + INTERVAL * 2), 1);
    }

    #[test]
    fn a_long_apply_earns_nothing() {
        let (mut throttle, start) = throttle();
        assert_eq!(admitted(&mut throttle, start), 1);
        let took = Duration::from_secs(5);
        throttle.took(took);
        assert_eq!(admitted(&mut throttle, start + took), 0);
        assert_eq!(throttle.next(), Some(start + took + INTERVAL));
    }

    #[test]
    fn without_an_interval_all_are_admitted() {
        let now = Instant::now();
        let mut throttle = Throttle::new(now, NonZeroU16::MIN, Duration::ZERO);
        assert_eq!(admitted(&mut throttle, now), 100);
    }
}
