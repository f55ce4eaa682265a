//! The kernel's routes are left to others.

use super::*;

/// What is in the kernel, though nobody wants it.
fn stale(present: bool) -> Op {
    let Op::KernelRoute(key, value) = route(present) else {
        panic!("a route is a route");
    };
    Op::KernelRoute(RouteKey { metric: 7, ..key }, value)
}

#[test]
fn while_routes_are_left_to_others_none_is_set_cleared_swept_or_shown() {
    let mut bench = Bench::starting();
    bench.handle(Input::RouteSync(false));
    bench.handle(Input::InSync { complete: true });
    bench.connect(vec![observed(stale(true))]);
    bench.want(&route(true));
    assert_eq!(bench.poll(), None);
    bench.want(&bpf(9, Some(1)));
    assert_eq!(bench.ops(), [bpf(9, Some(1))], "the rest goes on");
    bench.ack(Vec::new());
    assert_eq!(bench.poll(), None);
    assert_eq!(bench.rows(view::Kind::KernelRoutes, 0, 9), []);
    let counts = bench.calc.counts(view::Kind::KernelRoutes);
    assert_eq!(counts, Counts::default());
    assert!(bench.calc.is_in_sync());
    // Nor does a reading find that anything has changed.
    bench.handle(Input::Resync);
    bench.welcome(vec![observed(bpf(9, Some(1)))]);
    assert_eq!(bench.poll(), None);
    assert_eq!(bench.drift, []);

    bench.handle(Input::RouteSync(true));
    bench.welcome(vec![observed(stale(true)), observed(bpf(9, Some(1)))]);
    assert_eq!(bench.ops(), [route(true), stale(false)], "they come back");
}

#[test]
fn what_was_made_before_stays_when_routes_are_left_to_others() {
    let mut bench = Bench::new(Vec::new());
    bench.want(&route(true));
    bench.ops();
    bench.ack(Vec::new());
    bench.handle(Input::RouteSync(false));
    bench.want(&route(false));
    bench.welcome(vec![observed(route(true))]);
    assert_eq!(bench.poll(), None);
    assert_eq!(bench.calc.poll_timeout(), None);
    assert!(bench.calc.is_in_sync());
    // What others, or we, did with them meanwhile is nobody's misdeed.
    bench.handle(Input::RouteSync(true));
    bench.welcome(vec![observed(route(true)), observed(stale(true))]);
    assert_eq!(bench.drift, []);
    assert_eq!(bench.ops(), [route(false), stale(false)]);
    bench.ack(Vec::new());
    bench.handle(Input::RouteSync(false));
    bench.welcome(Vec::new());
    assert_eq!(bench.poll(), None);
    // Said again it is no news.
    bench.handle(Input::RouteSync(false));
    assert_eq!(bench.poll(), None);
}
