//! What each rule accepts, and what it must refuse.

use serde_json::json;

use super::*;

fn config() -> Config {
    serde_json::from_value(json!({
        "ip_version": 4, "workload_iface_prefixes": ["cali"], "device_route_protocol": 3,
        "remove_external_routes": true, "vxlan_iface": "vxlan.calico",
        "cleanup_grace_period_s": 10, "device_route_source_address": "",
        "static_arp_entries": true, "conntrack_cleanup": true, "links": [],
    }))
    .unwrap()
}

/// A route to 10.65.0.1/32 by its protocol and interface, by a next hop if that is no workload's.
fn route(proto: u8, dev: &str) -> Route {
    let pod = dev.starts_with("cali");
    Route {
        dst: "10.65.0.1/32".parse().unwrap(),
        kind: "unicast".to_owned(),
        scope: if pod { 253 } else { 0 },
        proto,
        dev: dev.to_owned(),
        gw: (!pod).then(|| "192.168.7.2".parse().unwrap()),
        priority: 0,
        tos: 0,
        onlink: !pod,
        src: None,
        mtu: 0,
        nexthops: Vec::new(),
    }
}

fn nowhere(proto: u8, scope: u8) -> Route {
    Route {
        kind: "unreachable".to_owned(),
        scope,
        gw: None,
        onlink: false,
        ..route(proto, "")
    }
}

/// Both have nothing, and know all.
fn same(config: &Config) -> Difference<'_> {
    Difference {
        config,
        cairn: None,
        felix: None,
        before: None,
        wanted: None,
        winner: None,
        asked: None,
        last: None,
        carried: None,
        told: true,
        unseen: None,
        unread: false,
        spared: false,
        waits: false,
    }
}

/// What is changed of a difference.
type Change<'a> = &'a dyn Fn(&mut Difference<'a>);

/// A rule accepts a difference, and refuses it with each of these changes.
fn check<'a>(rule: Rule, accepted: &Difference<'a>, refused: &[Change<'a>]) {
    assert_eq!(accepted.rule(), Some(rule), "{accepted}");
    for (nth, change) in refused.iter().enumerate() {
        let mut difference = accepted.clone();
        change(&mut difference);
        assert_eq!(
            difference.rule(),
            None,
            "{rule}, change {nth}: {difference}"
        );
    }
}

#[test]
fn a_route_that_lost_to_another_of_its_prefix() {
    let config = &config();
    let pod = &route(3, "cali1");
    let other = &route(3, "cali2");
    let tunnel = &route(3, "vxlan.calico");
    let uplink = &route(3, "eth0");
    // The tunnel's route is asked for under this key, and a pod's of another metric is made.
    let one = Difference {
        felix: Some(tunnel),
        asked: Some(tunnel),
        winner: Some(pod),
        ..same(config)
    };
    check(
        Rule::OneRoutePerPrefix,
        &one,
        &[
            &|d| d.winner = None,
            &|d| d.felix = Some(uplink),
            &|d| d.cairn = Some(other),
            &|d| d.wanted = Some(other),
            &|d| d.asked = None,
        ],
    );
}

#[test]
fn a_protocol_that_marks_nothing() {
    let config = &config();
    let pod = &route(3, "cali1");
    let tunnel = &route(3, "vxlan.calico");
    let uplink = &route(3, "eth0");
    let safe = &route(80, "eth0");
    let bird = &route(12, "eth0");
    let mtu = &Route {
        mtu: 1400,
        ..safe.clone()
    };
    let protocol = Difference {
        cairn: Some(safe),
        felix: Some(uplink),
        wanted: Some(safe),
        asked: Some(uplink),
        ..same(config)
    };
    check(
        Rule::SafeProtocol,
        &protocol,
        &[
            &|d| d.cairn = Some(mtu),
            &|d| d.asked = Some(bird),
            &|d| (d.felix, d.asked) = (Some(tunnel), Some(tunnel)),
            // It is nobody's of ours.
            &|d| d.cairn = Some(bird),
            &|d| d.cairn = None,
        ],
    );
    let marked = (&route(80, "cali1"), pod);
    let difference = Difference {
        cairn: Some(marked.0),
        felix: Some(marked.1),
        asked: Some(marked.1),
        ..same(config)
    };
    assert_eq!(difference.rule(), None, "its interface marks it");
}

#[test]
fn a_scope_that_is_of_no_matter() {
    let config = &config();
    let pod = &route(3, "cali1");
    let (universe, link) = (&nowhere(80, 0), &nowhere(80, 253));
    let (flat, pod_flat) = (
        &Route {
            scope: 0,
            ..pod.clone()
        },
        &Route {
            kind: "throw".to_owned(),
            ..link.clone()
        },
    );
    let scope = Difference {
        cairn: Some(universe),
        felix: Some(link),
        wanted: Some(universe),
        asked: Some(link),
        ..same(config)
    };
    check(
        Rule::ScopeOfKind,
        &scope,
        &[
            &|d| (d.cairn, d.felix, d.asked) = (Some(flat), Some(pod), Some(pod)),
            &|d| (d.felix, d.asked) = (Some(pod_flat), Some(pod_flat)),
            &|d| d.asked = None,
        ],
    );
}

#[test]
fn another_programs_route_that_stays() {
    let config = &config();
    let tunnel = &route(3, "vxlan.calico");
    let uplink = &route(3, "eth0");
    let safe = &route(80, "eth0");
    let bird = &route(12, "eth0");
    let mtu = &Route {
        mtu: 1400,
        ..safe.clone()
    };
    let others = Difference {
        cairn: Some(bird),
        felix: Some(uplink),
        before: Some(bird),
        wanted: Some(safe),
        asked: Some(uplink),
        ..same(config)
    };
    check(
        Rule::OthersRoutesStay,
        &others,
        &[
            &|d| d.before = None,
            &|d| {
                d.felix = Some(tunnel);
            },
            // It is ours to replace.
            &|d| (d.cairn, d.before) = (Some(mtu), Some(mtu)),
            // Nothing tells that the recorded program deleted it.
            &|d| (d.felix, d.asked) = (None, None),
        ],
    );
    let deleted = Difference {
        felix: None,
        asked: None,
        last: Some(uplink),
        ..others.clone()
    };
    check(Rule::OthersRoutesStay, &deleted, &[&|d| d.last = None]);
    let still = Difference {
        last: None,
        carried: Some(Rule::OthersRoutesStay),
        ..deleted
    };
    check(Rule::OthersRoutesStay, &still, &[&|d| d.carried = None]);
}

#[test]
fn what_one_of_both_has_not_seen_yet() {
    let config = &config();
    let pod = &route(3, "cali1");
    let other = &route(3, "cali2");
    let tunnel = &route(3, "vxlan.calico");
    let left = std::slice::from_ref(other);
    let sooner = Difference {
        cairn: Some(pod),
        felix: Some(other),
        before: Some(other),
        wanted: Some(pod),
        winner: Some(pod),
        asked: Some(pod),
        unseen: Some(left),
        ..same(config)
    };
    check(
        Rule::RepairsSooner,
        &sooner,
        &[
            &|d| d.unseen = None,
            &|d| {
                d.felix = Some(tunnel);
            },
            &|d| d.cairn = None,
            &|d| d.wanted = None,
        ],
    );

    let unread = Difference {
        cairn: Some(other),
        felix: Some(pod),
        before: Some(other),
        wanted: Some(pod),
        winner: Some(pod),
        asked: Some(pod),
        unread: true,
        ..same(config)
    };
    check(
        Rule::ReadWhenAsked,
        &unread,
        &[&|d| d.unread = false, &|d| d.before = None, &|d| {
            d.felix = Some(tunnel);
        }],
    );
}

#[test]
fn a_route_that_is_spared() {
    let config = &config();
    let pod = &route(3, "cali1");
    let other = &route(3, "cali2");
    let bird = &route(12, "eth0");
    let spared = Difference {
        felix: Some(other),
        before: Some(other),
        spared: true,
        ..same(config)
    };
    check(
        Rule::GraceSinceSeen,
        &spared,
        &[
            &|d| d.spared = false,
            &|d| d.before = None,
            &|d| d.cairn = Some(pod),
            // Nobody of the two may remove it.
            &|d| (d.felix, d.before) = (Some(bird), Some(bird)),
        ],
    );
}

#[test]
fn an_interface_that_the_recorded_program_was_not_told_of() {
    let config = &config();
    let pod = &route(3, "cali1");
    let other = &route(3, "cali2");
    let tunnel = &route(3, "vxlan.calico");
    let untold = Difference {
        cairn: Some(pod),
        wanted: Some(pod),
        winner: Some(pod),
        told: false,
        ..same(config)
    };
    check(
        Rule::LinksAlwaysTold,
        &untold,
        &[&|d| d.told = true, &|d| d.wanted = None, &|d| {
            d.felix = Some(tunnel);
        }],
    );
    let lost = Difference {
        felix: Some(other),
        last: Some(other),
        ..untold
    };
    check(
        Rule::LinksAlwaysTold,
        &lost,
        &[&|d| d.last = None, &|d| d.told = true],
    );
}

#[test]
fn what_waits_to_be_tried_again() {
    let config = &config();
    let uplink = &route(3, "eth0");
    let safe = &route(80, "eth0");
    let bird = &route(12, "eth0");
    let waiting = Difference {
        felix: Some(uplink),
        wanted: Some(safe),
        winner: Some(safe),
        asked: Some(uplink),
        waits: true,
        ..same(config)
    };
    check(
        Rule::BackOff,
        &waiting,
        &[
            &|d| d.waits = false,
            &|d| (d.wanted, d.winner) = (None, None),
            &|d| {
                d.felix = Some(bird);
            },
        ],
    );
}

#[test]
fn what_differs_as_before() {
    let config = &config();
    let uplink = &route(3, "eth0");
    let bird = &route(12, "eth0");
    let carried = Difference {
        felix: Some(uplink),
        last: Some(uplink),
        carried: Some(Rule::SafeProtocol),
        ..same(config)
    };
    check(
        Rule::SafeProtocol,
        &carried,
        &[&|d| d.last = None, &|d| {
            d.felix = Some(bird);
        }],
    );
}

#[test]
fn flows_are_forgotten_of_former_owners_and_of_nobody_else() {
    use Owner::{Elsewhere, Here, Unknown};
    type Case<'a> = (bool, &'a [Owner], &'a [Owner], Option<Rule>);
    let cases: [Case<'_>; 9] = [
        (
            false,
            &[Here(11), Unknown],
            &[Here(11)],
            Some(Rule::FlushAtStart),
        ),
        (
            false,
            &[Here(11), Here(12)],
            &[Here(12)],
            Some(Rule::OwedFlush),
        ),
        (false, &[Here(11)], &[], Some(Rule::OwedFlush)),
        (false, &[Here(11)], &[Here(11)], None),
        (false, &[], &[], None),
        (true, &[], &[], Some(Rule::NothingToForget)),
        (true, &[Here(11)], &[Here(11)], Some(Rule::SameOwner)),
        (true, &[Elsewhere], &[Elsewhere], Some(Rule::SameOwner)),
        (true, &[Here(11)], &[Elsewhere], None),
    ];
    for (felix, past, now, rule) in cases {
        let [past, now] = [past, now].map(|owners| owners.iter().copied().collect());
        let flush = Flush {
            felix,
            past: &past,
            now: &now,
        };
        assert_eq!(flush.rule(), rule, "{flush:?}");
    }
}

#[test]
fn a_neighbour_that_differs_was_asked_for_or_its_link_is_not_known() {
    let [one, two] = [Some(Mac([1; 6])), Some(Mac([2; 6]))];
    for (cairn, felix, last, told, asked, rule) in [
        (None, one, one, true, true, Some(Rule::NeighbourGoes)),
        (None, one, one, true, false, None),
        (one, None, None, false, false, Some(Rule::LinksAlwaysTold)),
        (one, two, two, false, true, Some(Rule::LinksAlwaysTold)),
        (one, None, None, true, false, None),
        (one, None, two, false, false, None),
        (one, two, two, true, true, None),
    ] {
        let neighbour = Neighbour {
            cairn,
            felix,
            last,
            told,
            asked,
        };
        assert_eq!(neighbour.rule(), rule, "{neighbour:?}");
    }
}
