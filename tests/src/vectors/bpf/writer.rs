//! The shipped reconciler in front of a map.

use std::time::Instant;

use ::calc::{Input, Reconciler};
use ipc_proto::Op;

use super::{
    kernel::{Done, Kernel, Outcome},
    links::Links,
};

/// More requests than any apply needs.
const MAX_REQUESTS: usize = 1000;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Writer {
    reconciler: Reconciler,
    pub(super) kernel: Kernel,
    /// Whether the last apply had a write fail or found a key missing.
    pub(super) doubts: bool,
}

impl Writer {
    pub(super) fn new(now: Instant, kernel: Kernel) -> Self {
        let mut reconciler = Reconciler::without_flows();
        reconciler.handle(now, Input::InSync { complete: true });
        reconciler.handle(now, Input::Connected);
        Self {
            reconciler,
            kernel,
            doubts: false,
        }
    }

    pub(super) fn want(&mut self, op: Op) {
        self.reconciler.want(op).unwrap();
    }

    /// Somebody asks for the map to be read.
    pub(super) fn ask_to_read(&mut self, now: Instant) {
        self.reconciler.handle(now, Input::Resync);
    }

    /// Has it do all that there is to do at that time, and returns what that was.
    pub(super) fn apply(&mut self, now: Instant, links: &Links) -> Done {
        for _ in 0..MAX_REQUESTS {
            let Some(output) = self.reconciler.poll(now) else {
                let done = self.kernel.take_done();
                let mut writes = done.writes.iter();
                self.doubts = writes.any(|write| write.outcome != Outcome::Made);
                return done;
            };
            if let Some(input) = self.kernel.serve(output, links) {
                self.reconciler.handle(now, input);
            }
        }
        panic!("the reconciler does not come to rest");
    }
}
