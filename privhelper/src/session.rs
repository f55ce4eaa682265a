//! Who holds the lease, and the snapshot that was read for it.
//!
//! Runs on the dataplane's thread, one request after the other. At most one lease is valid and one
//! snapshot is kept. Malformed or unauthorised requests end here, without a trace in the kernel.

use ipc_proto::{
    Ack, Batch, Hello, Incarnation, Lane, Lease, PageRequest, SnapshotId, VERSION, Welcome,
    codec::{self, DecodeError, EncodeError},
};
use tokio::sync::watch;

use crate::{
    conntrack::Conntrack,
    dataplane::{Dataplane, SnapshotError},
    pages::Pages,
};

/// The most steps in a batch.
pub const MAX_STEPS: u32 = 2048;

/// Why a request was not served at all.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The bytes are not a request.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    /// The client is of another version.
    #[error(
        "this helper speaks version {VERSION}, the client version {0}: both must come from one \
         package; restart the older one"
    )]
    Version(u16),
    /// The lease is not the current one.
    #[error("not the current lease: say Hello")]
    Fenced,
    /// The snapshot or the page of it does not exist.
    #[error("no such page: say Hello")]
    NoPage,
    /// The batch is too long.
    #[error("{0} steps are more than {MAX_STEPS}")]
    TooLong(usize),
    /// The kernel cannot be read.
    #[error("cannot read the kernel back: {0}")]
    Snapshot(#[from] SnapshotError),
    /// The answer is too long.
    #[error(transparent)]
    Answer(#[from] EncodeError),
}

/// See the [module](self).
#[derive(Debug)]
pub struct Session {
    dataplane: Dataplane,
    conntrack: Conntrack,
    incarnation: Incarnation,
    lease: Option<Lease>,
    leased: watch::Sender<bool>,
    snapshot: Option<(SnapshotId, Pages)>,
    next_snapshot: u64,
}

impl Session {
    /// Starts without a lease.
    #[must_use]
    pub fn new(
        dataplane: Dataplane,
        conntrack: Conntrack,
        incarnation: Incarnation,
        leased: watch::Sender<bool>,
    ) -> Self {
        Self {
            dataplane,
            conntrack,
            incarnation,
            lease: None,
            leased,
            snapshot: None,
            next_snapshot: 0,
        }
    }

    /// Serves [`Hello`].
    ///
    /// # Errors
    ///
    /// [`Refusal`].
    pub fn hello(&mut self, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        // The version comes first in whatever a later version may say.
        let version = request.get(..size_of::<u16>()).unwrap_or(request);
        let Hello { version } = codec::decode(version)?;
        if version != VERSION {
            return Err(Refusal::Version(version));
        }
        codec::decode::<Hello>(request)?;
        self.end();
        let (pages, feed) = Pages::of(|sink| self.dataplane.snapshot(&mut |item| sink.push(item)))?;
        let feed = feed?;
        let lease = Lease::fresh();
        let snapshot = SnapshotId(self.next_snapshot);
        self.next_snapshot += 1;
        let welcome = codec::encode(&Welcome {
            version: VERSION,
            incarnation: self.incarnation,
            lease,
            max_steps: MAX_STEPS,
            bpf_max_entries: self.dataplane.map_size(),
            snapshot,
            pages: pages.len(),
            feed,
        })?;
        tracing::debug!(pages = pages.len(), "calc takes the lease");
        self.snapshot = Some((snapshot, pages));
        self.lease = Some(lease);
        self.leased.send_replace(true);
        Ok(welcome)
    }

    /// Serves [`PageRequest`]; the last page ends the snapshot.
    ///
    /// # Errors
    ///
    /// [`Refusal`].
    pub fn page(&mut self, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        let request: PageRequest = codec::decode(request)?;
        let (_, pages) = self
            .snapshot
            .as_ref()
            .filter(|(id, _)| *id == request.snapshot)
            .ok_or(Refusal::NoPage)?;
        let page = pages.get(request.page).cloned().ok_or(Refusal::NoPage)?;
        if request.page.checked_add(1) == Some(pages.len()) {
            self.snapshot = None;
        }
        Ok(page)
    }

    /// Serves [`Batch`].
    ///
    /// # Errors
    ///
    /// [`Refusal`].
    pub fn apply(&mut self, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        let batch: Batch = codec::decode(request)?;
        if self.lease != Some(batch.lease) {
            return Err(Refusal::Fenced);
        }
        if u32::try_from(batch.steps.len()).map_or(true, |steps| steps > MAX_STEPS) {
            return Err(Refusal::TooLong(batch.steps.len()));
        }
        let failed = match batch.lane {
            Lane::State => self.dataplane.apply(batch.steps),
            Lane::Flows => {
                let steps = self.dataplane.check(batch.lane, batch.steps);
                self.conntrack.flush(batch.lease, batch.id, steps)
            }
        };
        Ok(codec::encode(&Ack {
            id: batch.id,
            failed,
        })?)
    }

    /// Ends the lease and drops the snapshot.
    pub fn end(&mut self) {
        self.lease = None;
        self.snapshot = None;
        self.leased.send_replace(false);
    }
}
