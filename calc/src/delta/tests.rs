//! Two plain maps and a full comparison are the specification.

use std::collections::BTreeSet;

use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
};

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Desired(u8, Option<u8>),
    Actual(u8, Actual<u8>),
    Settle(u8, Actual<u8>),
    SettleAll(BTreeMap<u8, Option<u8>>),
    /// Those of these that are absent on both sides.
    New(BTreeMap<u8, u8>),
    /// All between these two that should be there and are absent, if they are so many.
    SettleWanted(u8, u8, usize),
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
        btree_map(key.clone(), option::of(value.clone()), 0..6).prop_map(Step::SettleAll),
        btree_map(key.clone(), value.clone(), 0..6).prop_map(Step::New),
        (0..3_u8, 2..6_u8, 0..4_usize).prop_map(|(a, b, count)| Step::SettleWanted(a, b, count)),
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
                if !self.actual.contains_key(&key) || matches!(value, Actual::Is(_)) {
                    self.claimed.insert(key);
                }
                self.learn(key, value);
            }
            Step::SettleAll(all) => {
                for (key, value) in all {
                    if self.desired.get(&key) == value.as_ref() {
                        self.learn(key, value.map_or(Actual::Absent, Actual::Is));
                    }
                }
            }
            Step::New(all) => {
                for (key, value) in all {
                    if !self.actual.contains_key(&key) && !self.desired.contains_key(&key) {
                        self.take(Step::Desired(key, Some(value)));
                    }
                }
            }
            Step::SettleWanted(first, last, count) => {
                let keys = self.wanted_and_absent(first..=last);
                if keys.len() == count {
                    for key in keys {
                        self.learn(key, Actual::Is(self.desired[&key]));
                    }
                }
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

    fn wanted_and_absent(&self, keys: RangeInclusive<u8>) -> Vec<u8> {
        let wanted = self.desired.range(keys).map(|(key, _)| *key);
        wanted
            .filter(|key| !self.actual.contains_key(key))
            .collect()
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
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Two plain maps and a full comparison are the specification.
    #[test]
    fn agrees_with_two_maps(steps in vec(step(), 0..60)) {
        let mut tracker = DeltaTracker::default();
        let mut model = Model::default();
        for step in steps {
            let mut former = BTreeMap::new();
            let changes: Vec<_> = (0..6).map(|key| tracker.change(&key)).collect();
            let turned = match step.clone() {
                Step::Desired(key, value) => {
                    let known = tracker.desired(&key) == value.as_ref();
                    let turn = tracker.set_desired(key, value);
                    prop_assert_eq!(turn.is_none(), known);
                    turn.map(|turn| (key, turn))
                }
                Step::Actual(key, value) => Some((key, tracker.set_actual(key, value))),
                Step::Settle(key, value) => Some((key, tracker.settle(key, value))),
                Step::SettleAll(all) => {
                    let others = tracker.settle_all(all.clone().into_iter().collect());
                    let expected = all.into_iter().filter(|(key, value)| {
                        model.desired.get(key) != value.as_ref()
                            // Nothing is known of it, and nothing is to be taken in.
                            || value.is_none() && !model.actual.contains_key(key)
                    });
                    prop_assert_eq!(others, expected.collect::<Vec<_>>());
                    None
                }
                Step::New(all) => {
                    let is_new = |key: &u8| {
                        !model.actual.contains_key(key) && !model.desired.contains_key(key)
                    };
                    let mut new = Fresh::default();
                    for (key, value) in all.into_iter().filter(|(key, _)| is_new(key)) {
                        new.push(key, value);
                    }
                    tracker.set_new(new);
                    None
                }
                Step::SettleWanted(first, last, count) => {
                    let is_so = model.wanted_and_absent(first..=last).len() == count;
                    prop_assert_eq!(tracker.settle_wanted(first..=last, count), is_so);
                    None
                }
                Step::Replace(all) => {
                    tracker.replace_actual(all, |key, was| former.extend([(*key, was)]));
                    None
                }
            };
            if let Some((key, turn)) = turned {
                let before = changes[usize::from(key)];
                prop_assert_eq!(turn, Turn { before, after: tracker.change(&key) });
            }
            let before = model.actual.clone();
            model.take(step.clone());
            if let Step::Replace(_) = step {
                let was = |key| before.get(&key).copied().unwrap_or_default();
                let is = |key| model.actual.get(&key).copied().unwrap_or_default();
                let changed = (0..6).filter(|key| was(*key) != is(*key));
                let changed: BTreeMap<_, _> = changed.map(|key| (key, was(key))).collect();
                prop_assert_eq!(former, changed);
            }
            for key in 0..6 {
                let actual = model.actual.get(&key);
                prop_assert_eq!(tracker.actual(&key), actual.map_or(Actual::Absent, Actual::as_ref));
                let rows = tracker.after(Some(&key)).map(|(k, ..)| *k);
                prop_assert!(rows.eq(model.rows().iter().map(|(k, ..)| *k).filter(|k| *k > key)));
            }
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
            let is_wrong = |actual: &Actual<u8>| *actual == Actual::Wrong;
            prop_assert_eq!(tracker.is_known(), !model.actual.values().any(is_wrong));
            prop_assert_eq!(tracker.desired_len(), model.desired.len());
            prop_assert_eq!(tracker.present_len(), model.actual.len());
        }
    }
}
