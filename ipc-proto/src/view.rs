//! What `calc` shows of its tables: for each key what should be, what is, and why they differ.

use serde::{Deserialize, Serialize};

use crate::{Observed, Op, OpError};

/// A table: one kind of kernel state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// Sysctls of interfaces.
    LinkSettings,
    /// Tunnel devices.
    TunnelDevices,
    /// Permanent neighbours.
    Neighbours,
    /// Permanent forwarding entries.
    Fdb,
    /// Addresses of this host on workloads' links.
    LinkAddresses,
    /// The BPF route maps.
    BpfRoutes,
    /// The kernel's routes.
    KernelRoutes,
    /// Routing rules.
    Rules,
    /// What the packet programs know about workloads' links.
    Endpoints,
    /// The hooks that the packet programs are attached to.
    Attachments,
}

impl Kind {
    /// Returns the word for one of them, as programs read it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LinkSettings => "link-settings",
            Self::TunnelDevices => "tunnel-device",
            Self::Neighbours => "neighbour",
            Self::Fdb => "fdb",
            Self::LinkAddresses => "link-address",
            Self::BpfRoutes => "bpf-route",
            Self::KernelRoutes => "kernel-route",
            Self::Rules => "rule",
            Self::Endpoints => "endpoint",
            Self::Attachments => "attachment",
        }
    }
}

/// Asks for some rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsRequest {
    /// Which table.
    pub kind: Kind,
    /// How many rows to leave out at the start.
    pub skip: u32,
    /// Whether only rows are asked for that are not as they should be.
    pub differing: bool,
}

/// Rows in key order; none means that there are no more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// The rows.
    pub rows: Vec<Row>,
}

/// One key of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// What should be, as it would be asked for.
    pub desired: Option<Op>,
    /// What is, as it was last read or acknowledged.
    pub actual: Option<Observed>,
    /// Why it is not as it should be; none if it is.
    pub reason: Option<Reason>,
}

/// Why a key is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// Its change is about to be made, or its answer awaited.
    Pending,
    /// The last attempt failed.
    Failed(OpError),
    /// Others undo it again and again, so that it waits.
    Contested,
    /// Nobody wants it, but it is on an interface that is new: it may be wanted soon.
    Grace,
    /// The flows of the address's former owner are to be forgotten first.
    Flows,
    /// Nobody wants it, as far as is known: not all of the datastore could be read.
    Unread,
    /// It is made once its interface is up.
    LinkDown,
    /// It is as it should be, but another program's route may count in its place: which one, and
    /// what to do.
    Foreign(String),
}
