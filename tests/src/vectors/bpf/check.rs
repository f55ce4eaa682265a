//! What is wrong with what a writer did. Pure.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use serde::Deserialize;

use super::{
    bytes,
    kernel::{Change, Done, Outcome, Write},
};
use crate::vectors::text::hex;

/// The writes that a vector wants, each list by key bytes.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct WantWrites {
    set: Vec<String>,
    del: Vec<String>,
    failed_set: Vec<String>,
    failed_del: Vec<String>,
    /// Whether the map is read.
    pub(super) resynced: bool,
}

impl WantWrites {
    /// Checks all but the order. A delete that finds nothing is in no list.
    pub(super) fn check(&self, done: &Done) -> Result<(), String> {
        let (mut set, mut del) = (Vec::new(), Vec::new());
        let (mut failed_set, mut failed_del) = (Vec::new(), Vec::new());
        for write in &done.writes {
            let key = hex(&bytes::key(&write.key));
            match (&write.bytes, write.outcome) {
                (Some(bytes), Outcome::Made) => set.push(format!("{key} {}", hex(bytes))),
                (Some(_), Outcome::Failed) => failed_set.push(key),
                (None, Outcome::Made) => del.push(key),
                (None, Outcome::Failed) => failed_del.push(key),
                (_, Outcome::Missing) => {}
            }
        }
        for (what, mut actual, want) in [
            ("writes", set, &self.set),
            ("deletes", del, &self.del),
            ("failed writes", failed_set, &self.failed_set),
            ("failed deletes", failed_del, &self.failed_del),
        ] {
            actual.sort();
            if actual != *want {
                return Err(format!("{what} are {actual:?}, should be {want:?}"));
            }
        }
        let (reads, want) = (done.reads, usize::from(self.resynced));
        if reads != want {
            return Err(format!("the map is read {reads} times, should be {want}"));
        }
        Ok(())
    }
}

/// Checks that the vector has the map read when there is reason to doubt it, and only then (V22).
pub(super) fn reading(resynced: bool, doubtful: bool) -> Result<(), String> {
    if resynced == doubtful {
        Ok(())
    } else {
        Err(format!(
            "the vector has resynced: {resynced}, although a reason for it is {doubtful}"
        ))
    }
}

pub(super) fn map(actual: &[String], want: &[String]) -> Result<(), String> {
    let (is, should): (BTreeSet<_>, BTreeSet<_>) = (actual.iter().collect(), want.iter().collect());
    if actual == want {
        return Ok(());
    }
    let (more, less): (Vec<_>, Vec<_>) = (
        is.difference(&should).collect(),
        should.difference(&is).collect(),
    );
    Err(format!("the map has {more:?} and lacks {less:?}"))
}

/// Checks that updates come first, and inserts before deletes unless there is no room (V23).
pub(super) fn groups(done: &Done) -> Result<(), String> {
    let rank = |write: &Write| match (write.change, done.crowded) {
        (Change::Update, _) => 0,
        (Change::Insert, false) | (Change::Delete, true) => 1,
        (Change::Delete, false) | (Change::Insert, true) => 2,
    };
    if done.writes.is_sorted_by_key(rank) {
        Ok(())
    } else {
        Err(format!(
            "the groups are not in order: {:?}",
            lines(&done.writes)
        ))
    }
}

/// Checks the order of writes; returns whether it differs within a group.
pub(super) fn order(done: &Done, want: &[String]) -> Result<bool, String> {
    let actual = lines(&done.writes);
    if actual == want {
        return Ok(false);
    }
    let groups = done.writes.chunk_by(|a, b| a.change == b.change);
    let sorted: Vec<String> = groups
        .flat_map(|group| {
            let mut group = lines(group);
            group.sort();
            group
        })
        .collect();
    if sorted == want {
        Ok(true)
    } else {
        Err(format!("the order is {actual:?}, should be {want:?}"))
    }
}

fn lines(writes: &[Write]) -> Vec<String> {
    let line = |write: &Write| {
        let verb = if write.bytes.is_some() { "set" } else { "del" };
        format!("{verb} {}", hex(&bytes::key(&write.key)))
    };
    writes.iter().map(line).collect()
}

/// What a writer did that was not asked to read.
pub(super) struct Unasked<'a> {
    pub(super) first: bool,
    /// What is wanted otherwise since the last step.
    pub(super) changed: &'a BTreeSet<IpNet>,
    /// What failed in the last step.
    pub(super) failed: &'a BTreeSet<IpNet>,
    /// What others have changed.
    pub(super) disturbed: &'a BTreeSet<IpNet>,
    pub(super) done: &'a Done,
    pub(super) map: &'a BTreeMap<IpNet, Vec<u8>>,
    pub(super) desired: &'a BTreeMap<IpNet, Vec<u8>>,
}

impl Unasked<'_> {
    /// Checks that it reads once at the start, tries what has changed or failed and nothing else,
    /// and that all is right but what others changed or the kernel refuses.
    pub(super) fn check(&self) -> Result<(), String> {
        let writes = &self.done.writes;
        if self.done.reads != usize::from(self.first) {
            return Err(format!("the map is read {} times", self.done.reads));
        }
        let is_due = |write: &&Write| {
            let key = &write.key;
            let right = write.needless && !self.disturbed.contains(key);
            !right && (self.first || self.changed.contains(key) || self.failed.contains(key))
        };
        if let Some(write) = writes.iter().find(|write| !is_due(write)) {
            return Err(format!("{write:?} without need"));
        }
        let refused: BTreeSet<_> = writes
            .iter()
            .filter(|write| write.outcome == Outcome::Failed)
            .map(|write| write.key)
            .collect();
        let keys: BTreeSet<_> = self.map.keys().chain(self.desired.keys()).collect();
        for key in keys {
            let (is, should) = (self.map.get(key), self.desired.get(key));
            if is != should && !self.disturbed.contains(key) && !refused.contains(key) {
                return Err(format!("{key} is {is:?}, should be {should:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn write(key: &str, change: Change, outcome: Outcome) -> Write {
        Write {
            key: net(key),
            change,
            bytes: (change != Change::Delete).then(|| vec![1; 8]),
            outcome,
            needless: false,
        }
    }

    fn done(writes: Vec<Write>) -> Done {
        Done {
            writes,
            ..Done::default()
        }
    }

    #[test]
    fn groups_that_are_not_in_order_are_refused() {
        use Change::{Delete, Insert, Update};
        for (changes, crowded, right) in [
            ([Update, Insert, Delete], false, true),
            ([Update, Delete, Insert], true, true),
            ([Update, Delete, Insert], false, false),
            ([Update, Insert, Delete], true, false),
            ([Insert, Update, Delete], false, false),
            ([Delete, Update, Insert], true, false),
        ] {
            let mut done = done(Vec::from(
                changes.map(|change| write("10.0.0.1/32", change, Outcome::Made)),
            ));
            done.crowded = crowded;
            assert_eq!(groups(&done).is_ok(), right, "{changes:?} {crowded}");
        }
    }

    #[test]
    fn another_order_is_accepted_within_a_group_alone() {
        use Change::{Delete, Insert};
        let made = |key, change| write(key, change, Outcome::Made);
        let done = done(vec![
            made("10.0.0.0/24", Insert),
            made("10.1.0.0/16", Insert),
            made("10.2.0.0/16", Delete),
        ]);
        let [narrow, wide, gone] = [
            "set 180000000a000000",
            "set 100000000a010000",
            "del 100000000a020000",
        ];
        for (want, verdict) in [
            (vec![narrow, wide, gone], Some(false)),
            (vec![wide, narrow, gone], Some(true)),
            (vec![wide, gone, narrow], None),
            (vec![gone, wide, narrow], None),
            (vec![wide, narrow], None),
            (vec![wide, narrow, gone, gone], None),
        ] {
            let want: Vec<_> = want.into_iter().map(str::to_owned).collect();
            assert_eq!(order(&done, &want).ok(), verdict, "{want:?}");
        }
    }

    #[test]
    fn a_reading_without_reason_and_a_missing_one_are_refused() {
        for (resynced, doubtful) in [(true, true), (false, false), (true, false), (false, true)] {
            assert_eq!(reading(resynced, doubtful).is_ok(), resynced == doubtful);
        }
    }

    /// Three keys are wanted; the first failed in the step before, the second has changed since, and
    /// the third was changed by others. Each case differs from the right one in one thing.
    #[test]
    fn a_writer_that_is_not_asked_to_read_must_do_all_else() {
        let [failed, changed, disturbed] = ["10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32"];
        let set = |key, outcome| write(key, Change::Insert, outcome);
        let made = |key| set(key, Outcome::Made);
        let both = || vec![made(failed), made(changed)];
        let cases = [
            ("all is done", both(), 0, vec![failed, changed], true),
            (
                "one fails again",
                vec![set(failed, Outcome::Failed), made(changed)],
                0,
                vec![changed],
                true,
            ),
            ("it reads", both(), 1, vec![failed, changed], false),
            (
                "it writes what was there already",
                vec![
                    made(failed),
                    Write {
                        needless: true,
                        ..made(changed)
                    },
                ],
                0,
                vec![failed, changed],
                false,
            ),
            (
                "what failed is not tried",
                vec![made(changed)],
                0,
                vec![changed],
                false,
            ),
            (
                "a failure stops the rest",
                vec![set(failed, Outcome::Failed)],
                0,
                vec![],
                false,
            ),
            (
                "it writes what is neither due nor wrong to its knowledge",
                [both(), vec![made(disturbed)]].concat(),
                0,
                vec![failed, changed, disturbed],
                false,
            ),
            (
                "something stays that nobody wants",
                both(),
                0,
                vec![failed, changed, "10.0.0.4/32"],
                false,
            ),
        ];
        for (case, writes, reads, present, right) in cases {
            let mut done = done(writes);
            done.reads = reads;
            let set = |key: &str| BTreeSet::from([net(key)]);
            let map = |keys: &[&str]| keys.iter().map(|key| (net(key), vec![1; 8])).collect();
            let checked = Unasked {
                first: false,
                changed: &set(changed),
                failed: &set(failed),
                disturbed: &set(disturbed),
                done: &done,
                map: &map(&present),
                desired: &map(&[failed, changed, disturbed]),
            }
            .check();
            assert_eq!(checked.is_ok(), right, "{case}: {checked:?}");
        }
    }
}
