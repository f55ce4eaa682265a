//! Others' routes that may count in place of those that are wanted: the operator is told of them, and of no
//! others.

use std::collections::BTreeSet;

use calc::Page;
use ipc_proto::{Op, Rival, view};
use ipnet::IpNet;

use super::come_to_rest;
use crate::{
    kernel::Key,
    peers,
    rules::{Broken, broken},
    step::Step,
    world::World,
};

/// Checks that the operator is told of others' routes that win.
pub(super) fn check(world: &mut World) -> Result<(), Broken> {
    let mut found = find(world);
    // They are told as of the last reading.
    if found
        .as_ref()
        .is_some_and(|found| found.there != found.told)
    {
        world.take(Step::Resync)?;
        come_to_rest(world)?;
        found = find(world);
    }
    match found {
        Some(found) if found.there != found.told => {
            broken("others' routes that win are told, and no others", found)
        }
        Some(Found { there, birds, .. }) => {
            world.tally.add(if there.is_empty() {
                "ended without rivals"
            } else {
                "ended with rivals"
            });
            if !birds.is_empty() {
                world.tally.add("ended with routes from peers that win");
            }
            Ok(())
        }
        None => Ok(()),
    }
}

/// The prefixes of routes that are wanted for which others' routes may count.
#[derive(Debug)]
struct Found {
    /// Those for which there are some,
    there: BTreeSet<IpNet>,
    /// of which these for which BIRD has them from a peer,
    birds: BTreeSet<IpNet>,
    /// and those for which they are told.
    told: BTreeSet<IpNet>,
}

/// Looks for them; none where not all is as wanted.
fn find(world: &World) -> Option<Found> {
    let reconciler = &world.node.as_ref()?.body.reconciler;
    if !reconciler.is_in_sync() {
        return None;
    }
    let page = Page {
        kind: view::Kind::KernelRoutes,
        skip: 0,
        max: usize::MAX,
        differing: true,
    };
    let rows = reconciler.rows(&page).into_iter();
    let foreign = rows.filter(|row| matches!(row.reason, Some(view::Reason::Foreign(_))));
    let prefix = |op: Op| {
        if let Op::KernelRoute(key, _) = op {
            Some(key.prefix)
        } else {
            None
        }
    };
    let told = foreign.filter_map(|row| prefix(row.desired?)).collect();
    let wanted = super::wanted(world);
    let all = world
        .kernel
        .rivals(&world.policy, &world.kernel.table(&world.policy));
    let wins = |rival: &Rival| {
        wanted.keys().any(|key| {
            let Key::Route(key) = key else {
                return false;
            };
            (key.table, key.prefix) == (rival.key.table, rival.ours)
                && (rival.key.prefix != rival.ours || rival.key.metric <= key.metric)
        })
    };
    let there = all.told.iter().filter(|rival| wins(rival));
    let mut there: BTreeSet<IpNet> = there.map(|rival| rival.ours).collect();
    let birds = peers::outdone(&wanted, &world.kernel, &super::peers(world));
    there.extend(&birds);
    Some(Found { there, birds, told })
}
