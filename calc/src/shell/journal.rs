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
    /// How many lines are logged at a time, of those that come up and of those that are over.
    few: usize,
    lines: BTreeSet<String>,
    /// How much there is besides.
    more: Option<String>,
}

/// One line of the log.
#[derive(Debug, PartialEq, Eq)]
enum Entry {
    Wrong(String),
    Over(String),
}

impl Journal {
    /// Starts with nothing wrong.
    pub(super) fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            few: MAX,
            lines: BTreeSet::new(),
            more: None,
        }
    }

    /// Has only so many lines logged at a time: they change by the thousand.
    pub(super) fn logging(self, few: usize) -> Self {
        Self { few, ..self }
    }

    /// Says all that is wrong.
    pub(super) fn set(&mut self, lines: impl IntoIterator<Item = String>) {
        self.set_with(lines, None);
    }

    /// The same, where there is more than these lines say: `more` is logged when it comes up and when it is
    /// over, and not when it only says another number.
    pub(super) fn set_with(
        &mut self,
        lines: impl IntoIterator<Item = String>,
        more: Option<String>,
    ) {
        for entry in self.replace(lines.into_iter().collect(), more) {
            match entry {
                Entry::Wrong(line) => tracing::warn!("{}{line}", self.prefix),
                Entry::Over(line) => tracing::info!("{}no longer: {line}", self.prefix),
            }
        }
    }

    /// Takes over what is wrong and returns what to log of it.
    fn replace(&mut self, lines: BTreeSet<String>, more: Option<String>) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut tell =
            |of: &BTreeSet<String>, without: &BTreeSet<String>, entry: fn(_) -> Entry| {
                let changed = || of.difference(without).cloned();
                entries.extend(changed().take(self.few).map(entry));
                let rest = changed().count().saturating_sub(self.few);
                entries.extend((rest > 0).then(|| entry(format!("and {rest} more"))));
            };
        tell(&lines, &self.lines, Entry::Wrong);
        tell(&self.lines, &lines, Entry::Over);
        entries.extend(match (&self.more, &more) {
            (None, Some(more)) => Some(Entry::Wrong(more.clone())),
            (Some(more), None) => Some(Entry::Over(more.clone())),
            (None, None) | (Some(_), Some(_)) => None,
        });
        (self.lines, self.more) = (lines, more);
        entries
    }

    /// Returns how many lines there are.
    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Returns what is wrong, in order, and how much more there is.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        let more = self.lines.len().saturating_sub(MAX);
        let more = (more > 0).then(|| format!("and {more} more"));
        let lines = self.lines.iter().take(MAX).cloned();
        lines.chain(more).chain(self.more.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(numbers: std::ops::Range<u32>) -> BTreeSet<String> {
        numbers.map(|number| format!("line {number:04}")).collect()
    }

    fn wrong(text: &str) -> Entry {
        Entry::Wrong(text.to_owned())
    }

    fn over(text: &str) -> Entry {
        Entry::Over(text.to_owned())
    }

    #[test]
    fn of_thousands_that_come_and_go_a_few_are_logged_with_the_number_of_the_rest() {
        let mut journal = Journal::new("").logging(2);
        let first = journal.replace(lines(0..1000), None);
        let told = ["line 0000", "line 0001", "and 998 more"].map(wrong);
        assert_eq!(first, told);
        assert_eq!(journal.replace(lines(0..1000), None), []);
        assert_eq!(journal.replace(lines(0..1001), None), [wrong("line 1000")]);
        let last = journal.replace(lines(500..1001), None);
        let told = ["line 0000", "line 0001", "and 498 more"].map(over);
        assert_eq!(last, told);
    }

    #[test]
    fn how_many_more_there_are_is_logged_once_and_shown_as_it_is() {
        let mut journal = Journal::new("");
        let more = |number| Some(format!("{number} more"));
        assert_eq!(journal.replace(lines(0..0), more(3)), [wrong("3 more")]);
        assert_eq!(journal.replace(lines(0..0), more(4)), []);
        assert_eq!(journal.lines().collect::<Vec<_>>(), ["4 more"]);
        assert_eq!(journal.replace(lines(0..0), None), [over("4 more")]);
        assert_eq!(journal.lines().count(), 0);
    }
}
