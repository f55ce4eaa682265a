//! Which routes that nobody wants are spared, and for how long.

use super::*;

const PERIOD: Duration = Duration::from_secs(10);

fn on(index: u32, metric: u32, present: bool) -> Op {
    let key = RouteKey::new(Table::Main, "10.9.0.0/16".parse().unwrap(), metric);
    let route = present.then(|| KernelRoute {
        kind: RouteKind::Unicast(Hop {
            link: link(index),
            via: None,
            onlink: false,
        }),
        protocol: Protocol::Device,
        source: None,
        mtu: None,
    });
    Op::KernelRoute(key, route.map(Box::new))
}

/// What is read where a network plugin has just made a route.
fn early() -> Vec<Observed> {
    vec![Observed::Link(state(7, true)), observed(on(7, 0, true))]
}

#[test]
fn an_early_route_is_spared_until_its_link_is_no_longer_new_and_then_swept_by_itself() {
    let mut bench = Bench::new(early());
    let start = bench.now;
    assert_eq!(bench.poll(), None);
    assert!(bench.calc.is_in_sync(), "all that is wanted is there");
    assert_eq!(bench.reasons(view::Kind::KernelRoutes), [Reason::Grace]);
    assert_eq!(bench.calc.poll_timeout(), Some(start + PERIOD));
    // Neither a flap nor a reading starts it again.
    bench.now = start + PERIOD / 2;
    for up in [false, true] {
        bench.handle(Input::Link(LinkEvent::Set(state(7, up))));
    }
    bench.handle(Input::Resync);
    bench.welcome(early());
    assert_eq!(bench.poll(), None);
    assert_eq!(bench.calc.poll_timeout(), Some(start + PERIOD));
    bench.now = start + PERIOD;
    assert_eq!(bench.ops(), [on(7, 0, false)]);
}

#[test]
fn birds_route_to_a_peer_that_comes_before_one_that_leads_elsewhere_is_told() {
    let wanted = || {
        let Op::KernelRoute(key, Some(route)) = on(8, 1024, true) else {
            panic!("a route is a route");
        };
        (key, route)
    };
    let birds = |index: u32, metric: u32| {
        let (key, _) = wanted();
        let Op::KernelRoute(_, Some(route)) = on(index, 0, true) else {
            panic!("a route is a route");
        };
        let protocol = Protocol::Bird;
        let route = KernelRoute { protocol, ..*route };
        Observed::KernelRoute(RouteKey { metric, ..key }, Some(route))
    };
    for (index, metric, told) in [(7, 32, true), (7, 1025, false), (8, 32, false)] {
        let mut bench = Bench::starting();
        bench.handle(Input::BgpPeers([link(7), link(8)].into()));
        let (key, route) = wanted();
        bench.want(&Op::KernelRoute(key.clone(), Some(route.clone())));
        bench.handle(Input::InSync { complete: true });
        bench.connect(vec![
            Observed::Link(state(7, true)),
            Observed::Link(state(8, true)),
            Observed::KernelRoute(key, Some(*route)),
            birds(index, metric),
        ]);
        assert_eq!(bench.poll(), None, "it is left alone");
        let rivals: Vec<String> = bench.calc.rivals().collect();
        assert_eq!(rivals.len(), usize::from(told), "{rivals:?}");
        let named = format!("wins: metric 32 protocol bird dev {}", link(7).name);
        assert!(
            rivals.iter().all(|said| said.contains(&named)),
            "{rivals:?}"
        );
    }
}

#[test]
fn birds_routes_stay_on_the_links_of_its_peers_and_only_there() {
    let by = |index: u32, protocol: Protocol| {
        let Op::KernelRoute(key, Some(route)) = on(index, 1000 + index, true) else {
            panic!("a route is a route");
        };
        Observed::KernelRoute(key, Some(KernelRoute { protocol, ..*route }))
    };
    let read = || {
        vec![
            Observed::Link(state(7, true)),
            Observed::Link(state(8, true)),
            by(7, Protocol::Bird),
            by(8, Protocol::Bird),
        ]
    };
    let mut bench = Bench::starting();
    bench.calc = Reconciler::default().with_grace(Duration::ZERO);
    bench.handle(Input::BgpPeers([link(7)].into()));
    bench.handle(Input::InSync { complete: true });
    bench.connect(read());
    assert_eq!(bench.ops(), [on(8, 1008, false)]);
    bench.ack(Vec::new());
    assert_eq!(bench.rows(view::Kind::KernelRoutes, 0, 9), []);
    // A peer no more.
    bench.handle(Input::BgpPeers(BTreeSet::new()));
    bench.welcome(read());
    assert_eq!(bench.ops(), [on(7, 1007, false), on(8, 1008, false)]);
    bench.ack(Vec::new());
    // Another program's is no different on the link of a peer.
    bench.handle(Input::BgpPeers([link(7)].into()));
    bench.welcome(vec![
        Observed::Link(state(7, true)),
        by(7, Protocol::Foreign),
    ]);
    assert_eq!(bench.ops(), [on(7, 1007, false)]);
}

#[test]
fn an_early_route_stays_until_the_one_that_is_wanted_is_set() {
    let mut bench = Bench::new(early());
    assert_eq!(bench.poll(), None);
    bench.want(&on(7, 1024, true));
    assert_eq!(bench.ops(), [on(7, 1024, true), on(7, 0, false)]);
    bench.ack(Vec::new());
    // From now on all is known of this link.
    bench.handle(Input::Resync);
    let mut again = early();
    again.push(observed(on(7, 1024, true)));
    bench.welcome(again);
    assert_eq!(bench.ops(), [on(7, 0, false)]);
}

#[test]
fn an_early_route_whose_prefix_is_wanted_elsewhere_goes_at_once() {
    let mut links = early();
    links.push(Observed::Link(state(9, true)));
    let mut bench = Bench::new(links.clone());
    assert_eq!(bench.poll(), None);
    bench.want(&on(9, 1024, true));
    assert_eq!(bench.ops(), [on(9, 1024, true), on(7, 0, false)]);
    bench.ack(Vec::new());
    // Nor is it spared when it is read while the other is wanted.
    bench.handle(Input::Resync);
    links.push(observed(on(9, 1024, true)));
    bench.welcome(links);
    assert_eq!(bench.ops(), [on(7, 0, false)]);
}

#[test]
fn an_early_route_that_is_what_is_wanted_is_left_as_it_is() {
    let mut bench = Bench::new(early());
    bench.want(&on(7, 0, true));
    assert_eq!(bench.poll(), None);
    bench.now += PERIOD;
    assert_eq!(bench.poll(), None);
    // No longer wanted, it is no leftover of somebody else.
    bench.want(&on(7, 0, false));
    assert_eq!(bench.ops(), [on(7, 0, false)]);
}

#[test]
fn a_link_that_is_made_again_has_a_grace_of_its_own() {
    let mut bench = Bench::new(early());
    bench.now += PERIOD * 2;
    bench.handle(Input::Link(LinkEvent::Gone(link(7))));
    bench.handle(Input::Link(LinkEvent::Set(state(9, true))));
    bench.now += PERIOD / 2;
    bench.handle(Input::Resync);
    bench.welcome(vec![
        Observed::Link(state(9, true)),
        observed(on(9, 0, true)),
    ]);
    assert_eq!(bench.poll(), None);
    assert_eq!(bench.calc.poll_timeout(), Some(bench.now + PERIOD / 2));
}

#[test]
fn what_is_on_no_workloads_link_is_swept_at_once() {
    let device = LinkState {
        role: LinkRole::Uplink,
        ..state(7, true)
    };
    let key = RouteKey::new(Table::Main, "10.8.0.0/16".parse().unwrap(), 0);
    let blackhole = KernelRoute {
        kind: RouteKind::Blackhole,
        protocol: Protocol::Safe,
        source: None,
        mtu: None,
    };
    let mut bench = Bench::new(vec![
        Observed::Link(device),
        observed(on(7, 0, true)),
        Observed::KernelRoute(key.clone(), Some(blackhole)),
    ]);
    assert_eq!(
        bench.ops(),
        [Op::KernelRoute(key, None), on(7, 0, false)],
        "both"
    );
}

#[test]
fn of_several_routes_under_one_key_all_are_spared_or_none() {
    let foreign = |index| {
        let Op::KernelRoute(key, Some(route)) = on(index, 0, true) else {
            panic!("a route")
        };
        let protocol = Protocol::Foreign;
        Observed::KernelRoute(key, Some(KernelRoute { protocol, ..*route }))
    };
    let links = [7, 8].map(|index| Observed::Link(state(index, true)));
    let read = |other| [&links[..], &[observed(on(7, 0, true)), other]].concat();
    let mut bench = Bench::new(read(foreign(8)));
    assert_eq!(bench.poll(), None);
    let mut bench = Bench::new(read(foreign(99)));
    assert_eq!(bench.ops(), [on(7, 0, false)]);
}

#[test]
fn without_a_grace_nothing_is_spared() {
    let mut bench = Bench::starting();
    bench.calc = Reconciler::default().with_grace(Duration::ZERO);
    bench.handle(Input::InSync { complete: true });
    bench.connect(early());
    assert_eq!(bench.ops(), [on(7, 0, false)]);
}

#[test]
fn what_a_plugin_has_made_since_the_last_reading_is_read_once_its_link_is_served() {
    let mut bench = Bench::new(vec![Observed::Link(state(7, true))]);
    assert_eq!(bench.poll(), None);
    bench.want(&on(7, 1024, true));
    assert_eq!(bench.ops(), [on(7, 1024, true)], "that first");
    bench.ack(Vec::new());
    bench.now += Duration::from_secs(1);
    bench.welcome(vec![
        Observed::Link(state(7, true)),
        observed(on(7, 0, true)),
        observed(on(7, 1024, true)),
    ]);
    assert_eq!(bench.ops(), [on(7, 0, false)]);
    bench.ack(Vec::new());
    bench.now += PERIOD;
    assert_eq!(bench.poll(), None, "all is known of it");
}

#[test]
fn what_a_plugin_has_made_on_a_link_that_nobody_wants_is_read_when_its_grace_ends() {
    let mut bench = Bench::new(Vec::new());
    assert_eq!(bench.poll(), None);
    bench.handle(Input::Link(LinkEvent::Set(state(7, true))));
    assert_eq!(bench.poll(), None);
    assert_eq!(bench.calc.poll_timeout(), Some(bench.now + PERIOD));
    bench.now += PERIOD;
    bench.welcome(early());
    assert_eq!(bench.ops(), [on(7, 0, false)]);
}
