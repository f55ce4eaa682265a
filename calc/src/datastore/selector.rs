//! Calico's selectors: conditions on labels, such as `app == 'web' && !has(canary)`.
//!
//! Parses them once and evaluates them often. Takes any text without a panic and with a bounded
//! depth; what the empty selector means is its user's business. Knows no resources.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The longest text that is parsed, in bytes.
const MAX_LENGTH: usize = 64 << 10;
/// How deep parentheses may be nested.
const MAX_DEPTH: usize = 64;

/// The labels of an object.
pub(super) type Labels = BTreeMap<String, String>;

/// A parsed selector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Selector {
    All,
    Has(String),
    /// Holds only where the label is there.
    Label(String, Test),
    Not(Box<Selector>),
    And(Vec<Selector>),
    Or(Vec<Selector>),
}

/// A test of a label's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Test {
    OneOf(BTreeSet<String>),
    Contains(String),
    StartsWith(String),
    EndsWith(String),
}

/// Why a text is not a selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error("at character {at}: {wanted} is wanted here")]
    Wanted { at: usize, wanted: &'static str },
    #[error("is longer than {MAX_LENGTH} bytes; make it shorter")]
    TooLong,
    #[error("has more than {MAX_DEPTH} parentheses within each other; make it flatter")]
    TooDeep,
}

impl Selector {
    /// Reads a selector. One of nothing but blanks selects all.
    ///
    /// # Errors
    /// Where and why the text is none.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        if text.len() > MAX_LENGTH {
            return Err(Error::TooLong);
        }
        let mut parser = Parser {
            text,
            rest: text,
            depth: 0,
        };
        parser.skip_blanks();
        if parser.rest.is_empty() {
            return Ok(Self::All);
        }
        let selector = parser.any_of()?;
        if parser.rest.is_empty() {
            Ok(selector)
        } else {
            Err(parser.wanted("&&, || or the end"))
        }
    }

    /// Whether it selects an object with these labels.
    pub(super) fn matches(&self, labels: &Labels) -> bool {
        match self {
            Self::All => true,
            Self::Has(label) => labels.contains_key(label),
            Self::Label(label, test) => labels.get(label).is_some_and(|value| test.holds(value)),
            Self::Not(inner) => !inner.matches(labels),
            Self::And(parts) => parts.iter().all(|part| part.matches(labels)),
            Self::Or(parts) => parts.iter().any(|part| part.matches(labels)),
        }
    }
}

impl Test {
    fn holds(&self, value: &str) -> bool {
        match self {
            Self::OneOf(values) => values.contains(value),
            Self::Contains(part) => value.contains(part),
            Self::StartsWith(part) => value.starts_with(part),
            Self::EndsWith(part) => value.ends_with(part),
        }
    }
}

/// What is still to be read. Blanks before `rest` have been skipped whenever a rule begins.
struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
    depth: usize,
}

impl Parser<'_> {
    /// Terms between `||`, which binds less than `&&`.
    fn any_of(&mut self) -> Result<Selector, Error> {
        let first = self.all_of()?;
        let mut terms = vec![first];
        while self.take("||") {
            terms.push(self.all_of()?);
        }
        Ok(one_or(terms, Selector::Or))
    }

    /// Terms between `&&`.
    fn all_of(&mut self) -> Result<Selector, Error> {
        let first = self.term()?;
        let mut terms = vec![first];
        while self.take("&&") {
            terms.push(self.term()?);
        }
        Ok(one_or(terms, Selector::And))
    }

    /// A single condition, or several in parentheses; `!` is about no more than that.
    fn term(&mut self) -> Result<Selector, Error> {
        let mut negated = false;
        while self.take("!") {
            negated = !negated;
        }
        let term = self.condition()?;
        Ok(if negated { not(term) } else { term })
    }

    fn condition(&mut self) -> Result<Selector, Error> {
        if self.take("(") {
            self.depth += 1;
            if self.depth > MAX_DEPTH {
                return Err(Error::TooDeep);
            }
            let inner = self.any_of()?;
            self.expect(")")?;
            self.depth -= 1;
            Ok(inner)
        } else if self.take("has(") {
            let label = self.label("the name of a label")?;
            self.expect(")")?;
            Ok(Selector::Has(label))
        } else if self.take("all(") || self.take("global(") {
            self.expect(")")?;
            Ok(Selector::All)
        } else {
            let label = self.label("a condition, such as app == 'web' or has(app),")?;
            self.operator(label)
        }
    }

    fn operator(&mut self, label: String) -> Result<Selector, Error> {
        let (positive, test) = if self.take("==") {
            (true, Test::OneOf(BTreeSet::from([self.value()?])))
        } else if self.take("!=") {
            (false, Test::OneOf(BTreeSet::from([self.value()?])))
        } else if self.take("in") {
            (true, Test::OneOf(self.values()?))
        } else if self.take_both("not", "in") {
            (false, Test::OneOf(self.values()?))
        } else if self.take("contains") {
            (true, Test::Contains(self.value()?))
        } else if self.take_both("starts", "with") {
            (true, Test::StartsWith(self.value()?))
        } else if self.take_both("ends", "with") {
            (true, Test::EndsWith(self.value()?))
        } else {
            return Err(
                self.wanted("one of ==, !=, in, not in, contains, starts with and ends with")
            );
        };
        let selector = Selector::Label(label, test);
        // So a label that is not there is also not equal to any value, nor among any.
        Ok(if positive { selector } else { not(selector) })
    }

    /// The values of a set; a comma after the last one is allowed.
    fn values(&mut self) -> Result<BTreeSet<String>, Error> {
        self.expect("{")?;
        let mut values = BTreeSet::new();
        while !self.take("}") {
            values.insert(self.value()?);
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(values)
    }

    /// A text between quotes of one sort, in which nothing stands for anything else.
    fn value(&mut self) -> Result<String, Error> {
        for quote in ['\'', '"'] {
            if let Some(quoted) = self.rest.strip_prefix(quote) {
                let Some((value, rest)) = quoted.split_once(quote) else {
                    return Err(self.wanted("the quote that ends the value that begins here"));
                };
                self.rest = rest;
                self.skip_blanks();
                return Ok(value.to_owned());
            }
        }
        Err(self.wanted("a value in quotes"))
    }

    fn label(&mut self, wanted: &'static str) -> Result<String, Error> {
        let beyond = |letter: char| {
            !letter.is_ascii_alphanumeric() && !matches!(letter, '_' | '.' | '/' | '-')
        };
        let length = self.rest.find(beyond).unwrap_or(self.rest.len());
        let (label, rest) = self.rest.split_at_checked(length).unwrap_or_default();
        if label.is_empty() {
            return Err(self.wanted(wanted));
        }
        self.rest = rest;
        self.skip_blanks();
        Ok(label.to_owned())
    }

    /// Passes over `word`, and what blanks follow, if it comes next.
    fn take(&mut self, word: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(word) else {
            return false;
        };
        self.rest = rest;
        self.skip_blanks();
        true
    }

    /// Passes over two words, with or without blanks between, if they come next.
    fn take_both(&mut self, first: &str, second: &str) -> bool {
        let before = self.rest;
        let both = self.take(first) && self.take(second);
        if !both {
            self.rest = before;
        }
        both
    }

    fn expect(&mut self, word: &'static str) -> Result<(), Error> {
        if self.take(word) {
            Ok(())
        } else {
            Err(self.wanted(word))
        }
    }

    /// A line's end is no blank.
    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    fn wanted(&self, wanted: &'static str) -> Error {
        let read = self.text.len().saturating_sub(self.rest.len());
        let before = self.text.get(..read).unwrap_or_default();
        let at = before.chars().count().saturating_add(1);
        Error::Wanted { at, wanted }
    }
}

fn not(selector: Selector) -> Selector {
    Selector::Not(Box::new(selector))
}

/// The only one itself, or what `join` makes of several.
fn one_or(mut terms: Vec<Selector>, join: fn(Vec<Selector>) -> Selector) -> Selector {
    match terms.pop() {
        Some(only) if terms.is_empty() => only,
        last => {
            terms.extend(last);
            join(terms)
        }
    }
}
