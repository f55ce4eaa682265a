//! When the kernel is read back without a cause.
//!
//! An interval after each reading, and up to a tenth of it more, by chance: or the nodes of a
//! cluster that was rolled out at one moment would all read at one moment. Pure; one reading covers
//! all kinds of state, so there is one ticker.

use std::time::{Duration, Instant};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Refresh {
    interval: Option<Duration>,
    /// Where the chance comes from.
    random: u64,
    due: Option<Instant>,
}

impl Refresh {
    /// Makes one that is due after `interval`, if ever; `seed` is to be another one in each
    /// process.
    pub(super) fn new(interval: Option<Duration>, seed: u64) -> Self {
        Self {
            interval,
            random: seed,
            due: None,
        }
    }

    /// Takes in that the kernel has just been read.
    pub(super) fn restart(&mut self, now: Instant) {
        self.due = self.interval.and_then(|interval| {
            // SplitMix64: all that is asked of it is to differ between nodes.
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut random = self.random;
            random = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            random = (random ^ (random >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let [chance, ..] = (random ^ (random >> 31)).to_be_bytes();
            let jitter = interval / (10 * 256) * u32::from(chance);
            now.checked_add(interval)?.checked_add(jitter)
        });
    }

    /// Takes in that it is about to be read, or cannot be.
    pub(super) fn stop(&mut self) {
        self.due = None;
    }

    /// Returns when to read it.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins now")]

    use std::collections::BTreeSet;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(90);

    #[test]
    fn readings_are_an_interval_apart_and_those_of_a_fleet_are_spread() {
        let now = Instant::now();
        let waits: BTreeSet<Duration> = (0..200)
            .map(|seed| {
                let mut refresh = Refresh::new(Some(INTERVAL), seed);
                refresh.restart(now);
                refresh.due().unwrap() - now
            })
            .collect();
        assert!(*waits.first().unwrap() >= INTERVAL);
        assert!(*waits.last().unwrap() < INTERVAL + INTERVAL / 10);
        assert!(waits.len() > 100, "{waits:?}");
        let width = waits
            .last()
            .unwrap()
            .checked_sub(*waits.first().unwrap())
            .unwrap();
        assert!(width > INTERVAL / 12, "{waits:?}");
    }

    #[test]
    fn one_node_does_not_stay_in_step_with_another() {
        let now = Instant::now();
        let mut refresh = Refresh::new(Some(INTERVAL), 7);
        let mut next = || {
            refresh.restart(now);
            refresh.due()
        };
        assert_ne!(next(), next());
    }

    #[test]
    fn never_is_never() {
        let now = Instant::now();
        let mut refresh = Refresh::new(None, 7);
        refresh.restart(now);
        assert_eq!(refresh.due(), None);
        let mut refresh = Refresh::new(Some(INTERVAL), 7);
        refresh.restart(now);
        refresh.stop();
        assert_eq!(refresh.due(), None);
    }
}
