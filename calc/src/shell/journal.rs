//! What is wrong at present: each line is logged when it comes up and when it is
//! over, not while it lasts.

use std::collections::BTreeSet;

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
        for line in lines.difference(&self.lines) {
            tracing::warn!("{}{line}", self.prefix);
        }
        for line in self.lines.difference(&lines) {
            tracing::info!("{}no longer: {line}", self.prefix);
        }
        self.lines = lines;
    }

    /// Returns all that is wrong, in order.
    pub(super) fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}
