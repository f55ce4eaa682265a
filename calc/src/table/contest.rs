//! Keys that others undo: what this process has made, and what was found otherwise later.
//!
//! The first repair is made at once. Where the same is undone again before it has stood for a while,
//! each repair waits longer than the one before: two programs that fight at full speed would help
//! nobody. Pure; bounded by [`MAX`].

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::{Kind, Table, backoff};
use crate::delta::Actual;

/// How long a repair must stand to count as accepted: twice the longest wait.
const STANDS: Duration = Duration::from_mins(1);
/// How often something must be undone to be told.
const TOLD: u32 = 3;
/// The most keys that are followed; where more are undone at once, it is no fight over one.
pub(super) const MAX: usize = 1000;

/// What the operator is told of a key that others undo again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alarm {
    /// How often it was undone until it was told.
    pub(crate) undone: u32,
    /// How long that took.
    pub(crate) within: Duration,
    /// What was done the last time.
    pub(crate) deed: String,
}

/// A key that was undone.
#[derive(Clone, Debug)]
struct Contest {
    first: Instant,
    undone: u32,
    phase: Phase,
    alarm: Option<Alarm>,
    /// Whether the operator is told: from the end of the wait on, when all of the deed has been seen.
    told: bool,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// It may be made again from then on.
    Waits(Instant),
    /// It may be made again.
    Due,
    /// It was made again then, and stands as far as is known.
    Stands(Instant),
}

impl Phase {
    /// Returns when it ends if nothing happens.
    fn end<K: Kind>(self) -> Option<Instant> {
        match self {
            Self::Waits(until) => Some(until),
            Self::Stands(since) if K::WATCHED => Some(since + STANDS),
            Self::Stands(_) | Self::Due => None,
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Contests<K: Kind> {
    all: BTreeMap<K::Key, Contest>,
    /// The phases that end by themselves.
    timers: BTreeSet<(Instant, K::Key)>,
}

impl<K: Kind> Default for Contests<K> {
    fn default() -> Self {
        Self {
            all: BTreeMap::new(),
            timers: BTreeSet::new(),
        }
    }
}

impl<K: Kind> Contests<K> {
    /// Takes in that others have undone what was made of a key, and how.
    fn undone(&mut self, now: Instant, key: &K::Key, deed: &str) {
        if self.all.len() >= MAX && !self.all.contains_key(key) {
            return;
        }
        let contest = self.all.entry(key.clone()).or_insert(Contest {
            first: now,
            undone: 0,
            phase: Phase::Due,
            alarm: None,
            told: false,
        });
        contest.undone = contest.undone.saturating_add(1);
        if contest.undone == TOLD {
            contest.alarm = Some(Alarm {
                undone: TOLD,
                within: now.saturating_duration_since(contest.first),
                deed: deed.to_owned(),
            });
        }
        // What only a reading finds undone is put right at most as often as all is read.
        let phase = match contest.undone.checked_sub(2).filter(|_| K::WATCHED) {
            None => Phase::Due,
            Some(repairs) => Phase::Waits(now + backoff(repairs)),
        };
        contest.told |= contest.alarm.is_some() && matches!(phase, Phase::Due);
        self.enter(key, phase);
    }

    /// Takes in what else is seen of what was done to a key: a device loses its addresses before it
    /// is gone.
    fn seen(&mut self, key: &K::Key, deed: &str) {
        if let Some(contest) = self.all.get_mut(key).filter(|contest| !contest.told)
            && let Some(alarm) = &mut contest.alarm
        {
            deed.clone_into(&mut alarm.deed);
        }
    }

    /// Returns whether nothing is followed.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Takes in that a key was made as it shall be.
    pub(super) fn made(&mut self, now: Instant, key: &K::Key) {
        self.enter(key, Phase::Stands(now));
    }

    /// Takes in that something else is wanted of a key, which is another matter.
    pub(super) fn forget(&mut self, key: &K::Key) {
        self.enter(key, Phase::Due);
        self.all.remove(key);
    }

    /// Takes in that all has been read, and which keys are as they shall be: what has stood for long
    /// enough is accepted.
    fn read(&mut self, now: Instant, is_right: impl Fn(&K::Key) -> bool) {
        let right = |(key, contest): (&K::Key, &Contest)| {
            is_right(key).then(|| (key.clone(), contest.phase))
        };
        for (key, phase) in self.all.iter().filter_map(right).collect::<Vec<_>>() {
            match phase {
                Phase::Stands(since) if since + STANDS <= now => self.forget(&key),
                Phase::Stands(_) => {}
                // It was put right, if not by this process.
                Phase::Waits(_) | Phase::Due => self.made(now, &key),
            }
        }
    }

    /// Ends the phases that are over by `now`, and returns the keys that may be made again.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<K::Key> {
        let mut due = Vec::new();
        let Self { all, timers } = self;
        while let Some(entry) = timers.first().filter(|(at, _)| *at <= now).cloned() {
            timers.remove(&entry);
            let (_, key) = entry;
            match all.get_mut(&key).filter(|contest| contest.waits()) {
                Some(contest) => {
                    contest.phase = Phase::Due;
                    contest.told = contest.alarm.is_some();
                    due.push(key);
                }
                None => drop(all.remove(&key)),
            }
        }
        due
    }

    /// Returns when the next phase is over.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns whether a key waits to be made again.
    pub(super) fn waits(&self, key: &K::Key) -> bool {
        self.all.get(key).is_some_and(Contest::waits)
    }

    /// Returns how many keys wait to be made again.
    pub(super) fn waiting_len(&self) -> usize {
        self.all.values().filter(|contest| contest.waits()).count()
    }

    /// Returns the keys that the operator is to know of.
    pub(super) fn alarms(&self) -> impl Iterator<Item = (&K::Key, &Alarm)> {
        self.all
            .iter()
            .filter(|(_, contest)| contest.told)
            .filter_map(|(key, contest)| Some((key, contest.alarm.as_ref()?)))
    }

    fn enter(&mut self, key: &K::Key, phase: Phase) {
        let Some(contest) = self.all.get_mut(key) else {
            return;
        };
        if let Some(at) = contest.phase.end::<K>() {
            self.timers.remove(&(at, key.clone()));
        }
        contest.phase = phase;
        if let Some(at) = phase.end::<K>() {
            self.timers.insert((at, key.clone()));
        }
    }
}

impl Contest {
    fn waits(&self) -> bool {
        matches!(self.phase, Phase::Waits(_))
    }
}

impl<K: Kind> Table<K> {
    /// Takes in what is seen of what was done to a key that waits to be made again.
    pub(crate) fn seen(&mut self, key: &K::Key, deed: &str) {
        self.contests.seen(key, deed);
    }

    /// Takes in that others have undone, in the way that `deed` says, what was made of a key.
    pub(crate) fn undone(&mut self, now: Instant, key: &K::Key, deed: &str) {
        let is_there = self.tracker.actual(key) != Actual::Absent;
        if self.tracker.change(key).is_none() && is_there {
            self.contests.undone(now, key, deed);
        } else {
            self.contests.seen(key, deed);
        }
        self.doubt(&Actual::Wrong, |other, _| other == key);
    }

    /// Returns what is wanted of a key that waits to be made again.
    pub(crate) fn contested(&self, key: &K::Key) -> Option<&K::Value> {
        let waits = self.contests.waits(key);
        self.tracker.desired(key).filter(|_| waits)
    }

    /// Takes in that all has been read, and what keys were that have become other than that.
    pub(super) fn compare(&mut self, now: Instant, former: Vec<(K::Key, K::Value)>) {
        let Self {
            tracker, contests, ..
        } = self;
        contests.read(now, |key| tracker.change(key).is_none());
        for (key, was) in former {
            if tracker.desired(&key) == Some(&was) {
                let deed = if tracker.actual(&key) == Actual::Absent {
                    "was removed"
                } else {
                    "was changed"
                };
                contests.undone(now, &key, deed);
            }
        }
    }
}
