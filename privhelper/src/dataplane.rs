//! Carries permitted changes out in the kernel, and reads back what is ours.
//!
//! It runs to completion on a thread of its own, so its system calls delay nobody but who asked. It
//! holds sockets and maps, and remembers nothing between two calls.

use std::sync::Arc;

use ipc_proto::{Lane, Observed, Op, OpError, Step};
use nix::errno::Errno;

use crate::{
    bpf::{BpfError, RouteMaps},
    order,
    policy::{Permitted, Policy},
    watch::Watched,
};

/// Why the kernel cannot be read back.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A BPF map cannot be read.
    #[error(transparent)]
    Bpf(#[from] BpfError),
}

/// See the [module](self).
#[derive(Debug)]
pub struct Dataplane {
    policy: Arc<Policy>,
    watched: Watched,
    maps: RouteMaps,
}

impl Dataplane {
    /// Puts `policy` in front of the kernel.
    #[must_use]
    pub fn new(policy: Arc<Policy>, watched: Watched, maps: RouteMaps) -> Self {
        Self {
            policy,
            watched,
            maps,
        }
    }

    /// Carries out the steps in order and returns those that failed.
    pub fn apply(&mut self, lane: Lane, steps: Vec<Step>) -> Vec<(u32, OpError)> {
        let steps = self.check(lane, steps);
        order::carry_out(steps, |ops| self.carry_out(ops))
    }

    /// Asks the policy for each step; again with a fresh table of interfaces if one looks stale.
    fn check(
        &self,
        lane: Lane,
        steps: Vec<Step>,
    ) -> Vec<(Option<u32>, Result<Permitted, OpError>)> {
        let ask = |op| self.policy.check(lane, op, &self.watched.links());
        let mut refreshed = false;
        steps
            .into_iter()
            .map(|step| {
                let mut verdict = ask(step.op.clone());
                if matches!(verdict, Err(OpError::StaleLink(_))) {
                    if !refreshed {
                        self.watched.refresh();
                        refreshed = true;
                    }
                    verdict = ask(step.op);
                }
                (step.needs, verdict)
            })
            .collect()
    }

    /// Carries out ops of one kind in order.
    fn carry_out(&mut self, ops: &[Permitted]) -> Vec<Result<(), OpError>> {
        let bpf: Vec<_> = ops
            .iter()
            .filter_map(|permitted| match permitted.op() {
                Op::BpfRoute(prefix, route) => Some((*prefix, route.as_ref())),
                _ => None,
            })
            .collect();
        self.maps.apply(&bpf)
    }

    /// Gives all that is ours to `sink`, interfaces first, and returns the number of the feed that
    /// they include.
    ///
    /// # Errors
    ///
    /// If the kernel cannot be read.
    pub fn snapshot(&mut self, sink: &mut impl FnMut(Observed)) -> Result<u64, SnapshotError> {
        self.watched.refresh();
        let mut links = self.watched.links();
        let (states, feed) = links.snapshot();
        for state in states {
            sink(Observed::Link(state));
        }
        self.maps.snapshot(&links, sink)?;
        Ok(feed)
    }

    /// Returns the size of each BPF route map in entries.
    #[must_use]
    pub fn map_size(&self) -> u32 {
        self.maps.size()
    }
}

/// Returns the number of an error.
pub(crate) fn errno_number(errno: Errno) -> i32 {
    std::io::Error::from(errno).raw_os_error().unwrap_or(0)
}
