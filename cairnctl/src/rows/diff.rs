//! What is not as it should be, of all tables, with the reason of each. What is under one prefix comes
//! together, that of the BPF maps beside that of the kernel.

use ipc_proto::{
    Observed, Op,
    view::{Kind, Row},
};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::{
    cells::{self, Cells},
    detail, state,
};
use crate::table;

/// All tables, in the order in which they are shown.
pub(crate) const KINDS: [Kind; 10] = [
    Kind::LinkSettings,
    Kind::TunnelDevices,
    Kind::Neighbours,
    Kind::Fdb,
    Kind::LinkAddresses,
    Kind::BpfRoutes,
    Kind::KernelRoutes,
    Kind::Rules,
    Kind::Endpoints,
    Kind::Attachments,
];

/// One key that is not as it should be.
struct Difference {
    kind: Kind,
    key: String,
    desired: Option<String>,
    actual: Option<String>,
    state: &'static str,
    detail: Option<String>,
}

/// Renders the differences, for a reader or for a program.
pub(crate) fn diff(listings: Vec<(Kind, Vec<Row>)>, as_json: bool) -> String {
    let mut rows: Vec<(Kind, Row)> = listings
        .into_iter()
        .flat_map(|(kind, rows)| rows.into_iter().map(move |row| (kind, row)))
        .filter(|(_, row)| row.reason.is_some())
        .collect();
    rows.sort_by_key(|(kind, row)| {
        let prefix = prefix(row);
        // Both kinds of routes are one group.
        let group = prefix.map_or(*kind, |_| Kind::BpfRoutes);
        (group, prefix, *kind)
    });
    let differences = rows
        .iter()
        .filter_map(|(kind, row)| Difference::of(*kind, row));
    if as_json {
        let all = differences.map(Difference::json).collect();
        return format!("{:#}\n", Value::Array(all));
    }
    let lines: Vec<Vec<String>> = differences.map(Difference::line).collect();
    if lines.is_empty() {
        return "all is as it should be, as of the last reading of the kernel\n".to_owned();
    }
    let header = ["WHAT", "KEY", "DESIRED", "ACTUAL", "REASON"];
    let header = header.map(str::to_owned).to_vec();
    table::align(&[vec![header], lines].concat())
}

impl Difference {
    fn of(kind: Kind, row: &Row) -> Option<Self> {
        let reason = row.reason.as_ref()?;
        let desired = row.desired.as_ref().and_then(cells::cells);
        let actual = row.actual.as_ref().and_then(cells::as_op);
        let actual = actual.as_ref().and_then(cells::cells);
        let key = &actual.as_ref().or(desired.as_ref())?.key;
        let value = |cells: Option<&Cells>| cells.map(|cells| cells.value.as_deref().map(joined));
        Some(Self {
            kind,
            key: joined(key),
            desired: value(desired.as_ref()).flatten(),
            actual: value(actual.as_ref())
                .map(|value| value.unwrap_or_else(|| "something else, or not known".to_owned())),
            state: state(Some(reason)),
            detail: detail(reason),
        })
    }

    fn line(self) -> Vec<String> {
        let none = || "-".to_owned();
        vec![
            self.kind.name().to_owned(),
            self.key,
            self.desired.unwrap_or_else(none),
            self.actual.unwrap_or_else(none),
            match self.detail {
                None => self.state.to_owned(),
                Some(detail) => format!("{}: {detail}", self.state),
            },
        ]
    }

    fn json(self) -> Value {
        json!({
            "type": self.kind.name(),
            "key": self.key,
            "desired": self.desired,
            "actual": self.actual,
            "state": self.state,
            "why": self.detail,
        })
    }
}

/// Joins the cells that say something.
fn joined(cells: &[Value]) -> String {
    let cells = cells.iter().map(table::text).filter(|text| text != "-");
    cells.collect::<Vec<_>>().join(" ")
}

fn prefix(row: &Row) -> Option<IpNet> {
    match (&row.desired, &row.actual) {
        (Some(Op::BpfRoute(prefix, _)), _) | (_, Some(Observed::BpfRoute(prefix, _))) => {
            Some(*prefix)
        }
        (Some(Op::KernelRoute(key, _)), _) | (_, Some(Observed::KernelRoute(key, _))) => {
            Some(key.prefix)
        }
        _ => None,
    }
}
