//! When what others change is read, what is counted of it, and what is told.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn route(metric: u32) -> Op {
    let key = RouteKey::new(Table::Main, "10.9.0.0/16".parse().unwrap(), metric);
    Op::KernelRoute(
        key,
        Some(Box::new(KernelRoute {
            kind: RouteKind::Blackhole,
            protocol: Protocol::Safe,
            source: None,
            mtu: None,
        })),
    )
}

/// A bench that has one route, as it should be, and was read a long time ago.
fn settled() -> Bench {
    let mut bench = Bench::new(vec![observed(route(0))]);
    bench.want(&route(0));
    assert_eq!(bench.poll(), None);
    bench.now += 100 * SECOND;
    bench
}

/// Has the helper hear of others, and returns how long it takes until all is read.
fn heard(bench: &mut Bench) -> Duration {
    bench.handle(Input::Drift);
    let start = bench.now;
    if let Some(at) = bench.calc.poll_timeout().filter(|at| *at > bench.now) {
        assert_eq!(bench.poll(), None);
        bench.now = at;
    }
    bench.greet();
    bench.now - start
}

#[test]
fn what_others_change_is_read_at_once_and_then_a_second_after_the_last_reading() {
    let mut bench = settled();
    assert_eq!(heard(&mut bench), Duration::ZERO);
    bench.answer(Vec::new());
    assert_eq!(bench.ops(), [route(0)]);
    // It is not read while a change is in flight.
    bench.handle(Input::Drift);
    bench.now += SECOND;
    assert_eq!(bench.poll(), None);
    bench.ack(Vec::new());
    bench.welcome(vec![observed(route(0)), observed(route(7))]);
    assert_eq!(bench.ops().len(), 1);
    bench.ack(Vec::new());
    assert_eq!(heard(&mut bench), SECOND);
    bench.answer(vec![observed(route(0))]);
    // Of many notes one reading comes.
    bench.now += SECOND;
    assert_eq!(bench.poll(), None);
    assert_eq!(bench.calc.reading(), None);
}

#[test]
fn readings_in_vain_come_ever_more_rarely_until_one_finds_something_or_it_is_quiet() {
    let mut bench = settled();
    let right = || vec![observed(route(0))];
    let mut pauses = Vec::new();
    for _ in 0..9 {
        pauses.push(heard(&mut bench).as_secs());
        bench.answer(right());
    }
    assert_eq!(pauses, [0, 2, 4, 8, 16, 32, 60, 60, 60]);
    // Something is found.
    assert_eq!(heard(&mut bench).as_secs(), 60);
    bench.answer(Vec::new());
    assert_eq!(bench.ops(), [route(0)]);
    bench.ack(Vec::new());
    assert_eq!(heard(&mut bench), SECOND);
    bench.answer(right());
    assert_eq!(heard(&mut bench), 2 * SECOND);
    bench.answer(right());
    // Nobody changes anything for a while.
    bench.now += 10 * SECOND;
    assert_eq!(heard(&mut bench), Duration::ZERO);
    bench.answer(right());
    assert_eq!(heard(&mut bench), 2 * SECOND);
}

#[test]
fn what_a_reading_finds_is_counted_by_kind_and_told_once_for_each_burst() {
    let mut bench = settled();
    let route_drift = |count| Drift::from([(view::Kind::KernelRoutes, count)]);
    assert!(bench.calc.drift().is_empty(), "nothing was known before");
    let entry = || Op::BpfRoute("10.8.0.0/16".parse().unwrap(), Some(BpfRoute::default()));
    for (round, (read, total)) in [
        // Removed, changed, and one more beside it.
        (Vec::new(), 1),
        (vec![observed(route(0)), observed(route(7))], 2),
        (vec![observed(route(0))], 2),
        (vec![observed(route(0)), observed(entry())], 2),
    ]
    .into_iter()
    .enumerate()
    {
        heard(&mut bench);
        bench.answer(read);
        if !bench.ops().is_empty() {
            bench.ack(Vec::new());
        }
        let routes = bench.calc.drift().get(&view::Kind::KernelRoutes);
        assert_eq!(routes, Some(&total), "{round}");
    }
    let entries = Drift::from([(view::Kind::BpfRoutes, 1)]);
    assert_eq!(bench.drift, [route_drift(1), entries]);
}

#[test]
fn what_the_kernel_dropped_with_an_interface_was_not_changed_by_others() {
    let link = |up| Observed::Link(state(7, up));
    let key = NeighbourKey {
        link: super::link(7),
        address: "10.1.0.9".parse().unwrap(),
    };
    let neighbour = Op::Neighbour(key, Some(Mac([2; 6])));
    let mut bench = Bench::new(vec![link(true), observed(neighbour.clone())]);
    bench.want(&neighbour);
    assert_eq!(bench.poll(), None);
    for read in [vec![link(false)], vec![]] {
        bench.handle(Input::Resync);
        bench.welcome(read);
        if !bench.ops().is_empty() {
            bench.ack(Vec::new());
        }
    }
    assert!(bench.calc.drift().is_empty(), "{:?}", bench.calc.drift());
}
