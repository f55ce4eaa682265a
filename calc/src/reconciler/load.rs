//! Many entries at once, as at a start: nearly all of them are new.
//!
//! What is wanted of a key that is neither wanted nor there concerns nothing else that is known of
//! it. Such entries are taken in as one run in order, which costs a fraction of one by one.

use std::mem;

use ipc_proto::{BpfRoute, Op};
use ipnet::IpNet;

use super::{Reconciler, Unplaced};

/// Entries of one map that are new, in order.
type Run = Vec<(IpNet, BpfRoute)>;

impl Reconciler {
    /// Says what many keys should be, one after the other.
    ///
    /// # Errors
    ///
    /// The first for which there is no table; the others are taken in.
    pub fn want_all(&mut self, ops: Vec<Op>) -> Result<(), Unplaced> {
        self.replan();
        let is_set = |op: &&Op| matches!(op, Op::BpfRoute(_, Some(_)));
        let many = ops.iter().filter(is_set).count() > self.tables.entries_len() / 8;
        let mut run = Run::new();
        let mut result = Ok(());
        for op in ops {
            if let Op::BpfRoute(prefix, Some(route)) = &op
                && many
                && continues(&run, prefix)
                && self.tables.is_new(prefix)
            {
                self.flows.want(&op);
                run.push((*prefix, route.clone()));
            } else {
                self.tables.want_new(mem::take(&mut run));
                result = result.and(self.want(op));
            }
        }
        self.tables.want_new(run);
        result
    }
}

/// Returns whether an entry can come next.
fn continues(run: &Run, prefix: &IpNet) -> bool {
    run.last()
        .is_none_or(|(last, _)| last < prefix && last.max_prefix_len() == prefix.max_prefix_len())
}
