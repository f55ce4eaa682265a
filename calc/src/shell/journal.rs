//! What is wrong with the datastore at present: each line is logged when it comes up and when it is
//! over, not while it lasts.

use std::collections::BTreeSet;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Journal(BTreeSet<String>);

impl Journal {
    /// Says all that is wrong.
    pub(super) fn set(&mut self, lines: impl IntoIterator<Item = String>) {
        let lines: BTreeSet<String> = lines.into_iter().collect();
        for line in lines.difference(&self.0) {
            tracing::warn!("datastore: {line}");
        }
        for line in self.0.difference(&lines) {
            tracing::info!("datastore: no longer: {line}");
        }
        self.0 = lines;
    }

    /// Returns all that is wrong, in order.
    pub(super) fn lines(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}
