//! What Cairn promises in the demo world. The demo shows each claim, and `tests/e2e.rs` holds it.
#![expect(
    clippy::missing_errors_doc,
    reason = "a claim's error is the part of it that does not hold; it panics where the world breaks"
)]

mod drift;

use std::time::{Duration, Instant};

pub use self::drift::Drift;
use crate::{
    ping::{self, Ping},
    talk::Talk,
    wait::eventually,
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
        let answer = from.ask(address);
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

/// Between nodes of one subnet a pool may do without the tunnel, and then without any; each change
/// of way loses no packet.
pub fn pods_reach_each_other_without_the_tunnel(world: &mut World) -> Seen {
    let ping = Ping::start(&world.frontend.netns, world.orders.addresses[0]);
    for node in &world.nodes {
        node.edit("pools.yaml", "vxlanMode: Always", "vxlanMode: CrossSubnet");
    }
    direct(world)?;
    let before = tunnelled(&world.nodes[0]);
    reaches(&world.frontend, &world.orders)?;
    let through = tunnelled(&world.nodes[0]) - before;
    ensure(through == 0, || {
        format!("{through} packets went through the tunnel")
    })?;

    let settings = "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\n\
         metadata: {name: default}\nspec: {programClusterRoutes: Enabled}\n";
    for node in &world.nodes {
        std::fs::write(node.document("felix.yaml"), settings).map_err(|error| error.to_string())?;
        node.edit("pools.yaml", "vxlanMode: CrossSubnet", "vxlanMode: Never");
    }
    eventually("the end of the tunnels", || {
        let links = world
            .nodes
            .each_ref()
            .map(|node| node.netns.run("ip -o link show type vxlan"));
        ensure(links.iter().all(String::is_empty), || format!("{links:?}"))
    });
    direct(world)?;
    reaches(&world.frontend, &world.orders)?;
    reaches(&world.ledger, &world.cart)?;
    let loss = ping.stop();
    ensure(loss.lost.is_empty(), || {
        format!("lost {:?} of {}", loss.lost, loss.answered)
    })?;
    Ok(format!(
        "CrossSubnet, then Never: {} pings answered, none lost",
        loss.answered
    ))
}

/// A pod's route that gets another metric, be it the one that a network plugin has made or by the
/// configuration, loses no packet.
pub fn a_change_of_metric_loses_no_packet(world: &mut World) -> Seen {
    let node = &world.nodes[0];
    let pings = world
        .cart
        .addresses
        .map(|address| Ping::start(&world.orders.netns, address));
    let metrics = |wanted: &str| {
        eventually("the metric", || {
            let routes = ["-4", "-6"].map(|family| {
                let routes = node
                    .netns
                    .run(&format!("ip {family} route show dev cali-cart"));
                let routes = routes.lines().filter(|line| !line.contains("proto kernel"));
                routes.map(str::to_owned).collect::<Vec<_>>()
            });
            let right = |routes: &Vec<String>| {
                !routes.is_empty() && routes.iter().all(|route| route.contains(wanted))
            };
            ensure(routes.iter().all(right), || format!("{routes:?}"))
        })
    };
    // As the plugin makes it before Cairn hears of the pod.
    let [own, _] = world.cart.addresses;
    node.netns
        .run(&format!("ip route add {own} dev cali-cart metric 0"));
    node.cairnctl("resync")
        .output()
        .map_err(|error| error.to_string())?;
    metrics("metric 1024");
    let settings = "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\n\
         metadata: {name: default}\n\
         spec: {ipv4NormalRoutePriority: 700, ipv6NormalRoutePriority: 700}\n";
    std::fs::write(node.document("felix.yaml"), settings).map_err(|error| error.to_string())?;
    metrics("metric 700");
    let mut answered = 0;
    for ping in pings {
        let loss = ping.stop();
        ensure(loss.lost.is_empty(), || format!("lost {:?}", loss.lost))?;
        answered += loss.answered;
    }
    Ok(format!(
        "metric 0 to 1024 and 700: {answered} pings answered, none lost"
    ))
}

/// Waits until the routes between the nodes lead over the underlay.
fn direct(world: &World) -> Result<(), String> {
    for (node, block, other) in [(0, 2, 12), (1, 1, 11)] {
        let node = world.nodes.get(node).ok_or("there are two nodes")?;
        for (block, via) in [
            (
                format!("10.244.{block}.0/26"),
                format!("via 172.30.0.{other} dev eth0"),
            ),
            (
                format!("fd00:244::{block}:0/122"),
                format!("via fd00:30::{other} dev eth0"),
            ),
        ] {
            eventually("the route over the underlay", || {
                let route = node.netns.run(&format!(
                    "ip {} route show {block}",
                    if block.contains(':') { "-6" } else { "-4" }
                ));
                ensure(route.contains(&via), || {
                    format!("{block} {via}, not {route}")
                })
            });
        }
        node.converged();
    }
    Ok(())
}

/// A pod reaches a host outside, which knows the way back.
pub fn pods_reach_a_host_outside(world: &mut World) -> Seen {
    for address in World::OUTSIDE {
        let answered = ping::once(&world.frontend.netns, address);
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

/// What is changed behind Cairn's back is put right.
pub fn drift_is_repaired(world: &mut World, drift: Drift) -> Seen {
    let [node, _] = &world.nodes;
    let look = || (node.kernel_state(), node.netns.run(PROXY_ARP));
    let before = look();
    let what = drift.make(node);
    ensure(look() != before, || format!("{what}, but nothing differs"))?;
    let ((), took) = eventually("the repair", || {
        let after = look();
        ensure(after == before, || {
            format!("{what}; before:\n{before:?}\nafter:\n{after:?}")
        })
    });
    Ok(format!("{what}; repaired after {}", ms(took)))
}

const PROXY_ARP: &str = "sysctl -n net.ipv4.conf.cali-frontend.proxy_arp";

/// An address that moves to another pod is reached there, and the rest is not disturbed.
pub fn an_address_moves_between_pods(world: &mut World) -> Seen {
    let [address, _] = world.frontend.addresses;
    let bystander = Ping::start(&world.orders.netns, world.cart.addresses[0]);
    ensure(
        world.orders.ask(address).as_deref() == Some("frontend"),
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
        let answer = world.orders.ask(address);
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

/// Reading the kernel back writes nothing where all is right: no link, address, route, rule, neighbour
/// or forwarding entry.
pub fn reading_back_writes_nothing(world: &mut World) -> Seen {
    const MARK: &str = "198.51.100.7";
    let node = &world.nodes[0];
    let told = node.document("told").with_extension("log");
    let mut monitor = node
        .netns
        .command("ip")
        .args(["-o", "monitor", "all"])
        .stdout(std::fs::File::create(&told).map_err(|error| error.to_string())?)
        .spawn()
        .map_err(|error| error.to_string())?;
    let lines = || {
        let text = std::fs::read_to_string(&told).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let count = |lines: &[String]| lines.iter().filter(|line| line.contains(MARK)).count();
    // It listens from the first mark that it tells on.
    eventually("the monitor", || {
        let mark = format!("ip route replace blackhole {MARK}");
        node.netns.run(&mark);
        node.netns.run(&format!("ip route del blackhole {MARK}"));
        ensure(count(&lines()) >= 2, || "nothing told".to_owned())
    });
    let resyncs = || {
        let status = node.status();
        let number = status.pointer("/calc/properties/Resyncs");
        number
            .and_then(serde_json::Value::as_u64)
            .unwrap_or_default()
    };
    let start = resyncs();
    eventually("three readings", || {
        let read = resyncs() - start;
        ensure(read >= 3, || format!("{read} readings"))
    });
    let marks = count(&lines());
    node.netns
        .run(&format!("ip route replace blackhole {MARK}"));
    eventually("the end", || {
        ensure(count(&lines()) > marks, || "not told".to_owned())
    });
    monitor
        .kill()
        .and_then(|()| monitor.wait())
        .map_err(|error| error.to_string())?;
    // What the kernel does with neighbours of its own is its own affair.
    let passing = [
        "STALE",
        "REACHABLE",
        "DELAY",
        "PROBE",
        "FAILED",
        "INCOMPLETE",
    ];
    let written: Vec<String> = lines()
        .into_iter()
        .filter(|line| !line.contains(MARK) && !passing.iter().any(|state| line.contains(state)))
        .collect();
    node.netns.run(&format!("ip route del blackhole {MARK}"));
    ensure(written.is_empty(), || written.join("\n"))?;
    Ok("three readings, nothing written".to_owned())
}

/// `cairnctl diff` tells what is not as it should be, and why, and nothing else.
pub fn differences_are_told_with_their_reason(world: &mut World) -> Seen {
    let node = &world.nodes[0];
    let diff = |arguments: &str| {
        let (success, text) = match node.cairnctl(arguments).output() {
            Ok(output) => (output.status.success(), output.stdout),
            Err(error) => (false, error.to_string().into_bytes()),
        };
        (success, String::from_utf8_lossy(&text).into_owned())
    };
    let clean = (true, "all is as it should be\n".to_owned());
    ensure(diff("diff") == clean, || format!("{:?}", diff("diff")))?;
    let taken = "10.244.1.2/32 dev eth0 metric 1024";
    node.netns
        .run(&format!("ip route replace {taken} proto static"));
    let resync = || node.cairnctl("resync").output();
    resync().map_err(|error| error.to_string())?;
    let (lines, _) = eventually("the difference", || {
        let (success, text) = diff("diff");
        let told = text.contains("another program's route") && text.lines().count() == 2;
        ensure(told && !success, || text.clone())?;
        Ok(text)
    });
    let (_, json) = diff("--json diff");
    let rows: Vec<serde_json::Value> =
        serde_json::from_str(&json).map_err(|error| error.to_string())?;
    let states: Vec<_> = rows
        .iter()
        .map(|row| (row.get("type"), row.get("state")))
        .collect();
    ensure(
        states == [(Some(&"kernel-route".into()), Some(&"failing".into()))],
        || json.clone(),
    )?;
    node.netns
        .run(&format!("ip route del {taken} proto static"));
    resync().map_err(|error| error.to_string())?;
    eventually("no difference", || {
        ensure(diff("diff") == clean, || format!("{:?}", diff("diff")))
    });
    Ok(format!("\n{lines}"))
}

/// Routes to workloads may be in a table of their own, to which a rule leads; configured otherwise,
/// they come back without a gap.
pub fn workloads_may_have_a_table_of_their_own(world: &mut World) -> Seen {
    let tables = |node: &Node| {
        let shown = node.netns.run("ip route show table all type unicast");
        let routes = |is_there: fn(&str) -> bool| {
            let all = shown.lines().filter(|line| line.contains("dev cali"));
            let all = all.filter(|line| !line.contains("proto kernel"));
            all.filter(|line| is_there(line)).count()
        };
        let own = routes(|line| line.contains("table 100"));
        let main = routes(|line| !line.contains("table "));
        let rules = ["-4", "-6"].map(|family| {
            let shown = node.netns.run(&format!("ip {family} rule show"));
            shown.lines().filter(|line| line.starts_with("90:")).count()
        });
        (own, main, rules.iter().sum::<usize>())
    };
    let node = &mut world.nodes[0];
    let (_, workloads, _) = tables(node);
    ensure(tables(node) == (0, workloads, 0), || {
        format!("at the start {:?}", tables(node))
    })?;
    let ping = Ping::start(&world.ledger.netns, world.cart.addresses[0]);
    node.stop();
    // The table stays the helper's as long as something is to be removed from it.
    node.configure_also("privhelper.toml", "second_table = 100\n");
    let own = "workload_table = 'second'\nsecond_table_rule_priority = 90\n";
    node.configure_also("calc.toml", own);
    node.start();
    node.converged();
    let moved = tables(node);
    ensure(moved == (workloads, 0, 2), || format!("moved: {moved:?}"))?;
    node.stop();
    node.configure();
    node.configure_also("privhelper.toml", "second_table = 100\n");
    node.start();
    node.converged();
    let back = tables(node);
    ensure(back == (0, workloads, 0), || format!("back: {back:?}"))?;
    let loss = ping.stop();
    ensure(loss.lost.is_empty(), || format!("lost {:?}", loss.lost))?;
    Ok(format!(
        "{workloads} routes went to table 100 with its rules and came back; no packet lost"
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
