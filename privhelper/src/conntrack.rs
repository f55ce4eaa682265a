//! Forgets the flows of addresses that change hands: those that the kernel tracks and those that the
//! packet programs have noted.
//!
//! It has a thread of its own, since a flush takes long, and says there which batch has ended. Never
//! is anything forgotten that has none of the addresses that were asked for.

mod message;
mod table;

use std::{
    collections::BTreeSet,
    io,
    net::IpAddr,
    sync::mpsc::{self, SyncSender, TrySendError},
    thread,
};

use ipc_proto::{BatchId, FlowsDone, Lease, Op, OpError};
use nix::errno::Errno;
use tokio::sync::broadcast;

use self::table::Table;
use crate::{
    bpf::FlowNotes,
    dataplane::errno_number,
    order::{self, Checked, Group, Outcomes},
};

/// How many batches wait. A client has one at a time; those of clients that are gone are few.
const QUEUE: usize = 4;
/// How many ends of batches are kept for a client that does not listen.
const NEWS: usize = 16;

/// Flushes to be made.
#[derive(Debug)]
struct Job {
    lease: Lease,
    id: BatchId,
    steps: Vec<Checked>,
}

/// Asks the thread. It ends, after what it is at, when this is dropped.
#[derive(Debug)]
pub struct Conntrack(SyncSender<Job>);

/// Which flushes have ended. Who subscribes hears of what ends from then on.
pub type Flushed = broadcast::Sender<FlowsDone>;

impl Conntrack {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If there can be no more threads.
    pub fn start(mut notes: FlowNotes) -> io::Result<(Self, Flushed)> {
        let (jobs, queue) = mpsc::sync_channel::<Job>(QUEUE);
        let (flushed, _) = broadcast::channel(NEWS);
        let news = flushed.clone();
        thread::Builder::new()
            .name("conntrack".into())
            .spawn(move || {
                let mut table = Table::default();
                while let Ok(Job { lease, id, steps }) = queue.recv() {
                    let failed = order::carry_out(&steps, |group, outcomes| {
                        forget(&mut table, &mut notes, group, outcomes);
                    });
                    // The client may be gone.
                    drop(news.send(FlowsDone { lease, id, failed }));
                }
            })?;
        Ok((Self(jobs), flushed))
    }

    /// Starts on a batch, and returns what will not be done.
    #[must_use]
    pub fn flush(&self, lease: Lease, id: BatchId, steps: Vec<Checked>) -> Vec<(u32, OpError)> {
        let refused = (0..)
            .zip(&steps)
            .filter_map(|(at, (_, verdict))| Some((at, verdict.as_ref().err()?.clone())))
            .collect();
        let job = Job { lease, id, steps };
        let (steps, errno) = match self.0.try_send(job) {
            Ok(()) => return refused,
            Err(TrySendError::Full(job)) => (job.steps, Errno::EBUSY),
            Err(TrySendError::Disconnected(job)) => (job.steps, Errno::ESHUTDOWN),
        };
        (0..)
            .zip(steps)
            .map(|(at, _)| (at, failure("the queue of flow flushes", errno)))
            .collect()
    }
}

/// Forgets the flows of some addresses together: they share the walk through the tables.
fn forget(table: &mut Table, notes: &mut FlowNotes, group: Group<'_>, outcomes: &mut Outcomes) {
    let addresses: BTreeSet<IpAddr> = group
        .ops()
        .filter_map(|permitted| match permitted.op() {
            Op::FlowFlush(address) => Some(*address),
            // The policy lets no others onto this lane.
            Op::LinkSettings(..)
            | Op::TunnelDevice(..)
            | Op::Neighbour(..)
            | Op::Fdb(..)
            | Op::LinkAddress(..)
            | Op::BpfRoute(..)
            | Op::KernelRoute(..)
            | Op::Rule(..)
            | Op::Attachment(..)
            | Op::Endpoint(..)
            | Op::Vtep(..)
            | Op::ProgramSettings(_)
            | Op::Masquerade(_) => None,
        })
        .collect();
    let outcome = table
        .forget(&addresses)
        .map_err(|errno| failure("IPCTNL_MSG_CT_DELETE", errno))
        .and_then(|()| {
            notes
                .forget(&addresses)
                .map_err(|errno| failure("BPF_MAP_DELETE_BATCH of noted flows", errno))
        });
    outcomes.extend(group.ops().map(|_| outcome.clone()));
}

fn failure(call: &str, errno: Errno) -> OpError {
    OpError::Kernel {
        call: call.to_owned(),
        errno: errno_number(errno),
    }
}
