//! The simulator's runs: many scripts, and whether it would notice.

use std::{env, ops::Range};

use tests::sim::{Bug, campaign, run};

/// How many scripts are run unless `CAIRN_SIM_RUNS` says otherwise.
const RUNS: u64 = 20_000;

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().unwrap())
}

fn seeds() -> Range<u64> {
    match number("CAIRN_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CAIRN_SIM_RUNS").unwrap_or(RUNS),
    }
}

#[test]
fn whatever_happens_the_rules_hold_and_the_end_is_right() {
    match campaign(seeds(), None) {
        Ok(tally) => println!("{tally}"),
        Err(text) => panic!("{text}"),
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..20 {
        assert_eq!(run(seed, None), run(seed, None));
    }
}

#[test]
fn each_seeded_bug_is_found() {
    for bug in Bug::ALL {
        match campaign(0..5000, Some(bug)) {
            Ok(_) => panic!("{bug:?} is not found"),
            Err(text) => println!("{bug:?}: {text}"),
        }
    }
}
