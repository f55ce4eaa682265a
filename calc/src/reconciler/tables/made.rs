//! What was made of a batch, all at once: its keys come in order, table by table.

use std::time::Instant;

use ipc_proto::{BpfRoute, KernelRoute, Op, RouteKey, Step};
use ipnet::IpNet;

use super::Tables;
use crate::{prefix::Prefix, table::Verdict};

/// What was made of a table of which there may be many, in order.
type Made<K, V> = Vec<(K, Option<V>)>;

impl Tables {
    /// Takes in changes that were made, and returns those that had failed before.
    pub(in crate::reconciler) fn settle_all(&mut self, now: Instant, ops: Vec<Op>) -> Vec<Op> {
        let (mut v4, mut v6): (Made<Prefix, BpfRoute>, Made<Prefix, BpfRoute>) = Default::default();
        let mut routes: Made<RouteKey, KernelRoute> = Vec::new();
        let mut recovered = Vec::new();
        for op in ops {
            let other = match op {
                Op::BpfRoute(key, value) => {
                    let made = match key {
                        IpNet::V4(_) => &mut v4,
                        IpNet::V6(_) => &mut v6,
                    };
                    let other = add(made, Prefix(key), value);
                    other.map(|(Prefix(key), value)| Op::BpfRoute(key, value))
                }
                Op::KernelRoute(key, value) => {
                    let other = add(&mut routes, key, value.map(|route| *route));
                    other.map(|(key, value)| Op::KernelRoute(key, value.map(Box::new)))
                }
                op @ (Op::LinkSettings(..)
                | Op::TunnelDevice(..)
                | Op::Neighbour(..)
                | Op::Fdb(..)
                | Op::LinkAddress(..)
                | Op::Rule(..)
                | Op::Attachment(..)
                | Op::Endpoint(..)
                | Op::Vtep(..)
                | Op::ProgramSettings(_)
                | Op::Masquerade(_)
                | Op::FlowFlush(_)) => Some(op),
            };
            let Some(op) = other else { continue };
            if self.settle(now, op.clone(), None) == Verdict::Recovered {
                recovered.push(op);
            }
        }
        recovered.extend(self.bpf_v4.settle_all(now, v4));
        recovered.extend(self.bpf_v6.settle_all(now, v6));
        recovered.extend(self.kernel_routes.settle_all(now, routes));
        recovered
    }
}

impl Tables {
    /// Takes in that all of these entries were made, which are new, come in order, and are all there are of
    /// such between the first and the last. Returns whether that could be done in this short way.
    pub(in crate::reconciler) fn settle_new(&mut self, steps: &[Step]) -> bool {
        let key = |step: &Step| {
            let Op::BpfRoute(prefix, Some(_)) = &step.op else {
                return None;
            };
            Some(Prefix(*prefix))
        };
        let (Some(first), Some(last)) = (steps.first().and_then(key), steps.last().and_then(key))
        else {
            return false;
        };
        let map = match (first.0, last.0) {
            (IpNet::V4(_), IpNet::V4(_)) => &mut self.bpf_v4,
            (IpNet::V6(_), IpNet::V6(_)) => &mut self.bpf_v6,
            (IpNet::V4(_), IpNet::V6(_)) | (IpNet::V6(_), IpNet::V4(_)) => return false,
        };
        map.settle_new(first..=last, steps.len())
    }
}

/// Adds what was made of a key, unless it is out of order; then it is returned.
fn add<K: Ord, V>(made: &mut Made<K, V>, key: K, value: Option<V>) -> Option<(K, Option<V>)> {
    if made.last().is_none_or(|(last, _)| *last < key) {
        made.push((key, value));
        None
    } else {
        Some((key, value))
    }
}
