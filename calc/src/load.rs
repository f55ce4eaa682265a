//! The first time that all is computed, where that is much: what the helper can make is sent as it comes,
//! so that it is made while the rest is computed.

use ipc_proto::Op;

use crate::{
    calculator::Calculator,
    reconciler::{Output, Reconciler, Unplaced},
};

/// As [`Calculator::resolve`], but if nothing was computed so far, the BPF route maps are empty, and what is to be
/// computed is more than a batch, what can be sent at once is `sent`, and the reconciler told of it. Returns
/// what it is still to be told.
///
/// Only once the datastore has shown all that it holds.
pub fn resolve(
    calculator: &mut Calculator,
    reconciler: &mut Reconciler,
    mut sent: impl FnMut(Output),
) -> Vec<Op> {
    let is_new = calculator.is_new();
    let load = is_new.then(|| reconciler.load(calculator.named()));
    let Some(mut load) = load.flatten() else {
        return calculator.resolve();
    };
    let begun = load.begin(calculator.resolve_first(), &mut sent);
    let rest = calculator.resolve_early(load.size(), |ops| load.add(ops, &mut sent));
    let ended = load.end(rest);
    let unplaced = [begun, ended].into_iter().filter_map(Result::err);
    unplaced.map(|Unplaced(op)| op).collect()
}
