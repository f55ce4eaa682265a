//! The interfaces of the processes, seen from their clients.

use std::collections::BTreeMap;

use serde_bytes::ByteBuf;

use super::{RouteRow, SnapshotPage};

/// The helper's data path; each payload is one [`codec`](crate::codec) message.
#[zbus::proxy(
    interface = "io.cairn.Dataplane1",
    default_service = "io.cairn.Dataplane1",
    default_path = "/io/cairn/Dataplane1"
)]
pub trait Dataplane {
    /// Starts a lease and ends the one before: [`Hello`](crate::Hello) to
    /// [`Welcome`](crate::Welcome).
    fn hello(&self, hello: &ByteBuf) -> zbus::Result<ByteBuf>;
    /// Returns whether this page is the last, and the page: [`PageRequest`](crate::PageRequest) to
    /// [`Page`](crate::Page).
    fn page(&self, request: &ByteBuf) -> zbus::Result<(bool, ByteBuf)>;
    /// Applies a batch: [`Batch`](crate::Batch) to [`Ack`](crate::Ack).
    fn apply(&self, batch: &ByteBuf) -> zbus::Result<ByteBuf>;

    /// Leaves a [`Batch`] with the helper, in place of the one before, for
    /// [`apply_prepared`](Self::apply_prepared). It is answered after what was asked before.
    fn prepare(&self, batch: &ByteBuf) -> zbus::Result<()>;

    /// Applies the [`Batch`] that was prepared, by its number, and returns an [`Ack`].
    fn apply_prepared(&self, id: u64) -> zbus::Result<ByteBuf>;
    /// Links have changed: a [`Feed`](crate::Feed).
    #[zbus(signal)]
    fn links_changed(&self, feed: ByteBuf) -> zbus::Result<()>;
    /// Flow flushes have ended: a [`FlowsDone`](crate::FlowsDone).
    #[zbus(signal)]
    fn flows_flushed(&self, done: ByteBuf) -> zbus::Result<()>;
}

/// What `calc` shows.
#[zbus::proxy(
    interface = "io.cairn.Calc1",
    default_service = "io.cairn.Calc1",
    default_path = "/io/cairn/Calc1"
)]
pub trait Calc1 {
    /// Reads the kernel back and repairs what differs. Returns the number of this request.
    fn resync(&self) -> zbus::Result<u64>;
    /// Returns a page of a table: [`RowsRequest`](crate::view::RowsRequest) to
    /// [`Rows`](crate::view::Rows).
    fn rows(&self, request: &ByteBuf) -> zbus::Result<ByteBuf>;
    /// Returns a page of all that consumers are told, from what follows `after`; see
    /// `docs/consumers.md`.
    fn snapshot(&self, after: &str) -> zbus::Result<SnapshotPage>;
    /// BPF routes have changed.
    #[zbus(signal)]
    fn routes_changed(
        &self,
        seq: u64,
        updates: Vec<RouteRow>,
        deletes: Vec<String>,
    ) -> zbus::Result<()>;
    /// The addresses of this host have changed: these are all.
    #[zbus(signal)]
    fn host_ips_changed(&self, seq: u64, addresses: Vec<String>) -> zbus::Result<()>;
    /// Nobody has these addresses any more, and nothing is left of who had them.
    #[zbus(signal)]
    fn address_clean(&self, seq: u64, addresses: Vec<String>) -> zbus::Result<()>;
    /// More has changed than is told: only another snapshot has it.
    #[zbus(signal)]
    fn reset(&self, seq: u64) -> zbus::Result<()>;
    /// The kernel holds all that the datastore asks for, for the first time in this life of the
    /// process.
    #[zbus(signal)]
    fn dataplane_in_sync(&self) -> zbus::Result<()>;
    /// Which life of the process this is.
    #[zbus(property)]
    fn incarnation(&self) -> zbus::Result<u64>;
    /// Whether the kernel holds all that the datastore asks for.
    #[zbus(property)]
    fn in_sync(&self) -> zbus::Result<bool>;
    /// How often the kernel was read back.
    #[zbus(property)]
    fn resyncs(&self) -> zbus::Result<u64>;
    /// The number of the last request for a reading that is answered.
    #[zbus(property)]
    fn answered(&self) -> zbus::Result<u64>;
    /// How much a reading found otherwise than it was known to be, by the name of its
    /// [kind](crate::view::Kind).
    #[zbus(property)]
    fn drift(&self) -> zbus::Result<BTreeMap<String, u64>>;
}

/// What the helper shows.
#[zbus::proxy(
    interface = "io.cairn.PrivHelper1",
    default_service = "io.cairn.PrivHelper1",
    default_path = "/io/cairn/PrivHelper1"
)]
pub trait PrivHelper1 {
    /// Which life of the process this is.
    #[zbus(property)]
    fn incarnation(&self) -> zbus::Result<u64>;
    /// How many packets there were of each verdict of the packet programs, by its name.
    #[zbus(property)]
    fn verdicts(&self) -> zbus::Result<BTreeMap<String, u64>>;
}

/// What the supervisor shows.
#[zbus::proxy(
    interface = "io.cairn.Supervisor1",
    default_service = "io.cairn.Supervisor1",
    default_path = "/io/cairn/Supervisor1"
)]
pub trait Supervisor1 {
    /// Which life of the process this is.
    #[zbus(property)]
    fn incarnation(&self) -> zbus::Result<u64>;
}
