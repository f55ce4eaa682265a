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

/// Asks for some rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsRequest {
    /// Which table.
    pub kind: Kind,
    /// How many rows to leave out at the start.
    pub skip: u32,
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
    /// Why the last attempt to change it failed.
    pub failed: Option<OpError>,
}
