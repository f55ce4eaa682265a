//! What Cairn promises in the demo world. The demo shows each claim, and `tests/e2e.rs` holds it.
#![expect(
    clippy::missing_errors_doc,
    reason = "a claim's error is the part of it that does not hold; it panics where the world breaks"
)]

mod drift;
mod upkeep;
mod ways;

use std::time::{Duration, Instant};

pub use self::{
    drift::Drift,
    upkeep::{
        differences_are_told_with_their_reason, drift_is_repaired, reading_back_writes_nothing,
    },
    ways::{
        a_change_of_metric_loses_no_packet, pods_reach_each_other_without_the_tunnel,
        workloads_may_have_a_table_of_their_own,
    },
};
use crate::{
    ping::{self, Ping},
    talk::{self, Talk},
    wait::{PATIENCE, eventually},
    world::{Node, Pod, Process, World},
};

/// What was seen, in plain words, or which part of the claim does not hold.
pub type Seen = Result<String, String>;

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// `from` reaches the pod `to` at both its addresses, and it is really that pod that answers.
fn reaches(from: &Pod, to: &Pod) -> Result<(), String> {
    for address in to.addresses {
        let answer = from.ask(address, PATIENCE);
        ensure(answer.as_deref() == Some(&to.name), || {
            format!(
                "{} asked {address} and heard {answer:?}, not {:?}",
                from.name, to.name
            )
        })?;
    }
    Ok(())
}

/// Cairn comes up on both nodes and brings the kernel in line with the datastore.
pub fn comes_up(world: &mut World) -> Seen {
    let start = Instant::now();
    for node in &mut world.nodes {
        node.start();
    }
    for node in &world.nodes {
        node.converged();
    }
    Ok(format!(
        "both nodes are in sync {} after their start",
        ms(start.elapsed())
    ))
}

/// Pods of one node reach each other.
pub fn pods_of_a_node_reach_each_other(world: &mut World) -> Seen {
    reaches(&world.frontend, &world.cart)?;
    reaches(&world.ledger, &world.orders)?;
    Ok("frontend -> cart, ledger -> orders: answered, IPv4 and IPv6".into())
}

/// Packets between pods of one node go straight, past the stack.
pub fn packets_between_pods_of_a_node_go_straight(world: &mut World) -> Seen {
    let [node, _] = &world.nodes;
    let before = straight(node)?;
    reaches(&world.frontend, &world.cart)?;
    let packets = straight(node)? - before;
    // Each family has three packets of each side to open and close the connection.
    ensure(packets >= 2 * 6, || {
        format!(
            "only {packets} packets went straight on node-1: {}",
            node.status()
        )
    })?;
    Ok(format!(
        "frontend -> cart: {packets} packets went straight from link to link"
    ))
}

/// How many packets the programs have sent straight to a workload.
fn straight(node: &Node) -> Result<u64, String> {
    let status = node.status();
    let count = status.pointer("/privhelper/properties/Verdicts/redirected");
    let count = count.and_then(serde_json::Value::as_u64);
    count.ok_or_else(|| format!("no counters in {status}"))
}

/// Pods of different nodes reach each other, through the tunnel.
pub fn pods_of_different_nodes_reach_each_other_through_vxlan(world: &mut World) -> Seen {
    let [node, _] = &world.nodes;
    let before = tunnelled(node);
    reaches(&world.frontend, &world.orders)?;
    reaches(&world.ledger, &world.cart)?;
    let packets = tunnelled(node) - before;
    ensure(packets > 0, || {
        "no packet went through node-1's tunnels".into()
    })?;
    Ok(format!(
        "frontend -> orders, ledger -> cart: answered; {packets} packets left node-1 in VXLAN"
    ))
}

fn tunnelled(node: &Node) -> u64 {
    ["vxlan.calico", "vxlan-v6.calico"]
        .map(|device| {
            let read = format!("cat /sys/class/net/{device}/statistics/tx_packets");
            // /sys shows the network namespace it was mounted in, so it is mounted for this.
            let script = format!("mount -t sysfs sysfs /sys && {read}");
            let mut command = node.netns.command("unshare");
            let output = crate::netns::run(command.args(["--mount", "sh", "-ec", &script]));
            output.trim().parse::<u64>().unwrap_or(0)
        })
        .iter()
        .sum()
}

/// A pod reaches a host outside, which knows the way back.
pub fn pods_reach_a_host_outside(world: &mut World) -> Seen {
    for address in World::OUTSIDE {
        let answered = ping::once(&world.frontend.netns, address, PATIENCE);
        ensure(answered, || {
            format!("frontend pinged {address} and got no answer")
        })?;
    }
    Ok("frontend -> outside: answered, IPv4 and IPv6".into())
}

/// The death of a process loses no packet, and the kernel ends as it was.
pub fn a_killed_process_loses_no_packet(world: &mut World, process: Process) -> Seen {
    killing_loses_no_packet(world, &[process])
}

/// Nor does the death of all of them at once.
pub fn killing_all_at_once_loses_no_packet(world: &mut World) -> Seen {
    killing_loses_no_packet(world, &Process::ALL)
}

fn killing_loses_no_packet(world: &mut World, processes: &[Process]) -> Seen {
    let before = world.nodes[0].kernel_state();
    let pings = [
        Ping::start(&world.frontend.netns, world.cart.addresses[0]),
        Ping::start(&world.frontend.netns, world.cart.addresses[1]),
        Ping::start(&world.frontend.netns, world.orders.addresses[0]),
        Ping::start(&world.orders.netns, world.cart.addresses[1]),
    ];
    let talks = [
        Talk::start(
            &world.frontend.netns,
            &world.cart.netns,
            world.cart.addresses[0],
        ),
        Talk::start(
            &world.cart.netns,
            &world.orders.netns,
            world.orders.addresses[1],
        ),
    ];
    let killed: Vec<u32> = processes
        .iter()
        .map(|process| world.nodes[0].pid(*process))
        .collect();
    let start = Instant::now();
    world.nodes[0].kill(processes);
    for (process, killed) in processes.iter().zip(killed) {
        eventually("another process in its place", || {
            match world.nodes[0].try_pid(*process) {
                Some(pid) if pid != killed => Ok(()),
                other => Err(format!("{process:?} was {killed}, is {other:?}")),
            }
        });
    }
    world.nodes[0].converged();
    let took = start.elapsed();
    let losses = pings.map(Ping::stop);
    for loss in &losses {
        ensure(loss.lost.is_empty(), || {
            format!(
                "{} of {} packets lost: {:?}",
                loss.lost.len(),
                loss.answered,
                loss.lost
            )
        })?;
    }
    let answered: usize = losses.iter().map(|loss| loss.answered).sum();
    let mut rounds = 0;
    for talk in talks {
        let heard = talk.stop()?;
        ensure(heard.resent == 0, || {
            format!("TCP sent segments again: {heard:?}")
        })?;
        rounds += heard.rounds;
    }
    let after = world.nodes[0].kernel_state();
    ensure(before == after, || {
        format!("the kernel differs\nbefore:\n{before}\nafter:\n{after}")
    })?;
    Ok(format!(
        "back and in sync after {}; {answered} pings and {rounds} rounds of TCP answered, none lost",
        ms(took)
    ))
}

/// An address that moves to another pod is reached there, and the rest is not disturbed.
pub fn an_address_moves_between_pods(world: &mut World) -> Seen {
    let [address, _] = world.frontend.addresses;
    let bystander = Ping::start(&world.orders.netns, world.cart.addresses[0]);
    ensure(
        world.orders.ask(address, PATIENCE).as_deref() == Some("frontend"),
        || format!("{address} is not frontend's at the start"),
    )?;
    world.frontend.give_up(address);
    world.cart.take(address);
    for node in &world.nodes {
        node.edit(
            "workloads.yaml",
            "[10.244.1.2/32, 'fd00:244::1:2/128']",
            "['fd00:244::1:2/128']",
        );
        node.edit(
            "workloads.yaml",
            "[10.244.1.3/32,",
            "[10.244.1.3/32, 10.244.1.2/32,",
        );
    }
    let ((), took) = eventually("the address at its new place", || {
        let answer = world.orders.ask(address, talk::SOON);
        ensure(answer.as_deref() == Some("cart"), || {
            format!("{address} is {answer:?}")
        })
    });
    let loss = bystander.stop();
    ensure(loss.lost.is_empty(), || {
        format!("cart's own address lost {:?}", loss.lost)
    })?;
    Ok(format!(
        "{address} went from frontend to cart; reached there after {}",
        ms(took)
    ))
}

/// A clean stop leaves forwarding in place.
pub fn a_stop_leaves_forwarding_in_place(world: &mut World) -> Seen {
    let before = world.nodes[0].kernel_state();
    let ping = Ping::start(&world.ledger.netns, world.cart.addresses[0]);
    world.nodes[0].stop();
    reaches(&world.ledger, &world.cart)?;
    let loss = ping.stop();
    ensure(loss.lost.is_empty(), || format!("lost {:?}", loss.lost))?;
    let after = world.nodes[0].kernel_state();
    ensure(before == after, || {
        format!("the kernel differs\nbefore:\n{before}\nafter:\n{after}")
    })?;
    Ok(format!(
        "node-1 stopped; {} pings answered, none lost",
        loss.answered
    ))
}

fn ms(duration: Duration) -> String {
    format!("{} ms", duration.as_millis())
}
