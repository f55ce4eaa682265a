//! How things stand, for the shell and the operator.

use std::net::IpAddr;

use ipc_proto::{
    BpfRoute, OpError,
    view::{self, Row},
};
use ipnet::IpNet;

use super::{
    Contested, Counts, Datastore, Page, Peer, Reconciler, Telling, Told, plan::Recall,
    readings::Drift,
};

impl Reconciler {
    /// Returns how much readings have found, by kind, that others have changed.
    pub(crate) fn drift(&self) -> &Drift {
        self.readings.drift()
    }

    /// Returns the addresses whose new owner waits for flows to be forgotten.
    pub fn waiting_for_flows(&self) -> impl Iterator<Item = IpAddr> {
        self.flows.waiting()
    }

    /// Returns the addresses whose new owner got its route although flows of the former one may be
    /// there, and why.
    pub fn with_old_flows(&self) -> impl Iterator<Item = (IpAddr, Option<&OpError>)> {
        self.flows.overdue()
    }

    /// Returns how often the kernel was read back; a reading that was overtaken does not count.
    #[must_use]
    pub fn resyncs(&self) -> u64 {
        self.resyncs
    }

    /// Returns whether the helper can be reached and has granted a lease.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.welcomed
    }

    /// Returns whether the kernel is known to hold all that the datastore asks for.
    #[must_use]
    pub fn is_in_sync(&self) -> bool {
        let counts = self.totals();
        self.datastore != Datastore::Starting
            && self.welcomed
            && counts.pending == 0
            && counts.held == 0
            && counts.contested == 0
    }

    /// Returns what others undo again and again.
    pub(crate) fn contested(&self) -> impl Iterator<Item = Contested> {
        self.tables.contested().map(Contested::from)
    }

    /// Returns what of others may count in place of routes that are ours, for the operator.
    pub(crate) fn rivals(&self) -> impl Iterator<Item = String> {
        self.tables.rivals()
    }

    /// Says how many more there are than those.
    pub(crate) fn more_rivals(&self) -> Option<String> {
        self.tables.more_rivals()
    }

    /// Counts the keys of a table.
    #[must_use]
    pub fn counts(&self, kind: view::Kind) -> Counts {
        let mut counts = self.tables.counts(kind, self.sweeps());
        if kind == view::Kind::BpfRoutes {
            counts.pending += self.early_len();
        }
        counts
    }

    /// Counts the keys of all tables.
    #[must_use]
    pub fn totals(&self) -> Counts {
        let mut counts = self.tables.totals(self.sweeps());
        counts.pending += self.early_len();
        counts
    }

    /// Returns rows of a table in the order of its keys.
    #[must_use]
    pub fn rows(&self, page: &Page) -> Vec<Row> {
        self.tables.rows(page, self.sweeps(), &self.flows)
    }

    /// Returns what the helper has made of the BPF route maps, if it is time to tell: after an
    /// answer, or when there is nothing to do; to be called when [`poll`](Self::poll) has no more.
    pub fn tell(&mut self) -> Option<Told> {
        let settled = matches!(self.peer, Peer::Idle(_)) && self.datastore != Datastore::Starting;
        // What is read back is told with what was made of it, so that a repair is no news. The
        // first time, all is to be right.
        if !settled && self.telling != Telling::Due {
            return None;
        }
        self.telling = Telling::Done;
        Some(self.tables.tell().map_or(Told::Anew, Told::Changes))
    }

    /// Returns whether changes are asked for that are not answered yet.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        matches!(self.peer, Peer::Busy(_)) || self.recall != Recall::Over
    }

    /// Returns the BPF routes as of the last [`tell`](Self::tell), in order from the prefix that
    /// follows `after`; or nothing if the next one tells all of them anew.
    #[must_use]
    pub fn told_after(
        &self,
        after: Option<&IpNet>,
    ) -> Option<impl Iterator<Item = (&IpNet, &BpfRoute)>> {
        self.tables.told_after(after)
    }

    /// Returns whether a change of a BPF route is to be made, or is not answered yet.
    #[must_use]
    pub fn awaits(&self, prefix: &IpNet) -> bool {
        self.tables.awaits(prefix)
    }
}
