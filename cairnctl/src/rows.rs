//! Tables as rows of cells: which columns a kind has, and how what is compares to what should be.

mod cells;
mod diff;
#[cfg(test)]
mod tests;

use ipc_proto::view::{Kind, Reason, Row};
use serde_json::{Map, Value, json};

use self::cells::Cells;
pub(crate) use self::diff::{KINDS, diff};
use crate::table;

/// A row that can be shown.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    /// The key's cells, then those of the value: what is, or else what should be.
    cells: Vec<Value>,
    /// Whether there is anything under the key.
    present: bool,
    /// How it stands, in a word.
    state: &'static str,
    /// What is wrong, if anything.
    why: Option<String>,
}

impl Line {
    fn text(&self) -> Vec<String> {
        let state = match &self.why {
            None => self.state.to_owned(),
            Some(why) => format!("{}: {why}", self.state),
        };
        let cells = self.cells.iter().map(table::text);
        cells.chain([state]).collect()
    }
}

/// Renders for a reader; several tables have titles.
pub(crate) fn text(listings: &[(Kind, Vec<Row>)]) -> String {
    let listing = |(kind, rows): &(Kind, Vec<Row>)| {
        let title = match listings.len() {
            0 | 1 => String::new(),
            _ => format!("{}:\n", cells::title(*kind)),
        };
        let header = cells::columns(*kind).iter().chain(&["state"]);
        let header = header.map(|name| name.to_uppercase()).collect();
        let table: Vec<Vec<String>> = [header]
            .into_iter()
            .chain(lines(*kind, rows).map(|line| line.text()))
            .collect();
        title + &table::align(&table)
    };
    let listings: Vec<_> = listings.iter().map(listing).collect();
    listings.join("\n")
}

/// Renders for a program: one flat object for each row.
pub(crate) fn json(listings: &[(Kind, Vec<Row>)]) -> Value {
    let mut all = Vec::new();
    for (kind, rows) in listings {
        for line in lines(*kind, rows) {
            let names = cells::columns(*kind).iter().map(|name| (*name).to_owned());
            let mut object: Map<_, _> = names.zip(line.cells).collect();
            object.insert("type".to_owned(), kind.name().into());
            object.insert("present".to_owned(), line.present.into());
            object.insert("state".to_owned(), line.state.into());
            object.insert("why".to_owned(), json!(line.why));
            all.push(object.into());
        }
    }
    Value::Array(all)
}

fn lines(kind: Kind, rows: &[Row]) -> impl Iterator<Item = Line> {
    rows.iter().filter_map(move |row| line(kind, row))
}

/// Returns the row as a line, unless there is nothing and should be nothing.
fn line(kind: Kind, row: &Row) -> Option<Line> {
    let actual = row.actual.as_ref().and_then(cells::as_op);
    let wanted = row.desired.as_ref().and_then(cells::cells);
    let found = actual.as_ref().and_then(cells::cells);
    let Cells { key, value } = found.as_ref().or(wanted.as_ref())?;
    let wanted_value = wanted.as_ref().and_then(|wanted| wanted.value.as_ref());
    let difference = match (wanted_value, &found) {
        (None, None) => return None,
        (Some(_), None) => Some("to be added".to_owned()),
        (None, Some(_)) => Some("to be removed".to_owned()),
        (Some(wanted), Some(found)) if found.value.as_ref() == Some(wanted) => None,
        (Some(wanted), Some(_)) => {
            let wanted: Vec<_> = wanted.iter().map(table::text).collect();
            Some(format!("to become {}", wanted.join(" ")))
        }
    };
    let why = row.reason.as_ref().map(|reason| {
        let parts = [difference, detail(reason)];
        parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
    });
    let mut cells = key.clone();
    cells.extend(value.iter().flatten().cloned());
    cells.resize(cells::columns(kind).len(), Value::Null);
    Some(Line {
        cells,
        present: found.is_some(),
        state: state(row.reason.as_ref()),
        why,
    })
}

/// Returns in a word how a key stands.
const fn state(reason: Option<&Reason>) -> &'static str {
    match reason {
        None => "ok",
        Some(Reason::Pending) => "pending",
        Some(Reason::Failed(_)) => "failing",
        Some(Reason::Contested) => "contested",
        Some(Reason::Grace) => "in grace",
        Some(Reason::Flows | Reason::LinkDown) => "waiting",
        Some(Reason::Unread) => "kept",
        Some(Reason::Foreign(_)) => "foreign",
    }
}

/// Returns what else there is to say about it.
fn detail(reason: &Reason) -> Option<String> {
    match reason {
        Reason::Pending => None,
        Reason::Failed(error) => Some(error.to_string()),
        Reason::Contested => Some("others undo it again and again, so it waits".to_owned()),
        Reason::LinkDown => Some("link is down".to_owned()),
        Reason::Grace => Some("its interface is new, so it may be wanted soon".to_owned()),
        Reason::Flows => {
            Some("the flows of the address's former owner are to be forgotten first".to_owned())
        }
        Reason::Foreign(other) => Some(other.clone()),
        Reason::Unread => Some("not while parts of the datastore cannot be read".to_owned()),
    }
}
