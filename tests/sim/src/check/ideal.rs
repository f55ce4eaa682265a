//! The kernel as it should be at the end, made from what there is and what is wanted.

use std::collections::BTreeMap;

use ipc_proto::{Lane, LinkRole, Op, OpError, Tunnel};
use ipnet::IpNet;
use privhelper::links::Links;

use super::address;
use crate::{
    kernel::{Kernel, Key, can_clear, is_ours, owns},
    peers,
    rules::{Broken, broken},
    world::World,
};

/// Returns the kernel as it should be, and how many keys cannot be as wanted.
pub(super) fn of(world: &World, wanted: &BTreeMap<Key, Op>) -> Result<(Kernel, usize), Broken> {
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
    let peers = super::peers(world);
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

/// Compares what there is with it.
pub(super) fn compare(actual: &Kernel, ideal: &Kernel) -> Result<(), Broken> {
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
