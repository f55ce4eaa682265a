//! What was made of a batch, all at once: its keys come in order, table by table.

use std::time::Instant;

use ipc_proto::{BpfRoute, KernelRoute, Op, RouteKey};
use ipnet::IpNet;

use super::Tables;
use crate::table::{Act, Verdict};

/// What was made of a table of which there may be many, in order.
type Made<K, V> = Vec<(K, Option<V>)>;

impl Tables {
    /// Takes in changes that were made, and returns those that had failed before.
    pub(in crate::reconciler) fn settle_all(&mut self, now: Instant, ops: Vec<Op>) -> Vec<Op> {
        let (mut v4, mut v6): (Made<IpNet, BpfRoute>, Made<IpNet, BpfRoute>) = Default::default();
        let mut routes: Made<RouteKey, KernelRoute> = Vec::new();
        let mut recovered = Vec::new();
        for op in ops {
            match op {
                Op::BpfRoute(key @ IpNet::V4(_), value) if follows(&v4, &key) => {
                    v4.push((key, value));
                }
                Op::BpfRoute(key @ IpNet::V6(_), value) if follows(&v6, &key) => {
                    v6.push((key, value));
                }
                Op::KernelRoute(key, value) if follows(&routes, &key) => routes.push((key, value)),
                op => {
                    // Only what has a table is ever sent.
                    let verdict = self.act(op.clone(), Act::Settle(now, None));
                    if verdict == Ok(Verdict::Recovered) {
                        recovered.push(op);
                    }
                }
            }
        }
        recovered.extend(self.bpf_v4.settle_all(now, v4));
        recovered.extend(self.bpf_v6.settle_all(now, v6));
        recovered.extend(self.kernel_routes.settle_all(now, routes));
        recovered
    }
}

fn follows<K: Ord, V>(made: &[(K, V)], key: &K) -> bool {
    made.last().is_none_or(|(last, _)| last < key)
}
