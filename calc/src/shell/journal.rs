//! What is wrong at present: each line is logged when it comes up and when it is
//! over, not while it lasts. Of very many at once, only some are told.

use std::collections::BTreeSet;

/// How many lines are logged at a time, and shown.
const MAX: usize = 100;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Journal {
    /// What each line begins with in the log.
    prefix: &'static str,
    lines: BTreeSet<String>,
}

impl Journal {
    /// Starts with nothing wrong.
    pub(super) fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            lines: BTreeSet::new(),
        }
    }

    /// Says all that is wrong.
    pub(super) fn set(&mut self, lines: impl IntoIterator<Item = String>) {
        let lines: BTreeSet<String> = lines.into_iter().collect();
        for line in lines.difference(&self.lines).take(MAX) {
            tracing::warn!("{}{line}", self.prefix);
        }
        let more = lines.difference(&self.lines).count().saturating_sub(MAX);
        if more > 0 {
            tracing::warn!("{}and {more} more", self.prefix);
        }
        for line in self.lines.difference(&lines).take(MAX) {
            tracing::info!("{}no longer: {line}", self.prefix);
        }
        self.lines = lines;
    }

    /// Returns what is wrong, in order, and how much more there is.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        let more = self.lines.len().saturating_sub(MAX);
        let more = (more > 0).then(|| format!("and {more} more"));
        self.lines.iter().take(MAX).cloned().chain(more)
    }
}
