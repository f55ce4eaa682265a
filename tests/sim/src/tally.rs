//! How much of everything has happened. A run that does too little proves nothing.

use std::{collections::BTreeMap, fmt};

/// Counts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    /// Counts one more.
    pub(super) fn add(&mut self, what: &'static str) {
        self.add_many(what, 1);
    }

    pub(super) fn add_many(&mut self, what: &'static str, many: usize) {
        if many > 0 {
            *self.0.entry(what).or_default() += u64::try_from(many).unwrap_or(u64::MAX);
        }
    }

    /// Adds all of another.
    pub fn merge(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }

    /// Returns how often it happened.
    #[must_use]
    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in &self.0 {
            writeln!(f, "{count:>10} {what}")?;
        }
        Ok(())
    }
}
