//! By which ways packets go, and that a change of way loses none.
#![expect(
    clippy::missing_errors_doc,
    reason = "a claim's error is the part of it that does not hold; it panics where the world breaks"
)]

use super::{Seen, ensure, reaches, tunnelled};
use crate::{
    ping::Ping,
    wait::eventually,
    world::{Node, World},
};

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
    node.resync();
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
