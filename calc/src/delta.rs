//! What should be, what is, and the difference.
//!
//! It does no I/O: "actual" is whatever its owner last learned. A key whose two sides agree is
//! held once, in `settled`; any other is in `differing`. No key is in both, and one that is absent
//! on both sides is in neither.

use std::{collections::BTreeMap, iter::Peekable};

/// What a key is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Actual<V> {
    /// Not there.
    #[default]
    Absent,
    /// This, and nothing else.
    Is(V),
    /// There, but not as any single value could make it; or perhaps there: it is not known.
    Wrong,
}

impl<V> Actual<V> {
    /// Borrows the value.
    pub(crate) fn as_ref(&self) -> Actual<&V> {
        match self {
            Self::Absent => Actual::Absent,
            Self::Is(value) => Actual::Is(value),
            Self::Wrong => Actual::Wrong,
        }
    }
}

/// What it takes to make the two sides of a key agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    /// It is there and shall have another value.
    Update,
    /// It is absent and shall be there.
    Insert,
    /// It shall be absent, after this process has wanted it.
    Clear,
    /// It shall be absent, and this process never wanted it.
    Sweep,
}

impl Change {
    /// Returns whether something shall be there.
    #[must_use]
    pub(crate) fn sets(self) -> bool {
        match self {
            Self::Update | Self::Insert => true,
            Self::Clear | Self::Sweep => false,
        }
    }
}

/// A key whose sides differ.
#[derive(Clone, Debug)]
struct Sides<V> {
    desired: Option<V>,
    actual: Actual<V>,
    /// Whether it was wanted since it was last absent on both sides.
    claimed: bool,
}

impl<V> Sides<V> {
    fn wanted(value: V) -> Self {
        Self {
            desired: Some(value),
            actual: Actual::Absent,
            claimed: true,
        }
    }

    fn present(value: V) -> Self {
        Self {
            desired: None,
            actual: Actual::Is(value),
            claimed: true,
        }
    }

    fn change(&self) -> Change {
        match (&self.desired, &self.actual) {
            (Some(_), Actual::Absent) => Change::Insert,
            (Some(_), Actual::Is(_) | Actual::Wrong) => Change::Update,
            (None, _) if self.claimed => Change::Clear,
            (None, _) => Change::Sweep,
        }
    }
}

impl<V> Default for Sides<V> {
    fn default() -> Self {
        Self {
            desired: None,
            actual: Actual::Absent,
            claimed: false,
        }
    }
}

/// Tracks where a desired map and an actual map disagree. See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct DeltaTracker<K, V> {
    settled: BTreeMap<K, V>,
    differing: BTreeMap<K, Sides<V>>,
    /// How many of `differing` are wanted.
    unsettled_desired: usize,
    /// How many of `differing` are present.
    unsettled_present: usize,
}

impl<K, V> Default for DeltaTracker<K, V> {
    fn default() -> Self {
        Self {
            settled: BTreeMap::new(),
            differing: BTreeMap::new(),
            unsettled_desired: 0,
            unsettled_present: 0,
        }
    }
}

impl<K: Ord + Clone, V: Eq> DeltaTracker<K, V> {
    /// Says what `key` should be; `None` is absent.
    pub(crate) fn set_desired(&mut self, key: K, desired: Option<V>) {
        if self.desired(&key) != desired.as_ref() {
            let sides = self.take(&key, Sides::present);
            let claimed = sides.claimed || desired.is_some();
            self.put(
                key,
                Sides {
                    desired,
                    claimed,
                    ..sides
                },
            );
        }
    }

    /// Says what `key` was found to be.
    pub(crate) fn set_actual(&mut self, key: K, actual: Actual<V>) {
        let sides = self.take(&key, Sides::wanted);
        self.put(key, Sides { actual, ..sides });
    }

    /// Says what `key` is, as this process has made it.
    pub(crate) fn settle(&mut self, key: K, actual: Actual<V>) {
        let sides = self.take(&key, Sides::wanted);
        self.put(
            key,
            Sides {
                actual,
                claimed: true,
                ..sides
            },
        );
    }

    /// Says what every key is: those that are not listed are absent, and those that are listed
    /// with several values, or with none, are wrong. The order does not matter.
    pub(crate) fn replace_actual(&mut self, mut all: Vec<(K, Option<V>)>) {
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut all = Collapsed(all.into_iter().peekable()).peekable();
        for sides in self.differing.values_mut() {
            sides.actual = Actual::Absent;
        }
        self.unsettled_present = 0;

        // Both are in order, so that one pass finds what is no longer settled.
        let mut found = Vec::new();
        let unsettled: Vec<(K, V)> = self
            .settled
            .extract_if(.., |key, value| {
                while let Some(other) = all.next_if(|(other, _)| other < key) {
                    found.push(other);
                }
                match all.next_if(|(other, _)| other == key) {
                    Some((_, Actual::Is(actual))) if actual == *value => false,
                    Some(differs) => {
                        found.push(differs);
                        true
                    }
                    None => true,
                }
            })
            .collect();
        for (key, value) in unsettled {
            self.put(key, Sides::wanted(value));
        }
        for (key, actual) in found.into_iter().chain(all) {
            self.set_actual(key, actual);
        }
        self.differing
            .retain(|_, sides| sides.desired.is_some() || sides.actual != Actual::Absent);
    }

    /// Returns what `key` should be.
    #[must_use]
    pub(crate) fn desired(&self, key: &K) -> Option<&V> {
        self.settled
            .get(key)
            .or_else(|| self.differing.get(key)?.desired.as_ref())
    }

    /// Returns what it takes for `key` to be as desired, if it is not.
    #[must_use]
    pub(crate) fn change(&self, key: &K) -> Option<Change> {
        Some(self.differing.get(key)?.change())
    }

    /// Returns the keys that are not as desired, in order, with what it takes.
    pub(crate) fn pending(&self) -> impl Iterator<Item = (&K, Change)> {
        self.differing
            .iter()
            .map(|(key, sides)| (key, sides.change()))
    }

    /// Returns all keys in order with what they should be and what they are.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, Option<&V>, Actual<&V>)> {
        let mut settled = self.settled.iter().peekable();
        let mut differing = self.differing.iter().peekable();
        std::iter::from_fn(move || {
            let first = match (settled.peek(), differing.peek()) {
                (Some((a, _)), Some((b, _))) => a < b,
                (first, _) => first.is_some(),
            };
            if first {
                let (key, value) = settled.next()?;
                Some((key, Some(value), Actual::Is(value)))
            } else {
                let (key, sides) = differing.next()?;
                Some((key, sides.desired.as_ref(), sides.actual.as_ref()))
            }
        })
    }

    /// Returns how many keys should be there.
    #[must_use]
    pub(crate) fn desired_len(&self) -> usize {
        self.settled.len() + self.unsettled_desired
    }

    /// Returns how many keys are there.
    #[must_use]
    pub(crate) fn present_len(&self) -> usize {
        self.settled.len() + self.unsettled_present
    }

    /// Removes a key from both maps. A settled one has but one value, for `side`.
    fn take(&mut self, key: &K, side: impl FnOnce(V) -> Sides<V>) -> Sides<V> {
        if let Some(value) = self.settled.remove(key) {
            return side(value);
        }
        let sides = self.differing.remove(key).unwrap_or_default();
        self.unsettled_desired -= usize::from(sides.desired.is_some());
        self.unsettled_present -= usize::from(sides.actual != Actual::Absent);
        sides
    }

    /// Puts a key that is in neither map where it belongs.
    fn put(&mut self, key: K, sides: Sides<V>) {
        match sides {
            Sides {
                desired: Some(desired),
                actual: Actual::Is(actual),
                ..
            } if desired == actual => {
                self.settled.insert(key, desired);
            }
            Sides {
                desired: None,
                actual: Actual::Absent,
                ..
            } => {}
            sides => {
                self.unsettled_desired += usize::from(sides.desired.is_some());
                self.unsettled_present += usize::from(sides.actual != Actual::Absent);
                self.differing.insert(key, sides);
            }
        }
    }
}

/// Makes one of each run of entries with the same key.
struct Collapsed<I: Iterator>(Peekable<I>);

impl<K: Eq, V: Eq, I: Iterator<Item = (K, Option<V>)>> Iterator for Collapsed<I> {
    type Item = (K, Actual<V>);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = self.0.next()?;
        let mut actual = value.map_or(Actual::Wrong, Actual::Is);
        while let Some((_, again)) = self.0.next_if(|(other, _)| *other == key) {
            if actual.as_ref() != again.as_ref().map_or(Actual::Wrong, Actual::Is) {
                actual = Actual::Wrong;
            }
        }
        Some((key, actual))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection::vec, option, prelude::*};

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Desired(u8, Option<u8>),
        Actual(u8, Actual<u8>),
        Settle(u8, Actual<u8>),
        Replace(Vec<(u8, Option<u8>)>),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = 0..6_u8;
        let value = 0..3_u8;
        let actual = prop_oneof![
            Just(Actual::Absent),
            Just(Actual::Wrong),
            value.clone().prop_map(Actual::Is)
        ];
        prop_oneof![
            (key.clone(), option::of(value.clone())).prop_map(|(k, v)| Step::Desired(k, v)),
            (key.clone(), actual.clone()).prop_map(|(k, v)| Step::Actual(k, v)),
            (key.clone(), actual).prop_map(|(k, v)| Step::Settle(k, v)),
            vec((key, option::of(value)), 0..8).prop_map(Step::Replace),
        ]
    }

    /// Two plain maps, and what was claimed.
    #[derive(Debug, Default)]
    struct Model {
        desired: BTreeMap<u8, u8>,
        actual: BTreeMap<u8, Actual<u8>>,
        claimed: BTreeSet<u8>,
    }

    impl Model {
        fn learn(&mut self, key: u8, value: Actual<u8>) {
            match value {
                Actual::Absent => self.actual.remove(&key),
                Actual::Is(_) | Actual::Wrong => self.actual.insert(key, value),
            };
        }

        fn take(&mut self, step: Step) {
            match step {
                Step::Desired(key, Some(value)) => {
                    self.desired.insert(key, value);
                    self.claimed.insert(key);
                }
                Step::Desired(key, None) => {
                    self.desired.remove(&key);
                }
                Step::Actual(key, value) => self.learn(key, value),
                Step::Settle(key, value) => {
                    self.learn(key, value);
                    self.claimed.insert(key);
                }
                Step::Replace(all) => {
                    self.actual.clear();
                    for (key, value) in all {
                        let value = value.map_or(Actual::Wrong, Actual::Is);
                        let seen = self.actual.get(&key).is_some_and(|seen| *seen != value);
                        self.actual
                            .insert(key, if seen { Actual::Wrong } else { value });
                    }
                }
            }
            let there = |key: &u8| self.desired.contains_key(key) || self.actual.contains_key(key);
            self.claimed.retain(there);
        }

        fn rows(&self) -> Vec<(u8, Option<u8>, Actual<u8>)> {
            let keys: BTreeSet<u8> = self
                .desired
                .keys()
                .chain(self.actual.keys())
                .copied()
                .collect();
            keys.into_iter()
                .map(|k| {
                    let actual = self.actual.get(&k).copied().unwrap_or_default();
                    (k, self.desired.get(&k).copied(), actual)
                })
                .collect()
        }

        fn pending(&self) -> Vec<(u8, Change)> {
            self.rows()
                .into_iter()
                .filter_map(|(key, desired, actual)| {
                    let change = match (desired, actual) {
                        (Some(desired), Actual::Is(actual)) if desired == actual => return None,
                        (Some(_), Actual::Absent) => Change::Insert,
                        (Some(_), _) => Change::Update,
                        (None, _) if self.claimed.contains(&key) => Change::Clear,
                        (None, _) => Change::Sweep,
                    };
                    Some((key, change))
                })
                .collect()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Two plain maps and a full comparison are the specification.
        #[test]
        fn agrees_with_two_maps(steps in vec(step(), 0..60)) {
            let mut tracker = DeltaTracker::default();
            let mut model = Model::default();
            for step in steps {
                match step.clone() {
                    Step::Desired(key, value) => tracker.set_desired(key, value),
                    Step::Actual(key, value) => tracker.set_actual(key, value),
                    Step::Settle(key, value) => tracker.settle(key, value),
                    Step::Replace(all) => tracker.replace_actual(all),
                }
                model.take(step);
                let pending: Vec<_> = tracker.pending().map(|(k, change)| (*k, change)).collect();
                prop_assert_eq!(pending, model.pending());
                let rows: Vec<_> = tracker
                    .iter()
                    .map(|(key, desired, actual)| {
                        let actual = match actual {
                            Actual::Absent => Actual::Absent,
                            Actual::Is(value) => Actual::Is(*value),
                            Actual::Wrong => Actual::Wrong,
                        };
                        (*key, desired.copied(), actual)
                    })
                    .collect();
                prop_assert_eq!(rows, model.rows());
                prop_assert_eq!(tracker.desired_len(), model.desired.len());
                prop_assert_eq!(tracker.present_len(), model.actual.len());
            }
        }
    }
}
