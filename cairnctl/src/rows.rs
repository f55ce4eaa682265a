//! Tables as rows of cells: which columns a kind has, and how what is compares to what should be.

mod cells;
#[cfg(test)]
mod tests;

use ipc_proto::view::{Kind, Row};
use serde_json::{Map, Value, json};

use self::cells::Cells;
use crate::table;

/// What became of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// What is, should be.
    Ok,
    /// It differs, and will be changed.
    Pending,
    /// It differs, and the last attempt to change it failed.
    Failing,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Pending => "pending",
            Self::Failing => "failing",
        }
    }
}

/// A row that can be shown.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    /// The key's cells, then those of the value: what is, or else what should be.
    cells: Vec<Value>,
    /// Whether there is anything under the key.
    present: bool,
    state: State,
    /// What is wrong, if anything.
    why: Option<String>,
}

impl Line {
    fn text(&self) -> Vec<String> {
        let state = match &self.why {
            None => self.state.name().to_owned(),
            Some(why) => format!("{}: {why}", self.state.name()),
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
            object.insert("type".to_owned(), cells::type_name(*kind).into());
            object.insert("present".to_owned(), line.present.into());
            object.insert("state".to_owned(), line.state.name().into());
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
    let difference = match (
        wanted.as_ref().and_then(|wanted| wanted.value.as_ref()),
        &found,
    ) {
        (None, None) => return None,
        // Compared as they are: an interface that was made anew has its old name.
        (Some(_), Some(_)) if row.desired == actual => None,
        (Some(_), None) => Some("to be added".to_owned()),
        (None, Some(_)) => Some("to be removed".to_owned()),
        (Some(wanted), Some(_)) => {
            let wanted: Vec<_> = wanted.iter().map(table::text).collect();
            Some(format!("to become {}", wanted.join(" ")))
        }
    };
    let (state, why) = match (difference, &row.failed) {
        (None, _) => (State::Ok, None),
        (Some(difference), None) => (State::Pending, Some(difference)),
        (Some(difference), Some(error)) => (State::Failing, Some(format!("{difference}: {error}"))),
    };
    let mut cells = key.clone();
    cells.extend(value.iter().flatten().cloned());
    cells.resize(cells::columns(kind).len(), Value::Null);
    Some(Line {
        cells,
        present: found.is_some(),
        state,
        why,
    })
}
