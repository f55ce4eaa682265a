//! A document as a tree that knows the line of each value.
//!
//! Owns the parser's options and limits. Never knows what a document means.

mod decode;

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};
use serde_saphyr::{Error, Spanned, budget::BudgetBreach};

/// What is wrong at one place of a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub(super) struct Fault {
    /// Counted from 1; 0 while it is not known.
    pub(super) line: u64,
    /// The path of the field, such as `spec.attributes[3].handle_id`; empty for the whole.
    pub(super) field: String,
    /// What is wrong with it.
    pub(super) reason: String,
}

impl Fault {
    fn below(mut self, parent: &str, line: u64) -> Self {
        let separator = if self.field.is_empty() || self.field.starts_with('[') {
            ""
        } else {
            "."
        };
        self.field = format!("{parent}{separator}{}", self.field);
        self.at(line)
    }

    fn at(mut self, line: u64) -> Self {
        if self.line == 0 {
            self.line = line;
        }
        self
    }
}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self {
            line: 0,
            field: String::new(),
            reason: reason.to_string(),
        }
    }
}

/// A value and where it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tree {
    line: u64,
    value: Value,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Tree>),
    Map(Vec<(String, Tree)>),
}

impl Tree {
    /// Parses one document; `line` is that of its first byte. None if it holds nothing.
    ///
    /// What its aliases repeat may be no more than what might have been written in their place, so
    /// that a document costs its size, whatever is in it.
    pub(super) fn parse(text: &str, line: u64) -> Result<Option<Self>, Fault> {
        // The shortest event is a character and a comma; an escape of two becomes three bytes.
        let (most_events, most_bytes) = (text.len() / 2, text.len().saturating_mul(2));
        let options = serde_saphyr::options! {
            with_snippet: false,
            emit_comments: false,
            strict_booleans: true,
            leading_zero_numbers_as_strings: true,
            underscored_numbers_as_strings: true,
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: most_events },
            budget: serde_saphyr::budget! {
                // A list of all blocks of a large cluster is one document.
                max_nodes: 20_000_000,
                max_events: 40_000_000,
                max_total_scalar_bytes: most_bytes,
                max_recorded_anchor_events: most_events,
                max_recorded_anchor_bytes: most_bytes,
            },
        };
        let lines_before = line.saturating_sub(1);
        match serde_saphyr::from_str_with_options::<Self>(text, options) {
            Ok(tree) if tree.value == Value::Null => Ok(None),
            Ok(mut tree) => {
                tree.move_down(lines_before);
                Ok(Some(tree))
            }
            Err(error) => {
                let at = error.location().map_or(1, |location| location.line());
                if repeats_too_much(&error) {
                    let reason = "its aliases repeat more than the document is long; write out what \
                                  they stand for";
                    return Err(Fault {
                        line: at.saturating_add(lines_before),
                        field: String::new(),
                        reason: reason.to_owned(),
                    });
                }
                let whole = error.to_string();
                // The line in the library's message counts from the start of the document.
                let reason = whole.split(" at line ").next().unwrap_or_default();
                let hint = if reason.contains("mapping values") {
                    " (a value with a colon at its end or a blank after one must be quoted)"
                } else {
                    ""
                };
                Err(Fault {
                    line: at.saturating_add(lines_before),
                    field: String::new(),
                    reason: format!("{reason}{hint}"),
                })
            }
        }
    }

    fn move_down(&mut self, lines: u64) {
        self.line = self.line.saturating_add(lines);
        match &mut self.value {
            Value::List(items) => items.iter_mut().for_each(|item| item.move_down(lines)),
            Value::Map(fields) => fields
                .iter_mut()
                .for_each(|(_, field)| field.move_down(lines)),
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_) => {}
        }
    }

    /// The line that it begins on.
    pub(super) fn line(&self) -> u64 {
        self.line
    }

    /// The line of the field at `path`, or of the innermost one on the way that there is.
    pub(super) fn line_of(&self, path: &str) -> u64 {
        let path = path.strip_prefix('.').unwrap_or(path);
        let rest_after = |step: &str| {
            path.strip_prefix(step)
                .filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let next = match &self.value {
            Value::Map(fields) => fields
                .iter()
                .find_map(|(key, field)| Some((field, rest_after(key)?))),
            Value::List(items) => path
                .strip_prefix('[')
                .and_then(|path| path.split_once(']'))
                .and_then(|(place, rest)| Some((items.get(place.parse::<usize>().ok()?)?, rest))),
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_) => None,
        };
        next.map_or(self.line, |(child, rest)| child.line_of(rest))
    }

    /// The elements of the list in the field `name`, if it is one.
    pub(super) fn into_items(self, name: &str) -> Option<Vec<Self>> {
        let Value::Map(fields) = self.value else {
            return None;
        };
        let (_, field) = fields.into_iter().find(|(key, _)| key == name)?;
        if let Value::List(items) = field.value {
            Some(items)
        } else {
            None
        }
    }

    /// Reads it as a `T`.
    pub(super) fn decode<'de, T: Deserialize<'de>>(&'de self) -> Result<T, Fault> {
        T::deserialize(self).map_err(|fault| fault.at(self.line))
    }
}

/// Whether it is aliases that make a document too large.
fn repeats_too_much(error: &Error) -> bool {
    if let Error::AliasError { error, .. } = error {
        return repeats_too_much(error);
    }
    matches!(
        error,
        Error::AliasReplayLimitExceeded { .. }
            | Error::AliasReplayStackDepthExceeded { .. }
            | Error::Budget {
                breach: BudgetBreach::ScalarBytes { .. }
                    | BudgetBreach::RecordedAnchorEvents { .. }
                    | BudgetBreach::RecordedAnchorBytes { .. }
                    | BudgetBreach::AliasAnchorRatio { .. }
                    | BudgetBreach::Aliases { .. }
                    | BudgetBreach::Anchors { .. },
                ..
            }
    )
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self {
            line: spanned.referenced.line(),
            value: spanned.value,
        })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::Text(value))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = access.next_entry()? {
            fields.push(field);
        }
        Ok(Value::Map(fields))
    }
}
