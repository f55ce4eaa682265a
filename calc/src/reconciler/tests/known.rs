//! Readings of which a part is only said to be as it is known to be.

use super::*;

fn as_known() -> Vec<Observed> {
    let links = [Observed::Link(state(7, true))];
    let kinds = [Many::BpfV4, Many::KernelRoutes].map(Observed::AsKnown);
    links.into_iter().chain(kinds).collect()
}

fn standing() -> Bench {
    let mut bench = Bench::new(vec![
        Observed::Link(state(7, true)),
        observed(bpf(1, Some(1))),
        observed(route(true)),
    ]);
    bench.want(&bpf(1, Some(1)));
    bench.want(&route(true));
    assert_eq!(bench.poll(), None);
    bench
}

#[test]
fn what_is_known_and_so_is_not_written() {
    let mut bench = standing();
    bench.handle(Input::Resync);
    let known = bench.greet();
    let mut sum = Sum::default();
    sum.add_observed(known.seed, &observed(bpf(1, Some(1))));
    assert_eq!(known.bpf_v4, Some(sum));
    let mut sum = Sum::default();
    sum.add_observed(known.seed, &observed(route(true)));
    assert_eq!(known.kernel_routes, Some(sum));
    assert_eq!(known.bpf_v6, None, "it has nothing");
    bench.answer(as_known());
    assert_eq!(bench.poll(), None);
    assert!(bench.calc.is_in_sync());
    assert_eq!(bench.drift, []);
    // The next sums are others.
    bench.handle(Input::Resync);
    assert_ne!(bench.greet(), known);
}

#[test]
fn nothing_is_known_before_the_first_reading_or_while_something_is_in_doubt() {
    let mut bench = Bench::starting();
    bench.want(&bpf(1, Some(1)));
    bench.handle(Input::Connected);
    let known = bench.greet();
    assert_eq!((known.bpf_v4, known.kernel_routes), (None, None));

    let mut bench = standing();
    bench.want(&bpf(1, Some(2)));
    assert_eq!(bench.ops(), [bpf(1, Some(2))]);
    bench.handle(Input::Connected);
    let known = bench.greet();
    assert_eq!(known.bpf_v4, None, "its batch was not answered");
    assert!(known.kernel_routes.is_some());
}

#[test]
fn what_is_in_doubt_since_it_was_known_is_read() {
    let mut bench = standing();
    bench.handle(Input::Resync);
    bench.greet();
    for up in [false, true] {
        bench.handle(Input::Link(LinkEvent::Set(state(7, up))));
    }
    bench.answer(as_known());
    assert_eq!(bench.calc.resyncs(), 1, "it counts for nothing");
    assert_eq!(bench.greet().kernel_routes, None);
    bench.answer(vec![
        Observed::Link(state(7, true)),
        Observed::AsKnown(Many::BpfV4),
        observed(route(true)),
    ]);
    assert_eq!(bench.poll(), None);
    assert!(bench.calc.is_in_sync());
}

#[test]
fn what_failed_and_what_nobody_wants_is_tried_again_after_it_was_read_as_known() {
    let mut bench = standing();
    bench.want(&bpf(1, Some(2)));
    bench.settle_failing();
    assert_eq!(bench.notices().len(), 1);
    assert_eq!(bench.poll(), None);
    bench.handle(Input::Resync);
    assert!(bench.greet().bpf_v4.is_some(), "the kernel has the old one");
    bench.answer(as_known());
    assert_eq!(bench.ops(), [bpf(1, Some(2))]);
}

#[test]
fn birds_routes_that_were_read_before_its_peers_were_known_are_read_again() {
    let Op::KernelRoute(key, Some(route)) = route(true) else {
        panic!("a route is a route");
    };
    let protocol = Protocol::Bird;
    let birds = Observed::KernelRoute(key, Some(KernelRoute { protocol, ..*route }));
    let read = || vec![Observed::Link(state(7, true)), birds.clone()];
    let as_known = || {
        let known = Observed::AsKnown(Many::KernelRoutes);
        vec![Observed::Link(state(7, true)), known]
    };
    for under_way in [false, true] {
        // The kernel is read before the datastore, and nobody wants them.
        let mut bench = Bench::starting();
        bench.calc = Reconciler::default().with_grace(Duration::ZERO);
        bench.connect(read());
        if under_way {
            bench.handle(Input::Resync);
            assert!(bench.greet().kernel_routes.is_some());
        }
        bench.handle(Input::BgpPeers([link(7)].into()));
        bench.handle(Input::InSync { complete: true });
        if under_way {
            bench.answer(as_known());
        }
        assert_eq!(bench.greet().kernel_routes, None);
        bench.answer(read());
        if under_way {
            // The one that was asked for meanwhile.
            bench.welcome(read());
        }
        assert_eq!(bench.ops(), []);
        assert!(bench.calc.is_in_sync());
    }
}

#[test]
fn birds_routes_to_its_peers_are_known_and_nobody_elses_business() {
    let Op::KernelRoute(key, Some(own)) = route(true) else {
        panic!("a route is a route");
    };
    let prefix = "10.8.0.0/16".parse().unwrap();
    let birds = Observed::KernelRoute(
        RouteKey::new(Table::Main, prefix, 0),
        Some(KernelRoute {
            protocol: Protocol::Bird,
            ..*own.clone()
        }),
    );
    let ours = Observed::KernelRoute(key, Some(*own));
    let link_state = Observed::Link(state(7, true));
    let mut bench = Bench::starting();
    bench.handle(Input::BgpPeers([link(7)].into()));
    bench.handle(Input::InSync { complete: true });
    bench.want(&route(true));
    bench.connect(vec![link_state.clone(), ours.clone(), birds.clone()]);
    assert_eq!(bench.ops(), []);
    for _ in 0..2 {
        bench.handle(Input::Resync);
        let known = bench.greet();
        let mut sum = Sum::default();
        for item in [&birds, &ours] {
            sum.add_observed(known.seed, item);
        }
        assert_eq!(known.kernel_routes, Some(sum));
        let known = Observed::AsKnown(Many::KernelRoutes);
        bench.answer(vec![link_state.clone(), known]);
        assert_eq!(bench.ops(), []);
        assert!(bench.calc.is_in_sync());
    }
    // Nobody's peer any more: all is read, and it is swept.
    bench.handle(Input::BgpPeers(BTreeSet::new()));
    let known = bench.greet();
    let mut sum = Sum::default();
    sum.add_observed(known.seed, &ours);
    assert_eq!(
        known.kernel_routes,
        Some(sum),
        "which the helper will not find"
    );
    bench.calc.grace = Grace::new(Duration::ZERO);
    bench.answer(vec![link_state, ours, birds]);
    let cleared = RouteKey::new(Table::Main, prefix, 0);
    assert_eq!(bench.ops(), [Op::KernelRoute(cleared, None)]);
}
