//! What consumers of the routes are told: numbered changes, and pages of the whole.
//!
//! Whoever has read all pages and applies, in order, the changes with greater numbers than that of
//! its first page has what the helper has acknowledged. Pure; it keeps no routes, and never tells
//! what is only wanted.

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, net::IpAddr, ops::Bound, str::FromStr};

use ipc_proto::{
    BpfRoute,
    bus::{RouteRow, SnapshotPage},
};
use ipnet::IpNet;

use crate::{ordered::beyond, reconciler::Told, table::MAX_CHANGES};

/// The longest body of a signal or a page in bytes, but for what every one has.
const MAX_BYTES: usize = 32 << 10;
/// How often in a row a reset is put off because more is to come: a load of very many routes is one
/// reset at its end, and one without an end is told now and then.
const MAX_OWED: u32 = 100;
/// How many addresses are said to be clean in one signal: they fit, however long they are.
const MAX_CLEAN: usize = 500;
/// What a body has besides its rows: the number, the lengths of two arrays and padding, and in a
/// page what to ask for next.
const FRAME: usize = 128;

/// What all consumers are told, with its number: one more than that of the signal before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// These routes have changed.
    Routes {
        /// Its number.
        seq: u64,
        /// Those that are new or other than before.
        updates: Vec<RouteRow>,
        /// The prefixes that have none any more.
        deletes: Vec<String>,
    },
    /// These are all addresses of this host, ascending.
    HostIps {
        /// Its number.
        seq: u64,
        /// The addresses.
        addresses: Vec<String>,
    },
    /// Nobody has these addresses any more, and the kernel tracks no flow of who had them.
    Clean {
        /// Its number.
        seq: u64,
        /// The addresses.
        addresses: Vec<String>,
    },
    /// What came with this number and before is to be read anew.
    Reset {
        /// Its number.
        seq: u64,
    },
    /// The kernel holds all that the datastore asks for, for the first time. It has no number.
    InSync {
        /// That of the signal before it.
        after: u64,
    },
}

impl Signal {
    /// Returns the number of the signal before it.
    pub(crate) fn after(&self) -> u64 {
        match self {
            Self::Routes { seq, .. }
            | Self::HostIps { seq, .. }
            | Self::Clean { seq, .. }
            | Self::Reset { seq } => seq.saturating_sub(1),
            Self::InSync { after } => *after,
        }
    }
}

/// What a page starts after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cursor {
    /// Nothing: it is the first.
    Start,
    /// An address of this host.
    Address(IpAddr),
    /// A route.
    Route(IpNet),
}

/// The text is not the `next` of any page.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not what a page gave as the next to ask for; the first is asked for with \"\"")]
pub(crate) struct InvalidCursor(String);

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Ok(Self::Start);
        }
        let address = text.parse().map(Self::Address).ok();
        address
            .or_else(|| text.parse().map(Self::Route).ok())
            .ok_or_else(|| InvalidCursor(text.to_owned()))
    }
}

impl Cursor {
    /// Returns the route that it is at.
    pub(crate) fn prefix(&self) -> Option<&IpNet> {
        match self {
            Self::Start | Self::Address(_) => None,
            Self::Route(prefix) => Some(prefix),
        }
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Consumers {
    /// The number of the last signal.
    seq: u64,
    /// The addresses that were told.
    addresses: BTreeSet<IpAddr>,
    /// How often a reset has been put off; nothing else is told until it comes.
    owed: u32,
}

impl Consumers {
    /// Takes in what the helper has made of the routes and the addresses that this host has, and
    /// returns what is to be signalled. An address is told, or no longer, once no change of its
    /// route is awaited any more. What is too much is told when no `more` is to come.
    pub(crate) fn settle(
        &mut self,
        told: Told,
        local: &BTreeSet<IpAddr>,
        awaits: impl Fn(&IpNet) -> bool,
        more: bool,
    ) -> Vec<Signal> {
        let addresses: BTreeSet<IpAddr> = local
            .union(&self.addresses)
            .filter(|address| {
                let known = if awaits(&IpNet::from(**address)) {
                    &self.addresses
                } else {
                    local
                };
                known.contains(*address)
            })
            .copied()
            .collect();
        let news = (self.addresses != addresses).then_some(&addresses);
        let signals = self.signals(told, news).filter(|_| self.owed == 0);
        self.addresses = addresses;
        if let Some(signals) = signals {
            self.seq += u64::try_from(signals.len()).unwrap_or(u64::MAX);
            return signals;
        }
        self.owed += 1;
        if more && self.owed < MAX_OWED {
            return Vec::new();
        }
        self.catch_up().into_iter().collect()
    }

    /// Returns the reset that was put off, if one was: no more is to come for now.
    pub(crate) fn catch_up(&mut self) -> Option<Signal> {
        if std::mem::take(&mut self.owed) == 0 {
            return None;
        }
        self.seq += 1;
        Some(Signal::Reset { seq: self.seq })
    }

    /// Takes in which addresses are free of routes and flows, and returns what is to be signalled.
    pub(crate) fn clean(&mut self, addresses: &[IpAddr]) -> Vec<Signal> {
        let chunks = addresses.chunks(MAX_CLEAN);
        chunks
            .map(|chunk| {
                self.seq += 1;
                Signal::Clean {
                    seq: self.seq,
                    addresses: chunk.iter().map(ToString::to_string).collect(),
                }
            })
            .collect()
    }

    /// Returns the signal that the kernel holds all that the datastore asks for.
    pub(crate) fn in_sync(&self) -> Signal {
        Signal::InSync { after: self.seq }
    }

    /// Returns the signals that say it, or nothing if that is too much.
    fn signals(&self, told: Told, addresses: Option<&BTreeSet<IpAddr>>) -> Option<Vec<Signal>> {
        let mut signals = Vec::new();
        match told {
            Told::Anew => return None,
            Told::Changes(changes) if changes.is_empty() => {}
            Told::Changes(changes) => signals.push(routes(self.seq + 1, changes)?),
        }
        if let Some(addresses) = addresses {
            let seq = self.seq + 1 + u64::try_from(signals.len()).ok()?;
            signals.push(host_ips(seq, addresses)?);
        }
        Some(signals)
    }

    /// Returns the page that follows `after`; `routes` are those that were told, in order, and
    /// start there as well.
    pub(crate) fn page<'a>(
        &self,
        after: &Cursor,
        routes: impl Iterator<Item = (&'a IpNet, &'a BpfRoute)>,
    ) -> SnapshotPage {
        let mut page = SnapshotPage {
            seq: self.seq,
            ..SnapshotPage::default()
        };
        let mut budget = Budget::default();
        let start = match after {
            Cursor::Start => Some(None),
            Cursor::Address(address) => Some(Some(address)),
            Cursor::Route(_) => None,
        };
        let addresses = start.map(|after| self.addresses.range((beyond(after), Bound::Unbounded)));
        let mut last = String::new();
        for address in addresses.into_iter().flatten() {
            let text = address.to_string();
            if !budget.take(text_size(&text)) {
                page.next = last;
                return page;
            }
            last.clone_from(&text);
            page.host_ips.push(text);
        }
        for (prefix, route) in routes {
            let row = RouteRow::new(*prefix, route);
            if !budget.take(row_size(&row)) {
                page.next = last;
                return page;
            }
            last.clone_from(&row.prefix);
            page.routes.push(row);
        }
        page
    }
}

fn routes(seq: u64, changes: Vec<(IpNet, Option<BpfRoute>)>) -> Option<Signal> {
    let (mut updates, mut deletes) = (Vec::new(), Vec::new());
    let mut budget = Budget::default();
    for (prefix, route) in changes {
        let fits = if let Some(route) = route {
            let row = RouteRow::new(prefix, &route);
            let size = row_size(&row);
            updates.push(row);
            budget.take(size)
        } else {
            let text = prefix.to_string();
            let size = text_size(&text);
            deletes.push(text);
            budget.take(size)
        };
        if !fits {
            return None;
        }
    }
    Some(Signal::Routes {
        seq,
        updates,
        deletes,
    })
}

fn host_ips(seq: u64, addresses: &BTreeSet<IpAddr>) -> Option<Signal> {
    let mut budget = Budget::default();
    let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    let fit = addresses.iter().all(|text| budget.take(text_size(text)));
    fit.then_some(Signal::HostIps { seq, addresses })
}

/// How much a message still has room for.
#[derive(Debug)]
struct Budget {
    rows: usize,
    bytes: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            rows: MAX_CHANGES,
            bytes: MAX_BYTES - FRAME,
        }
    }
}

impl Budget {
    /// Takes the room for a row of this size, if there is that much.
    fn take(&mut self, size: usize) -> bool {
        let left = (self.rows.checked_sub(1), self.bytes.checked_sub(size));
        let (Some(rows), Some(bytes)) = left else {
            return false;
        };
        *self = Self { rows, bytes };
        true
    }
}

/// Returns how many bytes a string takes in an array (D-Bus specification, "Marshalling").
fn text_size(text: &str) -> usize {
    4 + (text.len() + 1).next_multiple_of(4)
}

/// Returns how many bytes a route takes in an array.
fn row_size(row: &RouteRow) -> usize {
    let texts = text_size(&row.prefix) + text_size(&row.next_hop) + text_size(&row.interface);
    (texts + 4 + 4).next_multiple_of(8)
}
