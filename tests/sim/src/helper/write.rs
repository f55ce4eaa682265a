//! One write of the helper: made, or failing, and looked at before and after.

use ipc_proto::{Op, OpError};
use privhelper::policy::Permitted;

use super::Ground;
use crate::{
    bug::Bug,
    kernel::ENOMEM,
    rules::{Broken, Sight},
};

/// Makes one change, or has it fail, and has it looked at.
pub(super) fn write(
    permitted: &Permitted,
    sight: &Sight,
    ground: &mut Ground<'_>,
) -> Result<Result<(), OpError>, Broken> {
    let op = permitted.op();
    // These alone go by the name, so the helper asks the kernel for it.
    if let Op::LinkSettings(link, Some(_)) = op
        && ground.kernel.index(&link.name) != Some(link.index)
    {
        ground.watchman.fault();
        return Ok(Err(OpError::StaleLink(link.clone())));
    }
    let errno = |errno| OpError::Kernel {
        call: "model".to_owned(),
        errno,
    };
    let fails = ground.faults.failing > 0;
    if fails {
        ground.faults.failing -= 1;
        ground.tally.add("faults hit");
        ground.watchman.fault();
        // A change of a BPF map is made or it is not; of others that is not known.
        if matches!(op, Op::BpfRoute(..)) {
            return Ok(Err(errno(ENOMEM)));
        }
        ground.kernel.disturb(op);
        if !ground.faults.made {
            return Ok(Err(errno(ENOMEM)));
        }
    }
    ground
        .watchman
        .before(op, ground.kernel, ground.policy, sight, ground.tally)?;
    if let (Some(Bug::BreakBeforeMake), Op::BpfRoute(prefix, Some(_))) = (ground.bug, op)
        && ground.kernel.bpf.remove(prefix).is_some()
    {
        ground.watchman.uncovered(prefix, ground.kernel)?;
    }
    if let (Some(Bug::OthersRoutes), Op::KernelRoute(key, None)) = (ground.bug, op) {
        ground.kernel.routes.remove(key);
    }
    if ground.bug == Some(Bug::FlushSkipped) && matches!(op, Op::FlowFlush(_)) {
        return Ok(Ok(()));
    }
    if ground.bug == Some(Bug::AddressKept) && matches!(op, Op::LinkAddress(_, false)) {
        return Ok(Ok(()));
    }
    let outcome = ground.kernel.write(op, ground.policy, &sight.latest);
    if outcome.is_err() {
        ground.kernel.disturb(op);
    }
    ground
        .watchman
        .after(op, ground.kernel, ground.policy, sight, outcome.is_ok())?;
    if fails {
        return Ok(Err(errno(ENOMEM)));
    }
    Ok(outcome.map_err(errno))
}
