//! The end of a run: once faults stop and time has passed, everything is as it should be.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use calc::{Calculator, Page, event::Event};
use ipc_proto::{Lane, LinkRole, Op, OpError, Rival, Tunnel, view};
use ipnet::IpNet;
use privhelper::links::Links;

use super::{
    cluster,
    kernel::{Kernel, Key, can_clear, is_ours, owns},
    node::is_set,
    peers,
    rules::{Broken, broken},
    step::Step,
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
    check_rivals(world)?;
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

/// Has BIRD's routes come and go where all is as wanted: nothing follows from them but what is told.
fn rest_with_peers(world: &mut World) -> Result<(), Broken> {
    let there = peers::addresses(&world.datastore.documents, &world.kernel);
    if there.is_empty() {
        return Ok(());
    }
    world.tally.add("ended with peers");
    let drifts = |world: &World| world.node.as_ref().map(|node| node.body.drifts);
    let before = (world.tally.of("steps"), drifts(world));
    for which in LAST_ROUTES {
        world.take(Step::Bird(which))?;
    }
    come_to_rest(world)?;
    let after = (world.tally.of("steps"), drifts(world));
    if after != before {
        return broken("BIRD's routes to its peers are no drift", (before, after));
    }
    check_rivals(world)
}

fn check_rivals(world: &mut World) -> Result<(), Broken> {
    let mut found = rivals(world);
    // They are told as of the last reading.
    if found.as_ref().is_some_and(|(there, told)| there != told) {
        world.take(Step::Resync)?;
        come_to_rest(world)?;
        found = rivals(world);
    }
    match found {
        Some((there, told)) if there != told => broken(
            "others' routes that win are told, and no others",
            (there, told),
        ),
        Some((there, _)) => {
            world.tally.add(if there.is_empty() {
                "ended without rivals"
            } else {
                "ended with rivals"
            });
            Ok(())
        }
        None => Ok(()),
    }
}

/// Returns the prefixes of routes that are wanted for which others' routes may count: those for which there
/// are some, and those for which they are told; none where not all is as wanted.
fn rivals(world: &World) -> Option<(BTreeSet<IpNet>, BTreeSet<IpNet>)> {
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
    let wanted = wanted(world);
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
    there.extend(peers::outdone(&wanted, &world.kernel, &peers(world)));
    Some((there, told))
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
    let (ideal, unmet) = ideal(world, &wanted)?;
    compare(&world.kernel, &ideal)?;
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

/// Returns the kernel as it should be, and how many keys cannot be as wanted.
fn ideal(world: &World, wanted: &BTreeMap<Key, Op>) -> Result<(Kernel, usize), Broken> {
    let policy = &world.policy;
    let links = world.kernel.table(policy);
    let mut ideal = world.kernel.clone();
    clear(&mut ideal, world, wanted, &links);

    let mut unmet = 0;
    let mut bpf = Vec::new();
    for (key, op) in wanted {
        match (key, policy.check(Lane::State, op.clone(), &links)) {
            (_, Err(OpError::StaleLink(link))) => return broken("no stale link is wanted", link),
            (_, Err(_)) => {
                unmet += 1;
                keep(&mut ideal, &world.kernel, key);
            }
            (Key::Bpf(prefix), Ok(_)) => bpf.push((*prefix, op)),
            (Key::Tunnel(_), Ok(_)) if world.kernel.is_so(op, policy, &links) => {}
            (Key::Tunnel(_), Ok(_)) => return broken("the tunnel device is as it should be", op),
            (_, Ok(_)) => {
                if ideal.write(op, policy, &links).is_err() {
                    unmet += 1;
                    keep(&mut ideal, &world.kernel, key);
                }
            }
        }
    }
    for tunnel in [Tunnel::VxlanV4, Tunnel::VxlanV6] {
        let there = world.kernel.index(policy.tunnel(tunnel)).is_some();
        if there && !wanted.contains_key(&Key::Tunnel(tunnel)) {
            return broken("there is no tunnel device that nobody wants", tunnel);
        }
    }
    for ipv6 in [false, true] {
        let map: Vec<_> = bpf
            .iter()
            .filter(|(prefix, _)| is_ipv6(prefix) == ipv6)
            .collect();
        let fixed = ideal
            .bpf
            .keys()
            .filter(|prefix| is_ipv6(prefix) == ipv6)
            .count();
        let max = ideal.bpf_max_entries;
        if fixed + map.len() <= max {
            for (_, op) in map {
                unmet += usize::from(ideal.write(op, policy, &links).is_err());
            }
            continue;
        }
        // It has no room for all, but as many as there is room for are right.
        unmet += 1;
        let right = map
            .iter()
            .filter(|(_, op)| world.kernel.is_so(op, policy, &links));
        let right: Vec<IpNet> = right.map(|(prefix, _)| *prefix).collect();
        if fixed + right.len() != max {
            let there: Vec<_> = world.kernel.bpf.keys().collect();
            let asked: Vec<_> = map.iter().map(|(prefix, _)| prefix).collect();
            return broken(
                "a map without room for all is full",
                (right.len(), there, asked),
            );
        }
        let entry = |prefix| Some((prefix, world.kernel.bpf.get(&prefix)?.clone()));
        ideal.bpf.extend(right.into_iter().filter_map(entry));
    }
    Ok((ideal, unmet))
}

/// Clears what a helper could clear, but for tunnel devices and settings.
fn clear(kernel: &mut Kernel, world: &World, wanted: &BTreeMap<Key, Op>, links: &Links) {
    let policy = &world.policy;
    let peers = peers(world);
    let may = |op| policy.check(Lane::State, op, links).is_ok();
    kernel.routes.retain(|key, routes| {
        if may(Op::KernelRoute(key.clone(), None)) {
            routes
                .retain(|route| !owns(key, route, policy, links) || peers::is_birds(route, &peers));
        }
        !routes.is_empty()
    });
    let role = |index| links.by_index(index).map(|state| state.role);
    kernel.neighbours.retain(|(index, address), entry| {
        let ours = role(*index).is_some_and(|role| is_ours(role, address.is_ipv6()));
        !(entry.permanent && ours)
    });
    kernel.fdb.retain(|_, entry| !entry.permanent);
    for (index, device) in &mut kernel.devices {
        if role(*index) == Some(LinkRole::Workload) {
            device.addresses.retain(|own, origin| {
                let mut wanted = wanted.keys().filter_map(address);
                let is_wanted =
                    wanted.any(|(link, other)| link == *index && other.is_ipv6() == is_ipv6(own));
                !can_clear(own, *origin, policy, is_wanted)
            });
        }
    }
    kernel
        .bpf
        .retain(|prefix, _| !may(Op::BpfRoute(*prefix, None)));
}

/// Leaves a key as it is.
fn keep(ideal: &mut Kernel, actual: &Kernel, key: &Key) {
    match key {
        Key::Bpf(prefix) => {
            let entry = actual.bpf.get(prefix).cloned();
            ideal.bpf.extend(entry.map(|entry| (*prefix, entry)));
        }
        Key::Route(key) => {
            let routes = actual.routes.get(key).cloned();
            ideal
                .routes
                .extend(routes.map(|routes| (key.clone(), routes)));
        }
        Key::Address(index, address) => {
            let own = IpNet::from(*address);
            let device = actual.devices.get(index);
            let origin = device.and_then(|device| device.addresses.get(&own));
            if let (Some(device), Some(origin)) = (ideal.devices.get_mut(index), origin) {
                device.addresses.insert(own, *origin);
            }
        }
        Key::Settings(_) | Key::Tunnel(_) | Key::Neighbour(..) | Key::Fdb(..) => {}
    }
}

fn is_ipv6(prefix: &IpNet) -> bool {
    matches!(prefix, IpNet::V6(_))
}

fn compare(actual: &Kernel, ideal: &Kernel) -> Result<(), Broken> {
    const RULE: &str = "the kernel holds what it should";
    for index in ideal.settings.keys() {
        if actual.settings.get(index) != ideal.settings.get(index) {
            return broken(RULE, ("settings", index));
        }
    }
    for (index, device) in &actual.devices {
        let ideal = ideal.devices.get(index).map(|device| &device.addresses);
        if ideal != Some(&device.addresses) {
            return broken(RULE, ("addresses", index, &device.addresses, ideal));
        }
    }
    if let Some(differs) = differing(&actual.routes, &ideal.routes) {
        return broken(RULE, differs);
    }
    if let Some(differs) = differing(&actual.neighbours, &ideal.neighbours) {
        return broken(RULE, differs);
    }
    if let Some(differs) = differing(&actual.fdb, &ideal.fdb) {
        return broken(RULE, differs);
    }
    match differing(&actual.bpf, &ideal.bpf) {
        Some(differs) => broken(RULE, differs),
        None => Ok(()),
    }
}

/// Returns the first key that differs, with what it is and what it should be.
fn differing<'a, K: Ord, V: PartialEq>(
    actual: &'a BTreeMap<K, V>,
    ideal: &'a BTreeMap<K, V>,
) -> Option<(&'a K, Option<&'a V>, Option<&'a V>)> {
    let mut keys = actual.keys().chain(ideal.keys());
    let key = keys.find(|key| actual.get(key) != ideal.get(key))?;
    Some((key, actual.get(key), ideal.get(key)))
}
