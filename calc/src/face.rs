//! What `calc` shows and takes on D-Bus: `io.cairn.Calc1`.
//!
//! It holds no state: it reads what the shell last published and passes requests on to it. It looks at
//! the clock for an age that is asked for, and for nothing else.

#![expect(
    clippy::disallowed_types,
    reason = "what zbus's macro generates uses a HashMap for properties"
)]

mod signals;

use std::{collections::BTreeMap, future::pending, time::Instant};

use ipc_proto::{
    Incarnation,
    bus::{self, Presence, RouteRow, SnapshotPage},
    codec,
    view::{Kind, Rows, RowsRequest},
};
use serde_bytes::ByteBuf;
use tokio::sync::{mpsc, oneshot, watch};
use zbus::{fdo, object_server::SignalEmitter};

pub(crate) use self::signals::Signals;
use crate::{
    consumers::{Cursor, Signal},
    datastore::Standing,
};

/// What is asked of the shell.
#[derive(Debug)]
pub(crate) enum Request {
    /// Read the kernel back and repair what differs; the answer is the number of the request.
    Resync(oneshot::Sender<u64>),
    /// Some rows of a table.
    Rows(RowsRequest, oneshot::Sender<Rows>),
    /// A page of what consumers are told, if it is known what the kernel holds.
    Snapshot(Cursor, oneshot::Sender<Option<SnapshotPage>>),
}

/// Why there is no page of a snapshot.
#[derive(Debug, zbus::DBusError)]
#[zbus(prefix = "io.cairn.Error")]
pub(crate) enum SnapshotError {
    /// What D-Bus says.
    #[zbus(error)]
    ZBus(zbus::Error),
    /// It is not known what the kernel holds: `Reset` tells when.
    NotReady(String),
    /// No page starts there.
    InvalidCursor(String),
    /// The process is ending.
    Ending(String),
}

/// How things stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// Whether the kernel holds all that the datastore asks for.
    pub(crate) in_sync: bool,
    /// Whether the helper has granted a lease.
    pub(crate) connected: bool,
    /// How many entries there should be.
    pub(crate) desired: usize,
    /// How many changes are still to be made.
    pub(crate) pending: usize,
    /// How many entries failed at the last attempt.
    pub(crate) held: usize,
    /// In place of how many routes another program's may count.
    pub(crate) foreign: usize,
    /// How often the kernel was read back.
    pub(crate) resyncs: u64,
    /// The last request for it that a reading has answered.
    pub(crate) answered: u64,
    /// When it last was.
    pub(crate) read: Option<Instant>,
    /// What is in force of the datastore.
    pub(crate) datastore: Standing,
    /// When that last changed.
    pub(crate) datastore_changed: Option<Instant>,
    /// How many batches the helper has answered.
    pub(crate) batches: u64,
    /// How much a reading found otherwise than it was known to be.
    pub(crate) drift: BTreeMap<Kind, u64>,
    /// What is wrong at present.
    pub(crate) problems: Vec<String>,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Face {
    /// Which life of the process this is.
    pub(crate) incarnation: Incarnation,
    /// The version of the program.
    pub(crate) version: &'static str,
    /// The name of this node.
    pub(crate) node: String,
    /// What the shell last published.
    pub(crate) status: watch::Receiver<Status>,
    /// The way to the shell.
    pub(crate) requests: mpsc::Sender<Request>,
    /// What is signalled.
    pub(crate) signals: Signals,
    /// Whether this is on the system bus.
    pub(crate) presence: Presence,
}

impl bus::Face for Face {
    fn presence(&self) -> &Presence {
        &self.presence
    }

    async fn changed(&mut self) {
        if self.status.changed().await.is_err() {
            pending::<()>().await;
        }
    }

    async fn signal(&mut self, emitter: &SignalEmitter<'_>) -> zbus::Result<()> {
        loop {
            match &*self.signals.next().await {
                Signal::Routes {
                    seq,
                    updates,
                    deletes,
                } => Self::routes_changed(emitter, *seq, updates, deletes).await?,
                Signal::HostIps { seq, addresses } => {
                    Self::host_ips_changed(emitter, *seq, addresses).await?;
                }
                Signal::Clean { seq, addresses } => {
                    Self::address_clean(emitter, *seq, addresses).await?;
                }
                Signal::Reset { seq } => Self::reset(emitter, *seq).await?,
                Signal::InSync { after: _ } => Self::dataplane_in_sync(emitter).await?,
            }
        }
    }
}

impl Face {
    async fn ask(&self, request: Request) -> fdo::Result<()> {
        self.requests
            .send(request)
            .await
            .map_err(|_closed| ending())
    }
}

fn ending() -> fdo::Error {
    fdo::Error::Failed("calc is ending".to_owned())
}

/// Returns how long ago something was, in milliseconds; 2^64-1 if it has not been yet.
fn age(at: Option<Instant>) -> u64 {
    let age = at.map(|at| tokio::time::Instant::from_std(at).elapsed().as_millis());
    age.map_or(u64::MAX, |age| u64::try_from(age).unwrap_or(u64::MAX))
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[zbus::interface(name = "io.cairn.Calc1", spawn = false)]
impl Face {
    /// Reads the kernel back and repairs what differs from the desired state. Returns the number of
    /// this request: once `Answered` is at least that, a reading that began after it has come, and all
    /// that had been written in the datastore before it.
    async fn resync(&self) -> fdo::Result<u64> {
        let (answer, number) = oneshot::channel();
        self.ask(Request::Resync(answer)).await?;
        number.await.map_err(|_closed| ending())
    }

    /// Returns some rows of a table.
    async fn rows(&self, request: ByteBuf) -> fdo::Result<ByteBuf> {
        let request =
            codec::decode(&request).map_err(|error| fdo::Error::InvalidArgs(error.to_string()))?;
        let (answer, rows) = oneshot::channel();
        self.ask(Request::Rows(request, answer)).await?;
        let rows = rows.await.map_err(|_closed| ending())?;
        let bytes =
            codec::encode(&rows).map_err(|error| fdo::Error::LimitsExceeded(error.to_string()))?;
        Ok(ByteBuf::from(bytes))
    }

    /// Returns some of all that the signals tell of, in order: addresses of this host, and what the
    /// kernel's BPF route maps hold, as of signal `seq`. The first page follows "", each other the
    /// `next` of the one before; after the last that is "". Subscribe first, then read all pages,
    /// then apply the signals with numbers greater than the first page's `seq`. `NotReady`: wait
    /// for `Reset`.
    #[zbus(out_args("seq", "host_ips", "routes", "next"))]
    async fn snapshot(
        &self,
        after: String,
    ) -> Result<(u64, Vec<String>, Vec<RouteRow>, String), SnapshotError> {
        let after: Cursor = after
            .parse()
            .map_err(|error| SnapshotError::InvalidCursor(format!("{error}")))?;
        let (answer, page) = oneshot::channel();
        let ending = || SnapshotError::Ending("calc is ending".to_owned());
        let sent = self.requests.send(Request::Snapshot(after, answer)).await;
        sent.map_err(|_closed| ending())?;
        let page = page.await.map_err(|_closed| ending())?;
        let page = page.ok_or_else(|| {
            SnapshotError::NotReady(
                "it is not known what the kernel holds: wait for the signal Reset".to_owned(),
            )
        })?;
        Ok((page.seq, page.host_ips, page.routes, page.next))
    }

    /// The kernel's BPF route maps have changed: `updates` are the entries that are new or have
    /// another value, each with prefix, flags, address of the next hop or "", name of the interface
    /// or "", and its index or 0; `deletes` are the prefixes of those that are gone. At most 1,000
    /// changes and 32 KiB. `seq` is one more than that of the signal before, whichever that was;
    /// after another one, read a snapshot.
    #[zbus(signal)]
    async fn routes_changed(
        emitter: &SignalEmitter<'_>,
        seq: u64,
        updates: &[RouteRow],
        deletes: &[String],
    ) -> zbus::Result<()>;

    /// The addresses of this host that others can send to have changed: these are all, ascending.
    #[zbus(signal)]
    async fn host_ips_changed(
        emitter: &SignalEmitter<'_>,
        seq: u64,
        addresses: &[String],
    ) -> zbus::Result<()>;

    /// Nobody has these addresses any more: the kernel has no route of them, and tracks no flow of who
    /// had them. Not repeated for who missed it.
    #[zbus(signal)]
    async fn address_clean(
        emitter: &SignalEmitter<'_>,
        seq: u64,
        addresses: &[String],
    ) -> zbus::Result<()>;

    /// More has changed than is told one by one, or than was read in time: read a snapshot. The next
    /// signal has the number after this.
    #[zbus(signal)]
    async fn reset(emitter: &SignalEmitter<'_>, seq: u64) -> zbus::Result<()>;

    /// The kernel holds all that the datastore asks for, for the first time in the life of this
    /// process: `InSync` tells of each time.
    #[zbus(signal)]
    async fn dataplane_in_sync(emitter: &SignalEmitter<'_>) -> zbus::Result<()>;

    /// The version of the program.
    #[zbus(property(emits_changed_signal = "const"))]
    fn version(&self) -> &'static str {
        self.version
    }

    /// Which life of the process this is.
    #[zbus(property(emits_changed_signal = "const"))]
    fn incarnation(&self) -> u64 {
        self.incarnation.0
    }

    /// The id of the process.
    #[zbus(property(emits_changed_signal = "const"))]
    #[expect(clippy::unused_self, reason = "a property is a method")]
    fn pid(&self) -> u32 {
        std::process::id()
    }

    /// The name of this node.
    #[zbus(property(emits_changed_signal = "const"))]
    fn node(&self) -> String {
        self.node.clone()
    }

    /// Whether the kernel holds all that the datastore asks for.
    #[zbus(property)]
    fn in_sync(&self) -> bool {
        self.status.borrow().in_sync
    }

    /// Whether the helper can be reached.
    #[zbus(property)]
    fn connected(&self) -> bool {
        self.status.borrow().connected
    }

    /// How many entries of the kernel there should be.
    #[zbus(property)]
    fn desired(&self) -> u64 {
        count(self.status.borrow().desired)
    }

    /// How many changes are still to be made.
    #[zbus(property)]
    fn pending(&self) -> u64 {
        count(self.status.borrow().pending)
    }

    /// How many entries failed at the last attempt.
    #[zbus(property)]
    fn held(&self) -> u64 {
        count(self.status.borrow().held)
    }

    /// How many routes are there, but another program's wins over them, takes some of their packets or is
    /// beside them, as far as they are told one by one; `Problems` names them.
    #[zbus(property)]
    fn foreign(&self) -> u64 {
        count(self.status.borrow().foreign)
    }

    /// How often the kernel was read back.
    #[zbus(property)]
    fn resyncs(&self) -> u64 {
        self.status.borrow().resyncs
    }

    /// The number of the last call of `Resync` that is answered: the kernel has been read since, and of the
    /// datastore all that had been written before.
    #[zbus(property)]
    fn answered(&self) -> u64 {
        self.status.borrow().answered
    }

    /// How long ago the kernel was last read back, in milliseconds; 2^64-1 if it has not been yet.
    #[zbus(property(emits_changed_signal = "false"))]
    fn reading_age(&self) -> u64 {
        age(self.status.borrow().read)
    }

    /// What is in force of the datastore: nothing, as it is `unread`; what it holds (`current`); that
    /// and, of what cannot be read there, what it was before (`partial`); what it held before it was
    /// `lost`. `Problems` says why.
    #[zbus(property)]
    fn datastore(&self) -> &'static str {
        self.status.borrow().datastore.name()
    }

    /// How long ago what is in force of the datastore last changed, in milliseconds; 2^64-1 if it has
    /// not been read yet.
    #[zbus(property(emits_changed_signal = "false"))]
    fn datastore_age(&self) -> u64 {
        age(self.status.borrow().datastore_changed)
    }

    /// How many batches of changes the helper has answered since this process started.
    #[zbus(property)]
    fn batches(&self) -> u64 {
        self.status.borrow().batches
    }

    /// How much a reading found otherwise than it was known to be, by kind: what others have changed,
    /// removed or added.
    #[zbus(property)]
    fn drift(&self) -> BTreeMap<String, u64> {
        let status = self.status.borrow();
        let drift = status.drift.iter();
        drift
            .map(|(kind, count)| (kind.name().to_owned(), *count))
            .collect()
    }

    /// What is wrong at present, and what to do about it.
    #[zbus(property)]
    fn problems(&self) -> Vec<String> {
        self.status.borrow().problems.clone()
    }

    /// The name on the system bus, or why there is none.
    #[zbus(property)]
    fn system_bus(&self) -> String {
        self.presence.text()
    }
}
