//! Shows Cairn at work in a world of two nodes and four pods; with `--shell`, leaves you in it.
//! Everything happens in namespaces that
//! take all with them when this process ends, however it ends.
#![expect(clippy::print_stdout, reason = "it is there to be read")]
#![expect(
    clippy::expect_used,
    reason = "a demo that cannot go on says where it stopped"
)]

use std::{
    ffi::OsString,
    process::{Command, ExitCode},
};

use tests::{
    claims::{self, Drift, Seen},
    isolate,
    world::{self, Node, Process, World},
};

fn main() -> ExitCode {
    if !isolate::inside() {
        if !nix::unistd::geteuid().is_root() {
            println!("demo: needs root, to make network namespaces");
            return ExitCode::FAILURE;
        }
        return match isolate::rerun() {
            Ok(status) if status.success() => ExitCode::SUCCESS,
            Ok(_) => ExitCode::FAILURE,
            Err(error) => {
                println!("demo: cannot make namespaces: {error}");
                ExitCode::FAILURE
            }
        };
    }
    // A panic is a miss as well; it says which.
    world::show_logs_on_panic(true);
    match story() {
        Ok(()) => {
            println!("demo: ok");
            ExitCode::SUCCESS
        }
        Err(miss) => {
            world::print_logs();
            println!("demo: MISSED: {miss}");
            ExitCode::FAILURE
        }
    }
}

fn story() -> Result<(), String> {
    println!("Two nodes, two pods on each, a VXLAN pool; Cairn's three processes on each node.\n");
    let mut world = World::build();
    tell("Cairn starts", claims::comes_up(&mut world))?;
    if std::env::args().any(|argument| argument == "--shell") {
        return explore();
    }
    tell(
        "pods of one node",
        claims::pods_of_a_node_reach_each_other(&mut world),
    )?;
    tell(
        "the short way",
        claims::packets_between_pods_of_a_node_go_straight(&mut world),
    )?;
    let through = claims::pods_of_different_nodes_reach_each_other_through_vxlan(&mut world);
    tell("pods of different nodes", through)?;
    tell(
        "a host outside",
        claims::pods_reach_a_host_outside(&mut world),
    )?;
    show(&world.nodes[0], "routes");
    show(&world.nodes[0], "routes --kernel");
    show(&world.nodes[0], "routes --programs");
    for process in [Process::Helper, Process::Calc, Process::Supervisor] {
        let title = format!("kill -9 of the {process:?} under ping");
        tell(
            &title,
            claims::a_killed_process_loses_no_packet(&mut world, process),
        )?;
    }
    tell(
        "kill -9 of all three at once",
        claims::killing_all_at_once_loses_no_packet(&mut world),
    )?;
    for drift in Drift::ALL {
        tell(
            "behind Cairn's back",
            claims::drift_is_repaired(&mut world, drift),
        )?;
    }
    tell(
        "what differs, and why, as cairnctl diff tells",
        claims::differences_are_told_with_their_reason(&mut world),
    )?;
    tell(
        "an address moves",
        claims::an_address_moves_between_pods(&mut world),
    )?;
    show(&world.nodes[0], "status");
    tell(
        "a clean stop",
        claims::a_stop_leaves_forwarding_in_place(&mut world),
    )
}

/// Gives the reader a shell in the world, for as long as it runs.
fn explore() -> Result<(), String> {
    println!("`nsenter --net=/run/netns/node-1` enters a node or pod, and");
    println!("`cairnctl --runtime-dir /run/node-1/run routes` asks Cairn there; `exit` ends all.");
    let mut path = OsString::from("/run/cairn-bin:");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let shell = Command::new("sh").env("PATH", path).status();
    shell
        .map(drop)
        .map_err(|error| format!("cannot run sh: {error}"))
}

fn tell(title: &str, seen: Seen) -> Result<(), String> {
    match seen {
        Ok(seen) => println!("* {title}: {seen}"),
        Err(miss) => return Err(format!("{title}: {miss}")),
    }
    Ok(())
}

fn show(node: &Node, command: &str) {
    let output = node.cairnctl(command).output().expect("cairnctl runs");
    println!(
        "\n{}$ cairnctl {command}\n{}",
        node.name,
        String::from_utf8_lossy(&output.stdout)
    );
}
