//! The simulator's runs: many scripts, whether they do enough, and whether it would notice.
//!
//! `CAIRN_SIM_RUNS` says how many scripts, `CAIRN_SIM_SEED` runs one.

use std::env;

use ipc_proto::Tunnel;
use sim::{
    Bug, Script, Setup, Tally, campaign, replay, run,
    step::{Doc, Motion, Slot, Step},
};
use supervisor::machine::Child;

/// How many scripts there are unless `CAIRN_SIM_RUNS` says otherwise.
const RUNS: u64 = 100_000;
/// Within how many scripts a seeded bug must be found.
const RUNS_UNTIL_FOUND: u64 = 5_000;
/// Fewer scripts may do too little by chance.
const ENOUGH: u64 = 1_000;
/// How often something must happen in a thousand scripts: half as often as it does, or less.
const AT_LEAST: [(&str, u64); 48] = [
    ("acknowledgements late", 70),
    ("addresses of others on workloads' links", 30),
    ("answers overdue", 30),
    ("applies put off", 500),
    ("batches", 7_000),
    ("batches refused", 20),
    ("calc crashes", 200),
    ("cleared BPF route", 1_700),
    ("cleared forwarding entry", 110),
    ("cleared kernel route", 1_200),
    ("cleared link address", 250),
    ("cleared neighbour", 450),
    ("cleared tunnel device", 110),
    ("connections cut", 150),
    ("documents garbled", 240),
    ("drift", 900),
    ("drift repaired", 700),
    ("ended in sync", 500),
    ("ended with a peering address that somebody has", 5),
    ("ended with peers", 160),
    ("ended with rivals", 50),
    ("ended with routes from peers that win", 40),
    ("ended with what cannot be", 100),
    ("faults hit", 800),
    ("forgot flows", 100),
    ("gaps noticed", 25),
    ("hangs", 60),
    ("helper crashes", 360),
    ("helper died among writes", 140),
    ("killed by the watchdog", 60),
    ("kinds read back as known", 2_000),
    ("kinds read back otherwise than known", 240),
    ("links down", 360),
    ("links re-created", 250),
    ("links removed", 400),
    ("links renamed", 60),
    ("not tried", 4),
    ("replies lost", 20),
    ("resyncs by the supervisor", 500),
    ("set BPF route", 19_000),
    ("set kernel route", 5_900),
    ("set neighbour", 4_500),
    ("set tunnel device", 900),
    ("routes from peers", 300),
    ("set link address", 1_000),
    ("sleeps", 60),
    ("supervisor crashes", 40),
    ("workloads moved", 1_000),
];

#[expect(
    clippy::expect_used,
    reason = "a test that cannot go on says where it stopped"
)]
fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

fn check_enough(tally: &Tally, runs: u64) {
    let scant: Vec<_> = AT_LEAST
        .into_iter()
        .filter(|(what, least)| tally.of(what) < least * runs / 1_000)
        .collect();
    assert!(scant.is_empty(), "too little of {scant:?} in\n{tally}");
}

#[test]
fn whatever_happens_the_rules_hold_and_the_end_is_right() {
    let runs = number("CAIRN_SIM_RUNS").unwrap_or(RUNS);
    let seed = number("CAIRN_SIM_SEED");
    let seeds = seed.map_or(0..runs, |seed| seed..seed + 1);
    match campaign(seeds, None) {
        Ok(tally) => {
            println!("{tally}");
            if seed.is_none() && runs >= ENOUGH {
                check_enough(&tally, runs);
            }
        }
        Err(found) => panic!("{found}"),
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..50 {
        assert_eq!(run(seed, None), run(seed, None));
    }
}

#[test]
fn each_seeded_bug_is_found_and_nothing_else() {
    for bug in Bug::ALL {
        match campaign(0..RUNS_UNTIL_FOUND, Some(bug)) {
            Ok(_) => panic!("{bug:?} is not found"),
            Err(found) => {
                println!("{bug:?}: {found}");
                assert_eq!(replay(&found.script, None).err(), None, "{bug:?}: {found}");
            }
        }
    }
}

#[test]
fn a_tunnel_device_that_was_made_anew_goes_away_when_it_is_not_wanted() {
    let (pool, other_port) = (Doc::Pool(0), Step::Document(Doc::Config, Some(1 << 7)));
    let steps = vec![
        Step::Document(Doc::Node(0), Some(0)),
        Step::Document(pool, Some(1)),
        Step::Flow(3),
        Step::Fail(1, true),
        other_port,
        Step::Flow(2),
        Step::Document(pool, None),
    ];
    passes(steps);
}

#[test]
fn a_tunnel_device_that_somebody_removes_is_made_again() {
    let steps = vec![
        Step::Document(Doc::Node(0), Some(0)),
        Step::Document(Doc::Pool(0), Some(1)),
        Step::Flow(4),
        Step::Link(Slot::Tunnel(Tunnel::VxlanV4), Motion::Remove),
    ];
    passes(steps);
}

#[test]
fn a_route_whose_source_goes_away_is_not_taken_for_there() {
    let pod = Slot::Cali(3);
    let steps = vec![
        Step::Document(Doc::Config, Some(64)),
        Step::Flow(1),
        Step::Link(pod, Motion::Plug),
        Step::Link(pod, Motion::Name),
        Step::Document(Doc::Workload(3), Some(15)),
        Step::Flow(4),
        Step::Link(Slot::Uplink, Motion::Remove),
    ];
    passes(steps);
}

#[test]
fn an_address_that_only_a_pool_has_had_a_pod_before() {
    let pod = Slot::Cali(2);
    let steps = vec![
        Step::Link(pod, Motion::Add),
        Step::Document(Doc::Pool(1), Some(5)),
        Step::Document(Doc::Workload(2), Some(10)),
        Step::Flow(4),
        Step::Crash(Child::Calc),
        Step::Flow(4),
        Step::Link(pod, Motion::Remove),
        Step::Document(Doc::Workload(2), None),
        Step::Document(Doc::Block(6), Some(50)),
        Step::Wait(127),
        Step::Flow(1),
        Step::Link(pod, Motion::Plug),
        Step::Link(pod, Motion::Name),
        Step::Document(Doc::Workload(2), Some(10)),
    ];
    let setup = Setup {
        bpf_max_entries: 120,
        max_steps: 11,
        narrow: false,
        throttled: false,
    };
    assert_eq!(replay(&Script { setup, steps }, None).err(), None);
}

#[test]
fn what_was_heard_before_a_reading_is_older_than_it() {
    let mut steps = vec![
        Step::Link(Slot::Cali(1), Motion::Add),
        Step::Link(Slot::Cali(3), Motion::Add),
    ];
    steps.extend((0..4).map(|n| Step::Document(Doc::Node(n), Some(0))));
    steps.extend([
        Step::Document(Doc::Pool(0), Some(5)),
        Step::Document(Doc::Workload(1), Some(5)),
        Step::Document(Doc::Workload(3), Some(15)),
        Step::Flow(5),
        Step::Link(Slot::Cali(1), Motion::Rename(5)),
        Step::Flow(4),
        Step::Link(Slot::Cali(3), Motion::Down),
        Step::Flow(1),
        Step::Link(Slot::Cali(3), Motion::Up),
    ]);
    let setup = Setup {
        bpf_max_entries: 120,
        max_steps: 11,
        narrow: false,
        throttled: true,
    };
    assert_eq!(replay(&Script { setup, steps }, None).err(), None);
}

fn passes(steps: Vec<Step>) {
    let setup = Setup {
        bpf_max_entries: 120,
        max_steps: 200,
        narrow: false,
        throttled: false,
    };
    assert_eq!(replay(&Script { setup, steps }, None).err(), None);
}
