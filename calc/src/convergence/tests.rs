#![expect(
    clippy::disallowed_methods,
    reason = "any instant will do to start with"
)]

use super::*;

fn key(node: &str) -> WorkloadKey {
    WorkloadKey {
        node: node.to_owned(),
        orchestrator: "k8s".to_owned(),
        workload: "default/vm".to_owned(),
        endpoint: "eth0".to_owned(),
    }
}

fn endpoint(node: &str, migration: MigrationRole, nets: usize) -> Event {
    let net = "10.65.0.9/32".parse().unwrap();
    let workload = Workload {
        interface: "cali1".parse().unwrap(),
        nets: vec![net; nets],
        mac: None,
        skip_ingress_redirect: false,
        bgp_peer: false,
        migration,
    };
    Event::Workload(key(node), Some(workload))
}

fn settings(seconds: u64) -> Event {
    Event::Config(Config {
        migration_convergence: Duration::from_secs(seconds),
        ..Config::default()
    })
}

/// What is heard at which second, and how the calculator hears it.
fn check(script: &[(u64, Event, Event)], over: &[(u64, &[Event])]) {
    let start = Instant::now();
    let at = |second| start + Duration::from_secs(second);
    let mut convergence = Convergence::new("here".to_owned());
    convergence.handle(start, settings(30));
    for (second, event, heard) in script {
        assert_eq!(convergence.handle(at(*second), event.clone()), *heard);
    }
    for (second, events) in over {
        let next = convergence.poll_timeout();
        assert_eq!(
            next.is_some_and(|next| next <= at(*second)),
            !events.is_empty()
        );
        assert_eq!(convergence.poll(at(*second)), *events, "at {second}");
    }
    assert_eq!(convergence.poll_timeout(), None);
}

#[test]
fn a_target_counts_as_moved_for_a_while_after_its_migration() {
    use MigrationRole::{Moved, None, Target};
    let [as_is, moved, more] = [
        endpoint("here", None, 1),
        endpoint("here", Moved, 1),
        endpoint("here", None, 2),
    ];
    let target = endpoint("here", Target, 1);
    check(
        &[
            (0, target.clone(), target),
            (5, as_is.clone(), moved),
            (20, more.clone(), endpoint("here", Moved, 2)),
        ],
        &[(34, &[]), (35, std::slice::from_ref(&more)), (99, &[])],
    );
}

#[test]
fn who_moves_on_or_goes_or_is_elsewhere_or_never_was_a_target_has_not_moved_here() {
    use MigrationRole::{Moved, None, Source, Target};
    let target = endpoint("here", Target, 1);
    let (as_is, moved) = (endpoint("here", None, 1), endpoint("here", Moved, 1));
    for (next, then) in [
        (endpoint("here", Source, 1), as_is.clone()),
        (Event::Workload(key("here"), Option::None), as_is.clone()),
    ] {
        check(
            &[
                (0, target.clone(), target.clone()),
                (1, as_is.clone(), moved.clone()),
                (2, next.clone(), next),
                (3, then.clone(), then),
            ],
            &[(99, &[])],
        );
    }
    // Once more a target, and that ends later.
    check(
        &[
            (0, target.clone(), target.clone()),
            (1, as_is.clone(), moved.clone()),
            (2, target.clone(), target.clone()),
            (3, as_is.clone(), moved),
        ],
        &[(32, &[]), (33, std::slice::from_ref(&as_is))],
    );
    check(&[(0, as_is.clone(), as_is)], &[(99, &[])]);
    let [elsewhere, ended] = [Target, None].map(|role| endpoint("there", role, 1));
    check(
        &[(0, elsewhere.clone(), elsewhere), (1, ended.clone(), ended)],
        &[(99, &[])],
    );
}
