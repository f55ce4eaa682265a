//! How much memory a batch takes, with all that hangs on it.

use ipc_proto::{Batch, Op, RouteKind};

fn vector<T>(vector: &Vec<T>) -> usize {
    vector.capacity() * size_of::<T>()
}

/// Returns it in bytes.
pub(crate) fn weight(batch: &Batch) -> usize {
    let steps = batch.steps.iter().map(|step| hanging(&step.op));
    vector(&batch.steps) + steps.sum::<usize>()
}

fn hanging(op: &Op) -> usize {
    match op {
        Op::TunnelDevice(_, Some(device)) => size_of_val(&**device),
        Op::KernelRoute(_, Some(route)) => {
            let hops = match &route.kind {
                RouteKind::Multipath(hops) => vector(hops),
                RouteKind::Unicast(_)
                | RouteKind::Local(_)
                | RouteKind::Blackhole
                | RouteKind::Prohibit
                | RouteKind::Unreachable
                | RouteKind::Throw => 0,
            };
            size_of_val(&**route) + hops
        }
        Op::Endpoint(_, Some(endpoint)) => size_of_val(&**endpoint) + vector(&endpoint.sources),
        Op::Masquerade(Some(nat)) => {
            size_of_val(&**nat) + vector(&nat.sources) + vector(&nat.exclusions)
        }
        Op::TunnelDevice(_, None)
        | Op::KernelRoute(_, None)
        | Op::Endpoint(_, None)
        | Op::Masquerade(None)
        | Op::LinkSettings(..)
        | Op::Neighbour(..)
        | Op::Fdb(..)
        | Op::LinkAddress(..)
        | Op::BpfRoute(..)
        | Op::Rule(..)
        | Op::Attachment(..)
        | Op::Vtep(..)
        | Op::ProgramSettings(_)
        | Op::FlowFlush(_) => 0,
    }
}
