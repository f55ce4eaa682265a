//! The claims of the demo, each held on its own: the real processes, kernel and packets.
#![expect(clippy::panic, reason = "a test that misses says what")]

use tests::{
    claims::{self, Drift},
    world::{self, Process, World},
};

/// Shows that a claim holds.
#[track_caller]
fn holds(seen: claims::Seen) {
    if let Err(miss) = seen {
        world::print_logs();
        panic!("{miss}");
    }
}

fn started(name: &str, claim: impl FnOnce(&mut World) -> claims::Seen) {
    world::test(name, |world| {
        holds(claims::comes_up(world));
        holds(claim(world));
    });
}

#[test]
fn pods_of_a_node_reach_each_other() {
    started(
        "pods_of_a_node_reach_each_other",
        claims::pods_of_a_node_reach_each_other,
    );
}

#[test]
fn packets_between_pods_of_a_node_go_straight() {
    started(
        "packets_between_pods_of_a_node_go_straight",
        claims::packets_between_pods_of_a_node_go_straight,
    );
}

#[test]
fn pods_of_different_nodes_reach_each_other_through_vxlan() {
    started(
        "pods_of_different_nodes_reach_each_other_through_vxlan",
        claims::pods_of_different_nodes_reach_each_other_through_vxlan,
    );
}

#[test]
fn pods_reach_each_other_without_the_tunnel() {
    started(
        "pods_reach_each_other_without_the_tunnel",
        claims::pods_reach_each_other_without_the_tunnel,
    );
}

#[test]
fn pods_reach_a_host_outside() {
    started(
        "pods_reach_a_host_outside",
        claims::pods_reach_a_host_outside,
    );
}

#[test]
fn a_killed_process_loses_no_packet() {
    started("a_killed_process_loses_no_packet", |world| {
        for process in [
            Process::Helper,
            Process::Calc,
            Process::Supervisor,
            Process::Helper,
        ] {
            claims::a_killed_process_loses_no_packet(world, process)?;
        }
        Ok(String::new())
    });
}

#[test]
fn killing_all_at_once_loses_no_packet() {
    started("killing_all_at_once_loses_no_packet", |world| {
        claims::killing_all_at_once_loses_no_packet(world)?;
        claims::killing_all_at_once_loses_no_packet(world)
    });
}

#[test]
fn drift_is_repaired() {
    started("drift_is_repaired", |world| {
        for drift in Drift::ALL {
            claims::drift_is_repaired(world, drift)?;
        }
        Ok(String::new())
    });
}

#[test]
fn an_address_moves_between_pods() {
    started(
        "an_address_moves_between_pods",
        claims::an_address_moves_between_pods,
    );
}

#[test]
fn a_stop_leaves_forwarding_in_place() {
    started(
        "a_stop_leaves_forwarding_in_place",
        claims::a_stop_leaves_forwarding_in_place,
    );
}

#[test]
fn workloads_may_have_a_table_of_their_own() {
    started(
        "workloads_may_have_a_table_of_their_own",
        claims::workloads_may_have_a_table_of_their_own,
    );
}

#[test]
fn differences_are_told_with_their_reason() {
    started(
        "differences_are_told_with_their_reason",
        claims::differences_are_told_with_their_reason,
    );
}

#[test]
fn a_change_of_metric_loses_no_packet() {
    started(
        "a_change_of_metric_loses_no_packet",
        claims::a_change_of_metric_loses_no_packet,
    );
}

#[test]
fn reading_back_writes_nothing() {
    started(
        "reading_back_writes_nothing",
        claims::reading_back_writes_nothing,
    );
}
