//! Who holds the lease, and the snapshot that is read for it.
//!
//! Runs on the dataplane's thread, one request after the other. At most one lease is valid. Malformed or unauthorised requests end here, without a trace in the kernel.

use ipc_proto::{
    Ack, Batch, BatchId, Hello, Incarnation, Known, Lane, Lease, VERSION, Welcome,
    codec::{self, DecodeError, EncodeError},
};
use tokio::sync::{mpsc::UnboundedSender, watch};

use crate::{
    conntrack::Conntrack,
    dataplane::{Dataplane, Interfaces, SnapshotError},
    pages::{self, Coming},
};

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
    /// The batch is not the one that was prepared.
    #[error("batch {0} was not prepared")]
    NotPrepared(u64),
    /// The page is not the next one of a snapshot for this lease.
    #[error("no such page: say Hello")]
    NoPage,
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
    /// The batch that came before it was to be applied.
    prepared: Option<Result<Batch, DecodeError>>,
    leased: watch::Sender<bool>,
}

/// A lease that was just granted.
#[derive(Debug)]
pub struct Granted {
    /// What it is.
    pub lease: Lease,
    /// The answer that says so: a [`Welcome`].
    pub welcome: Vec<u8>,
    known: Known,
    interfaces: Interfaces,
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
            prepared: None,
            leased,
        }
    }

    /// Serves [`Hello`]; [`read`](Self::read) follows.
    ///
    /// # Errors
    ///
    /// [`Refusal`].
    pub fn hello(&mut self, request: &[u8]) -> Result<Granted, Refusal> {
        // The version comes first in whatever a later version may say.
        let version = request.get(..size_of::<u16>()).unwrap_or(request);
        let version: u16 = codec::decode(version)?;
        if version != VERSION {
            return Err(Refusal::Version(version));
        }
        let Hello { known, .. } = codec::decode(request)?;
        self.end();
        let interfaces = self.dataplane.interfaces();
        let lease = Lease::fresh();
        let welcome = codec::encode(&Welcome {
            version: VERSION,
            incarnation: self.incarnation,
            lease,
            max_steps: u32::try_from(Batch::MAX_STEPS).unwrap_or(u32::MAX),
            bpf_max_entries: self.dataplane.map_size(),
            feed: interfaces.feed,
        })?;
        tracing::debug!("calc takes the lease");
        self.lease = Some(lease);
        self.leased.send_replace(true);
        Ok(Granted {
            lease,
            welcome,
            known,
            interfaces,
        })
    }

    /// Reads the kernel back for a lease, and gives the pages away as they come.
    pub fn read(&mut self, granted: Granted, pages: &UnboundedSender<Coming>) {
        let Self { dataplane, .. } = self;
        let reported = dataplane.reported(&granted.interfaces);
        pages::cut(
            pages,
            granted.known,
            |item| reported.has(item),
            |sink| dataplane.snapshot(granted.interfaces, sink),
        );
    }

    /// Serves [`Batch`].
    ///
    /// # Errors
    ///
    /// [`Refusal`].
    pub fn apply(&mut self, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        self.carry_out(codec::decode(request)?)
    }

    /// Keeps a batch, in place of the one before, until it is to be applied. While that is on its way it is
    /// decoded; should it make no sense, that is said then.
    pub fn prepare(&mut self, request: &[u8]) {
        self.prepared = Some(codec::decode(request));
    }

    /// Serves the batch that was prepared, which must be the one that is meant.
    ///
    /// # Errors
    ///
    /// [`Refusal`].
    pub fn apply_prepared(&mut self, meant: BatchId) -> Result<Vec<u8>, Refusal> {
        let batch = self.prepared.take().transpose()?;
        match batch.filter(|batch| batch.id == meant) {
            Some(batch) => self.carry_out(batch),
            None => Err(Refusal::NotPrepared(meant.0)),
        }
    }

    fn carry_out(&mut self, batch: Batch) -> Result<Vec<u8>, Refusal> {
        if self.lease != Some(batch.lease) {
            return Err(Refusal::Fenced);
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

    /// Ends the lease, and forgets what was prepared.
    pub fn end(&mut self) {
        self.lease = None;
        self.prepared = None;
        self.leased.send_replace(false);
    }
}
