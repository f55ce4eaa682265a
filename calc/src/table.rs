//! One kind of kernel state: what should be, what is, what to do next.
//!
//! A key that is not as desired is ready to be asked for, unless its last attempt failed: then it
//! waits. A failure belongs to the value that was sent, and ends when another is wanted.

mod contest;
mod drift;
mod hold;
mod kinds;
mod look;
mod ready;
mod spared;
mod told;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    ops::RangeInclusive,
    time::Instant,
};

use ipc_proto::{Op, OpError};

pub(crate) use self::contest::Alarm;
pub(crate) use self::hold::backoff;
pub(crate) use self::kinds::{
    Attachments, BpfRoutes, Endpoints, Fdb, KernelRoutes, Kind, LinkAddresses, LinkSettings,
    Neighbours, Rules, TunnelDevices,
};
pub use self::look::Counts;
pub(crate) use self::look::{AnyTable, Entry};
pub(crate) use self::told::MAX_CHANGES;
use self::{
    contest::Contests,
    drift::Found,
    hold::{Hold, Wait},
    ready::Ready,
    told::Told,
};
use crate::delta::{Actual, Change, DeltaTracker, Fresh, Turn};

/// What an outcome means for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// As before.
    Unchanged,
    /// It fails, or fails for another reason than before.
    Failed,
    /// It failed before and is right.
    Recovered,
}

/// What to do with the key and the value of an op.
#[derive(Debug)]
pub(crate) enum Act {
    /// It is what should be.
    Want,
    /// It was sent; this is when the answer came, and why it failed if it did.
    Settle(Instant, Option<OpError>),
    /// It was sent, and may have been carried out or not.
    Lose,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Table<K: Kind> {
    tracker: DeltaTracker<K::Key, K::Value>,
    ready: Ready<K::Key>,
    holds: BTreeMap<K::Key, Hold>,
    /// What nobody wants and is not to be swept before then.
    spared: BTreeMap<K::Key, Instant>,
    /// The holds that end by themselves, and the ends of sparing.
    timers: BTreeSet<(Instant, K::Key)>,
    contests: Contests<K>,
    /// What the last reading found otherwise.
    found: Found<K>,
    /// Nobody knows what is there before the next reading, which finds nothing changed.
    unknown: bool,
    told: Told<K>,
}

impl<K: Kind> Default for Table<K> {
    fn default() -> Self {
        Self {
            tracker: DeltaTracker::default(),
            ready: Ready::default(),
            holds: BTreeMap::new(),
            spared: BTreeMap::new(),
            timers: BTreeSet::new(),
            contests: Contests::default(),
            found: Found::default(),
            unknown: false,
            told: Told::default(),
        }
    }
}

impl<K: Kind> Table<K> {
    /// Does what `act` says.
    pub(crate) fn act(&mut self, key: K::Key, value: Option<K::Value>, act: Act) -> Verdict {
        match act {
            Act::Want => self.want(key, value),
            Act::Settle(now, failed) => return self.settle(now, key, value, failed),
            Act::Lose => self.learn(key, Actual::Wrong),
        }
        Verdict::Unchanged
    }

    /// Says what `key` should be.
    fn want(&mut self, key: K::Key, value: Option<K::Value>) {
        if let Some(turn) = self.tracker.set_desired(key.clone(), value) {
            self.release(&key);
            self.contests.forget(&key);
            self.file(key, turn);
        }
    }

    /// Forgets what there is: for a while others have changed it at will.
    pub(crate) fn forget(&mut self) {
        let former = mem::take(self);
        for (key, desired, _) in former.tracker.iter() {
            self.want(key.clone(), desired.cloned());
        }
        self.unknown = true;
    }

    /// Says what keys should be that are neither wanted nor there.
    pub(crate) fn want_new(&mut self, all: Fresh<K::Key, K::Value>) {
        let mut keys = all.keys().cloned().collect();
        self.ready.of_mut(Change::Insert).append(&mut keys);
        self.want_asked(all);
    }

    /// As [`want_new`](Self::want_new), of keys that were asked for already: they are not to be asked for again
    /// unless they are [brought back](Self::bring_back).
    pub(crate) fn want_asked(&mut self, all: Fresh<K::Key, K::Value>) {
        if all.len() > 0 {
            self.tracker.set_new(all);
        }
    }

    /// Says that a key was not asked for after all.
    pub(crate) fn bring_back(&mut self, key: K::Key) {
        self.refile(key);
    }

    /// Says that all is as it is known to be, has what failed tried once more, and returns the keys
    /// that failed and are right.
    pub(crate) fn confirm(&mut self, now: Instant) -> Vec<K::Key> {
        self.found = Found::default();
        self.start_over(now, Vec::new())
    }

    /// As [`confirm`](Self::confirm), but says what everything is.
    pub(crate) fn resync(
        &mut self,
        now: Instant,
        all: Vec<(K::Key, Option<K::Value>)>,
    ) -> Vec<K::Key> {
        let known = !mem::take(&mut self.unknown);
        let Self { tracker, told, .. } = self;
        let mut former = Vec::new();
        let mut found = Found::default();
        tracker.replace_actual(all, |key, was| {
            if known {
                found.note(key, &was);
            }
            let was = was.known();
            if former.len() < contest::MAX {
                former.extend(was.clone().map(|was| (key.clone(), was)));
            }
            told.note(key, || was);
        });
        self.found = found;
        self.start_over(now, former)
    }

    /// Has all that differs tried at once, after a reading that has found other values than these `former`
    /// ones, and returns the keys that failed and are right.
    fn start_over(&mut self, now: Instant, former: Vec<(K::Key, K::Value)>) -> Vec<K::Key> {
        self.compare(now, former);
        self.timers.clear();
        self.spared.clear();
        for hold in self.holds.values_mut() {
            hold.wait = Wait::Over;
        }
        let Self { tracker, holds, .. } = self;
        let recovered = holds
            .extract_if(.., |key, _| tracker.change(key).is_none())
            .filter(|(_, hold)| hold.is_told())
            .map(|(key, _)| key)
            .collect();
        self.ready = Ready::default();
        for (key, change) in tracker.pending() {
            if (K::CLEARS || change.sets()) && !self.contests.waits(key) {
                self.ready.of_mut(change).insert(key.clone());
            }
        }
        recovered
    }

    /// Takes in what became of a change: made, or not and why.
    fn settle(
        &mut self,
        now: Instant,
        key: K::Key,
        sent: Option<K::Value>,
        failed: Option<OpError>,
    ) -> Verdict {
        let gone = sent.is_none() && matches!(failed, Some(OpError::StaleLink(_)));
        let Some(error) = failed.filter(|_| !gone) else {
            let told = self.release(&key).is_some_and(|hold| hold.is_told());
            self.contests.made(now, &key);
            let actual = sent.map_or(Actual::Absent, Actual::Is);
            self.learn(key, actual);
            return if told {
                Verdict::Recovered
            } else {
                Verdict::Unchanged
            };
        };
        let verdict = if self.tracker.desired(&key) == sent.as_ref() {
            let before = self.release(&key);
            let (hold, verdict) = Hold::after(before, error.clone(), now);
            if let Wait::Until(at) = hold.wait {
                self.timers.insert((at, key.clone()));
            }
            self.holds.insert(key.clone(), hold);
            verdict
        } else {
            // A failure says nothing of a value that is wanted since.
            Verdict::Unchanged
        };
        if !K::ATOMIC && matches!(error, OpError::Kernel { .. }) {
            self.learn(key, Actual::Wrong);
        } else {
            self.refile(key);
        }
        verdict
    }

    /// As [`act`](Self::act) of many changes that were made, whose keys come in order. Returns those that had
    /// failed before.
    pub(crate) fn settle_all(
        &mut self,
        now: Instant,
        made: Vec<(K::Key, Option<K::Value>)>,
    ) -> Vec<Op> {
        if !self.is_calm() || !self.tracker.are_many(made.len()) {
            let recovers = |(key, sent): &(K::Key, Option<K::Value>)| {
                self.settle(now, key.clone(), sent.clone(), None) == Verdict::Recovered
            };
            let recovered = made.into_iter().filter(recovers);
            return recovered.map(|(key, sent)| K::op(key, sent)).collect();
        }
        for (key, _) in &made {
            self.note(key);
        }
        self.ready.remove_all(&made);
        for (key, sent) in self.tracker.settle_all(made) {
            let turn = self
                .tracker
                .settle(key.clone(), sent.map_or(Actual::Absent, Actual::Is));
            self.file(key, turn);
        }
        Vec::new()
    }

    /// As [`settle_all`](Self::settle_all), of all the keys of a range, so many, of which nothing is known but that
    /// they should be there. Returns whether that could be done: of few it is not worth it.
    pub(crate) fn settle_new(&mut self, keys: RangeInclusive<K::Key>, count: usize) -> bool {
        let is_settled =
            count > MAX_CHANGES && self.is_calm() && self.tracker.settle_wanted(keys, count);
        if is_settled {
            self.told.note_many();
        }
        is_settled
    }

    /// Returns whether nothing that is made ends a waiting.
    fn is_calm(&self) -> bool {
        self.holds.is_empty() && self.spared.is_empty() && self.contests.is_empty()
    }

    /// Takes in that the keys which are as `is_lost` says have become `actual`, as far as known.
    pub(crate) fn doubt(
        &mut self,
        actual: &Actual<K::Value>,
        is_lost: impl Fn(&K::Key, Option<&K::Value>) -> bool,
    ) {
        let lost: Vec<K::Key> = self
            .tracker
            .iter()
            .filter(|(key, _, is)| match is {
                Actual::Absent => false,
                Actual::Is(value) => is_lost(key, Some(value)),
                Actual::Wrong => is_lost(key, None),
            })
            .map(|(key, ..)| key.clone())
            .collect();
        for key in lost {
            self.note(&key);
            let turn = self.tracker.set_actual(key.clone(), actual.clone());
            self.file(key, turn);
        }
    }

    /// Takes no more room than it must.
    pub(crate) fn pack(&mut self) {
        self.tracker.pack();
    }

    /// Takes in what `key` has become by a change of ours.
    fn learn(&mut self, key: K::Key, actual: Actual<K::Value>) {
        self.note(&key);
        let turn = self.tracker.settle(key.clone(), actual);
        self.file(key, turn);
    }

    /// Files a key anew: what it takes is as before, but not whether it waits.
    fn refile(&mut self, key: K::Key) {
        let change = self.tracker.change(&key);
        let turn = Turn {
            before: change,
            after: change,
        };
        self.file(key, turn);
    }

    /// Files a key by what it takes now.
    fn file(&mut self, key: K::Key, turn: Turn) {
        if let Some(before) = turn.before {
            self.ready.of_mut(before).remove(&key);
        }
        match turn.after {
            None => {
                self.release(&key);
                self.release_spared(&key);
            }
            Some(after) => {
                if after != Change::Sweep {
                    self.release_spared(&key);
                }
                let hold = self.holds.get(&key);
                let waits = hold.is_some_and(|hold| hold.wait != Wait::Over)
                    || self.spared.contains_key(&key)
                    || self.contests.waits(&key);
                if (K::CLEARS || after.sets()) && !waits {
                    self.ready.of_mut(after).insert(key);
                }
            }
        }
    }
}
