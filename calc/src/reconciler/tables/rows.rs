//! What tables hold, as rows for the operator.

use ipc_proto::{
    Op,
    view::{self, Reason, Row},
};

use super::Tables;
use crate::{
    flows::{Flows, Gate},
    table::{Entry, Kind, Table},
};

impl Tables {
    /// Returns rows of a table, as `page` says; what nobody wants stays unless it `sweep`s.
    pub(in crate::reconciler) fn rows(&self, page: &Page, sweep: bool, flows: &Flows) -> Vec<Row> {
        let rows = Rows {
            page,
            sweep,
            waits: &|op| flows.gate(op, |pods| self.leads_to(op, pods)) != Gate::Open,
        };
        match page.kind {
            view::Kind::LinkSettings => rows.of(self.link_settings.entries()),
            view::Kind::TunnelDevices => rows.of(self.tunnel_devices.entries()),
            view::Kind::Neighbours => rows.of(self.neighbours.entries()),
            view::Kind::Fdb => rows.of(self.fdb.entries()),
            view::Kind::LinkAddresses => rows.of(self.link_addresses.entries()),
            view::Kind::BpfRoutes => rows.of(self.bpf_v4.entries().chain(self.bpf_v6.entries())),
            view::Kind::KernelRoutes => {
                let entries = self.routes().into_iter().flat_map(Table::entries);
                rows.of(entries.map(|mut entry| {
                    if entry.reason.is_none() {
                        entry.reason = self.rivals_of(entry.key).map(Reason::Foreign);
                    }
                    entry
                }))
            }
            view::Kind::Rules => rows.of(self.rules.entries()),
            view::Kind::Endpoints => rows.of(self.endpoints.entries()),
            view::Kind::Attachments => rows.of(self.attachments.entries()),
        }
    }
}

/// Which rows are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Of which table.
    pub kind: view::Kind,
    /// How many to leave out at the start.
    pub skip: usize,
    /// How many at most.
    pub max: usize,
    /// Whether only those that are not as they should be.
    pub differing: bool,
}

/// What rows are made by.
struct Rows<'a> {
    page: &'a Page,
    sweep: bool,
    waits: &'a dyn Fn(&Op) -> bool,
}

impl Rows<'_> {
    fn of<'a, K: Kind + 'a>(&self, entries: impl Iterator<Item = Entry<'a, K>>) -> Vec<Row> {
        entries
            .filter(|entry| !self.page.differing || entry.reason.is_some())
            .skip(self.page.skip)
            .take(self.page.max)
            .map(|entry| self.row(entry))
            .collect()
    }

    /// Makes a row, with the reasons that its table does not know.
    fn row<K: Kind>(&self, entry: Entry<'_, K>) -> Row {
        let mut row = entry.row();
        if row.reason == Some(Reason::Pending) {
            row.reason = Some(match &row.desired {
                None if !self.sweep => Reason::Unread,
                Some(op) if (self.waits)(op) => Reason::Flows,
                None | Some(_) => Reason::Pending,
            });
        }
        row
    }
}
