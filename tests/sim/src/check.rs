//! The end of a run: once faults stop and time has passed, everything is as it should be.

mod ideal;
mod rivals;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use calc::{Calculator, event::Event};
use ipc_proto::Op;

use super::{
    cluster,
    kernel::Key,
    node::is_set,
    peers,
    rules::{Broken, broken},
    step::{How, Step, Thing},
    world::World,
};

/// Longer than anything waits, several times over.
const PATIENCE: Duration = Duration::from_secs(260);
/// As long as the longest wait for a reading, after a failure, the longest after that, and a repair must
/// stand for.
const LAST_TRIES: Duration = Duration::from_secs(185);
/// More rounds than anything takes without time passing.
const MAX_ROUNDS: u32 = 2000;

/// Which of BIRD's routes come once all is at rest: one of no prefix of ours, and one of a pod's address.
const LAST_ROUTES: [u8; 2] = [0, 8];

/// Ends all faults, lets the world come to rest, and checks it.
pub(super) fn settle(world: &mut World) -> Result<(), Broken> {
    world.heal();
    come_to_rest(world)?;
    if world.drifted {
        world.take(Step::Resync)?;
        come_to_rest(world)?;
    }
    let in_sync = check(world)?;
    rivals::check(world)?;
    world.tally.add(if in_sync {
        "ended in sync"
    } else {
        "ended with what cannot be"
    });
    if in_sync {
        rest_with_peers(world)?;
    }
    Ok(())
}

/// Where all is as wanted, has BIRD's routes come and go, from which nothing follows but what is told, or
/// an address become another's or go away, which is put right.
fn rest_with_peers(world: &mut World) -> Result<(), Broken> {
    if !peers(world).is_empty() && peers::is_any_held(&world.datastore.documents) {
        world
            .tally
            .add("ended with a peering address that somebody has");
    }
    let expected = peers::addresses(&world.datastore.documents, &world.kernel);
    let Some((link, _)) = expected.first() else {
        return Ok(());
    };
    world.tally.add("ended with peers");
    let written = world.tally.of("steps");
    let drifts = |world: &World| world.node.as_ref().map(|node| node.body.drifts);
    let before = drifts(world);
    let how = match written % 4 {
        0 => Some(How::Alter),
        1 => Some(How::Remove),
        _ => None,
    };
    let Some(how) = how else {
        for which in LAST_ROUTES {
            world.take(Step::Bird(which))?;
        }
        come_to_rest(world)?;
        if (world.tally.of("steps"), drifts(world)) != (written, before) {
            return broken("BIRD's routes to its peers are no drift", written);
        }
        return rivals::check(world);
    };
    let named = |n: &u8| world.kernel.index(&cluster::cali(*n)) == Some(*link);
    let Some(n) = (0..cluster::CALIS).find(named) else {
        return Ok(());
    };
    world.drifted = false;
    world.take(Step::Drift(Thing::Address, how, n))?;
    if world.drifted {
        world.take(Step::Resync)?;
    }
    come_to_rest(world)?;
    check(world).map(|_| ())
}

/// Returns the links of workloads with which BIRD speaks BGP.
fn peers(world: &World) -> BTreeSet<u32> {
    peers::links(&world.kernel, &cluster::peers(&world.datastore.documents))
}

fn come_to_rest(world: &mut World) -> Result<(), Broken> {
    let mut end = world.now + PATIENCE;
    let mut working = None;
    loop {
        world.take(Step::Flow(1))?;
        let mut rounds = 0;
        while world.is_busy() {
            world.take(Step::Flow(1))?;
            rounds += 1;
            if rounds > MAX_ROUNDS {
                return broken("the world comes to rest", world.messages.len());
            }
        }
        if world.works() {
            let since = *working.get_or_insert(world.now);
            end = end.min(since + LAST_TRIES);
        } else {
            working = None;
        }
        let idle = world
            .node
            .as_ref()
            .is_some_and(|node| node.body.due().is_none());
        if working.is_some() && idle || world.now >= end {
            return Ok(());
        }
        let due = world.due().unwrap_or(end);
        world.wait(due.saturating_duration_since(world.now))?;
    }
}

/// Checks the end, and returns whether all is as wanted.
fn check(world: &World) -> Result<bool, Broken> {
    if !world.supervisor.has_both_up() || world.helper.is_none() {
        return broken("I7: both children are up", &world.supervisor);
    }
    let Some(node) = &world.node else {
        return broken("I7: both children are up", &world.supervisor);
    };
    let wanted = wanted(world);
    let desired = node.body.desired();
    if let Some(key) = difference(&desired, &wanted) {
        return broken(
            "I8: what is wanted follows from what is there",
            (key, desired.get(key), wanted.get(key)),
        );
    }
    let asked: BTreeSet<_> = wanted.keys().filter_map(address).collect();
    let expected = peers::addresses(&world.datastore.documents, &world.kernel);
    if asked != expected {
        return broken(
            "each peer's link has the peering addresses that nobody has",
            (asked, expected),
        );
    }
    let (ideal, unmet) = ideal::of(world, &wanted)?;
    ideal::compare(&world.kernel, &ideal)?;
    let reconciler = &node.body.reconciler;
    let totals = reconciler.totals();
    if totals.pending > 0 || reconciler.is_in_sync() != (unmet == 0) {
        return broken("what is done is known to be", (totals, unmet));
    }
    if unmet == 0 && reconciler.poll_timeout().is_some() {
        return broken("I10: idle costs nothing", totals);
    }
    Ok(unmet == 0)
}

/// Returns what a fresh process wants that sees only the end.
fn wanted(world: &World) -> BTreeMap<Key, Op> {
    let mut calculator = Calculator::new(cluster::node_name(0));
    calculator.handle(Event::Links(world.kernel.links(&world.policy)));
    for (doc, variant) in &world.datastore.documents {
        calculator.handle(cluster::event(*doc, Some(*variant)));
    }
    let ops = calculator.resolve().into_iter();
    ops.filter(is_set)
        .filter_map(|op| Some((Key::of(&op)?, op)))
        .collect()
}

fn address(key: &Key) -> Option<(u32, IpAddr)> {
    if let Key::Address(link, address) = key {
        Some((*link, *address))
    } else {
        None
    }
}

fn difference<'a>(a: &'a BTreeMap<Key, Op>, b: &'a BTreeMap<Key, Op>) -> Option<&'a Key> {
    let mut keys = a.keys().chain(b.keys());
    keys.find(|key| a.get(key) != b.get(key))
}
