//! What others have made under our keys, and what we need not write.

use ipc_proto::{
    Hop, KernelRoute, Observed, Op, OpError, Protocol, RouteKey, RouteKind, Rule, Table, Tunnel,
};
use tests::{
    agent::Agent,
    helper::{Helper, link},
    monitor::Monitor,
    netns::shell,
};

use super::{
    address,
    l2::device,
    prefix,
    routes::{WORLD, routes, set, world},
    sorted, test,
};

fn key(text: &str, metric: u32) -> RouteKey {
    RouteKey::new(Table::Main, prefix(text), metric)
}

fn out(name: &str, via: Option<&str>, protocol: Protocol) -> KernelRoute {
    KernelRoute {
        kind: RouteKind::Unicast(Hop {
            link: link(name),
            via: via.map(address),
            onlink: via.is_some(),
        }),
        protocol,
        source: None,
        mtu: None,
    }
}

/// Returns the routes of all tables, less those of IPv6 that the kernel makes by itself, some a while
/// after a link has come up.
fn all_routes() -> String {
    shell("ip -4 route show table all; ip -6 route show table all | grep -v 'proto kernel' || true")
}

#[test]
fn another_programs_route_under_our_key_stays_and_is_named() {
    test(
        "ownership::another_programs_route_under_our_key_stays_and_is_named",
        || async {
            let (_helper, mut calc) = world().await;
            shell(
                "ip route add 10.1.1.0/26 via 192.0.2.9 dev eth0 proto bird
                 ip route add blackhole 10.1.2.0/26 proto static
                 ip -6 route add fd00:1:1::/64 via 2001:db8::9 dev eth0 proto bird",
            );
            let foreign = shell("ip -4 route; ip -6 route");
            let routes = [
                (
                    "10.1.1.0/26",
                    "192.0.2.8",
                    "protocol bird via 192.0.2.9 dev eth0",
                ),
                ("10.1.2.0/26", "192.0.2.8", "protocol static"),
                (
                    "fd00:1:1::/64",
                    "2001:db8::8",
                    "protocol bird via 2001:db8::9 dev eth0",
                ),
                ("10.1.3.0/26", "192.0.2.8", ""),
                ("fd00:1:3::/64", "2001:db8::8", ""),
            ];
            let ops = routes
                .map(|(text, via, _)| set((key(text, 0), out("eth0", Some(via), Protocol::Safe))));
            let failed = calc.apply(ops.clone()).await;
            assert_eq!(failed.len(), 3, "{failed:?}");
            for ((at, error), (text, _, named)) in failed.iter().zip(&routes) {
                assert!(
                    matches!(error, OpError::Kernel { errno: 17, .. }),
                    "{error:?}"
                );
                assert!(error.is_transient());
                let said = error.to_string();
                assert!(said.contains(text) && said.contains(named), "{at}: {said}");
            }
            let clear = ["10.1.3.0/26", "fd00:1:3::/64"];
            calc.must_apply(clear.map(|text| Op::KernelRoute(key(text, 0), None)))
                .await;
            assert_eq!(shell("ip -4 route; ip -6 route"), foreign);
            // Once it is gone, the key is ours.
            shell(
                "ip route del 10.1.1.0/26; ip route del 10.1.2.0/26; ip -6 route del fd00:1:1::/64",
            );
            calc.must_apply(ops).await;
        },
    );
}

#[test]
fn a_route_that_another_program_put_in_the_place_of_ours_stays() {
    test(
        "ownership::a_route_that_another_program_put_in_the_place_of_ours_stays",
        || async {
            let (_helper, mut calc) = world().await;
            let ours = || {
                (
                    key("10.1.1.0/26", 0),
                    out("eth0", Some("192.0.2.8"), Protocol::Safe),
                )
            };
            calc.must_apply([set(ours())]).await;
            // The helper has made it and knows of no change.
            shell("ip route replace 10.1.1.0/26 via 192.0.2.9 dev eth0 proto bird");
            let foreign = shell("ip -4 route");
            let other = out("eth0", Some("192.0.2.7"), Protocol::Safe);
            let failed = calc.apply([set((key("10.1.1.0/26", 0), other))]).await;
            assert!(matches!(
                failed.as_slice(),
                [(0, OpError::Kernel { errno: 17, .. })]
            ));
            calc.must_apply([Op::KernelRoute(key("10.1.1.0/26", 0), None)])
                .await;
            assert_eq!(shell("ip -4 route"), foreign);
        },
    );
}

#[test]
fn routes_of_a_former_protocol_are_replaced_and_swept() {
    test(
        "ownership::routes_of_a_former_protocol_are_replaced_and_swept",
        || async {
            shell(WORLD);
            let helper = Helper::start("uplinks = [\"eth0\"]\nsafe_protocol = 81\n");
            let mut calc = helper.connect().await;
            let ours = || {
                (
                    key("10.1.1.0/26", 0),
                    out("eth0", Some("192.0.2.8"), Protocol::Safe),
                )
            };
            shell(
                "ip route add 10.1.1.0/26 via 192.0.2.8 dev eth0 onlink proto 80
                 ip route add blackhole 10.1.2.0/26 proto 80",
            );
            let routes = |items: Vec<Observed>| {
                let is_route = |item: &Observed| matches!(item, Observed::KernelRoute(..));
                items.into_iter().filter(is_route).count()
            };
            assert_eq!(routes(calc.read().await), 0, "they are another program's");
            let failed = calc.apply([set(ours())]).await;
            assert!(matches!(
                failed.as_slice(),
                [(0, OpError::Kernel { errno: 17, .. })]
            ));
            drop(helper);

            let helper = Helper::start(
                "uplinks = [\"eth0\"]\nsafe_protocol = 81\nformer_protocols = [79, 80]\n",
            );
            let mut calc = helper.connect().await;
            assert_eq!(routes(calc.read().await), 2);
            calc.must_apply([set(ours()), Op::KernelRoute(key("10.1.2.0/26", 0), None)])
                .await;
            let left = shell("ip route show 10.1.0.0/16; ip route show root 10.1.0.0/16");
            assert!(
                left.contains("10.1.1.0/26 via 192.0.2.8 dev eth0 proto 81"),
                "{left}"
            );
            assert!(!left.contains("10.1.2.0/26"), "{left}");
        },
    );
}

#[test]
fn another_programs_routes_of_our_prefixes_stay_and_are_told() {
    test(
        "ownership::another_programs_routes_of_our_prefixes_stay_and_are_told",
        || async {
            shell(WORLD);
            shell("ip link add cali2 type veth peer name pod2; ip link set cali2 up");
            let helper = Helper::start("uplinks = [\"eth0\"]\nremove_external_routes = false\n");
            let mut calc = helper.connect().await;
            calc.hello().await;
            let foreign = [
                // Beside ours, after it or before it.
                ("append", "10.1.0.7/32", "metric 1024"),
                ("prepend", "10.1.0.8/32", "metric 1024"),
                ("append", "fd00:1::7/128", "metric 1024"),
                // Before ours.
                ("append", "10.1.0.9/32", "metric 1023"),
                ("append", "10.1.0.10/32", "tos 0x10 metric 2000"),
                ("append", "fd00:1::9/128", "metric 9"),
                // After ours, where it takes no packet.
                ("append", "10.1.0.11/32", "metric 1025"),
                ("append", "fd00:1::b/128", "metric 1025"),
                // Apart from ours.
                ("append", "10.1.0.0/24", "metric 1"),
            ];
            let host = |prefix: &str| prefix.ends_with("/32") || prefix.ends_with("/128");
            for (add, prefix, rest) in foreign {
                if host(prefix) {
                    let ours = set((key(prefix, 1024), out("cali1", None, Protocol::Device)));
                    calc.must_apply([ours]).await;
                }
                shell(&format!(
                    "ip route {add} {prefix} dev cali2 proto static {rest}"
                ));
            }
            let both = all_routes();
            assert_eq!(both.matches("dev cali2 proto static").count(), 9, "{both}");
            for _ in 0..2 {
                let read = calc.read().await;
                let is_route = |item: &&Observed| matches!(item, Observed::KernelRoute(..));
                assert_eq!(read.iter().filter(is_route).count(), 8, "{read:?}");
                let rivals = read.iter().find_map(|item| {
                    let Observed::Rivals(rivals) = item else {
                        return None;
                    };
                    Some(rivals)
                });
                let told = rivals.unwrap().told.iter();
                let mut told: Vec<_> = told
                    .map(|rival| (rival.key.prefix.to_string(), rival.key.metric))
                    .collect();
                told.sort();
                let expected = [
                    ("10.1.0.10/32", 2000),
                    ("10.1.0.7/32", 1024),
                    ("10.1.0.8/32", 1024),
                    ("10.1.0.9/32", 1023),
                    ("fd00:1::7/128", 1024),
                    ("fd00:1::9/128", 9),
                ];
                let expected = expected.map(|(prefix, metric)| (prefix.to_owned(), metric));
                assert_eq!(told, expected);
                for rival in &rivals.unwrap().told {
                    assert_eq!(rival.way, "protocol static dev cali2");
                }
            }
            assert_eq!(all_routes(), both);
        },
    );
}

#[test]
fn another_programs_route_that_lies_within_ours_is_told_but_not_the_hosts_own_or_a_workloads() {
    test(
        "ownership::another_programs_route_that_lies_within_ours_is_told_but_not_the_hosts_own_or_a_workloads",
        || async {
            let (_helper, mut calc) = world().await;
            shell("ip link add cali2 type veth peer name peer2 && ip link set cali2 up");
            for prefix in ["10.1.1.0/26", "10.1.1.32/28"] {
                let ours = out("eth0", Some("192.0.2.8"), Protocol::Safe);
                calc.must_apply([set((key(prefix, 0), ours))]).await;
            }
            let ours = out("eth0", Some("2001:db8::8"), Protocol::Safe);
            calc.must_apply([set((key("fd00:1:1::/64", 1024), ours))])
                .await;
            shell(
                "ip route add 10.1.1.9/32 via 192.0.2.9 dev eth0 proto zebra metric 4000
                 ip route add 10.1.1.9/32 via 192.0.2.9 dev eth0 proto zebra metric 4001
                 ip route add unreachable 10.1.1.40/30 proto static
                 ip -6 route add fd00:1:1::9/128 via 2001:db8::9 dev eth0 proto 77
                 ip route add 10.1.1.10/32 dev cali2 proto static metric 5
                 ip route add 10.1.1.11/32 via 192.0.2.9 dev eth0 proto bird
                 ip route add 10.1.1.12/32 dev eth0 proto kernel
                 ip route add 10.1.0.0/16 via 192.0.2.9 dev eth0 proto static
                 ip route add 10.1.1.13/32 via 192.0.2.9 dev eth0 table 78
                 ip address add 10.1.1.50/30 dev eth0",
            );
            let before = all_routes();
            let read = calc.read().await;
            let rivals = read.iter().find_map(|item| {
                let Observed::Rivals(rivals) = item else {
                    return None;
                };
                Some(rivals)
            });
            let lines = rivals
                .unwrap()
                .told
                .iter()
                .map(|rival| format!("{} in {}: {}", rival.key.prefix, rival.ours, rival.way));
            assert_eq!(
                lines.collect::<Vec<_>>(),
                [
                    "10.1.1.9/32 in 10.1.1.0/26: protocol zebra via 192.0.2.9 dev eth0",
                    "10.1.1.40/30 in 10.1.1.32/28: protocol static unreachable",
                    "fd00:1:1::9/128 in fd00:1:1::/64: protocol 77 via 2001:db8::9 dev eth0",
                ]
            );
            assert_eq!(all_routes(), before);
        },
    );
}

#[test]
fn another_programs_way_that_the_kernel_joined_with_ours_is_told_before_it_ends() {
    test(
        "ownership::another_programs_way_that_the_kernel_joined_with_ours_is_told_before_it_ends",
        || async {
            let (helper, mut calc) = world().await;
            let ours = || {
                (
                    key("fd00:1:1::/64", 0),
                    out("eth0", Some("2001:db8::8"), Protocol::Safe),
                )
            };
            calc.must_apply([set(ours())]).await;
            shell("ip -6 route append fd00:1:1::/64 via 2001:db8::9 dev eth0 proto bird");
            let joined = shell("ip -6 route show fd00:1:1::/64");
            assert_eq!(joined.matches("nexthop").count(), 2, "{joined}");
            calc.must_apply([set(ours())]).await;
            let left = shell("ip -6 route show fd00:1:1::/64");
            assert!(
                left.contains("2001:db8::8") && !left.contains("2001:db8::9"),
                "{left}"
            );
            let log = helper.log();
            assert!(
                log.contains("fd00:1:1::/64 metric 1024: it had other ways than asked for")
                    && log.contains("via 2001:db8::8 dev eth0, via 2001:db8::9 dev eth0"),
                "{log}"
            );
            // Where the other program's is first, it is named with all its ways.
            shell(
                "ip -6 route add fd00:1:2::/64 via 2001:db8::9 dev eth0 proto bird
                 ip -6 route append fd00:1:2::/64 via 2001:db8::7 dev eth0 proto bird",
            );
            let foreign = shell("ip -6 route show fd00:1:2::/64");
            let ours = out("eth0", Some("2001:db8::8"), Protocol::Safe);
            let failed = calc.apply([set((key("fd00:1:2::/64", 0), ours))]).await;
            let [(0, error)] = failed.as_slice() else {
                panic!("{failed:?}");
            };
            let named = "protocol bird via 2001:db8::9 dev eth0, via 2001:db8::7 dev eth0";
            assert!(error.to_string().contains(named), "{error}");
            assert_eq!(shell("ip -6 route show fd00:1:2::/64"), foreign);
        },
    );
}

#[test]
fn siblings_of_ours_under_one_key_become_one_route() {
    test(
        "ownership::siblings_of_ours_under_one_key_become_one_route",
        || async {
            let (_helper, mut calc) = world().await;
            for kept in ["192.0.2.7", "192.0.2.8", "192.0.2.9", "192.0.2.6"] {
                shell(
                    "for via in 7 8 9; do
                       ip route append 10.1.1.0/26 via 192.0.2.$via dev eth0 onlink proto 80
                     done",
                );
                let route = out("eth0", Some(kept), Protocol::Safe);
                calc.must_apply([set((key("10.1.1.0/26", 0), route))]).await;
                let left = shell("ip route show 10.1.1.0/26");
                assert!(left.contains(kept) && left.lines().count() == 1, "{left}");
                calc.must_apply([Op::KernelRoute(key("10.1.1.0/26", 0), None)])
                    .await;
            }
            // Without a gateway they are no multipath route.
            shell(
                "ip link add cali2 type veth peer name pod2; ip link set cali2 up
                 ip -6 route append fd00:1::9/128 dev cali1
                 ip -6 route append fd00:1::9/128 dev cali2",
            );
            let route = out("cali2", None, Protocol::Device);
            calc.must_apply([set((key("fd00:1::9/128", 0), route))])
                .await;
            let left = shell("ip -6 route show fd00:1::9");
            assert!(
                left.contains("cali2") && left.lines().count() == 1,
                "{left}"
            );
        },
    );
}

#[test]
fn a_metric_of_0_that_is_gone_takes_no_other_metric_with_it() {
    test(
        "ownership::a_metric_of_0_that_is_gone_takes_no_other_metric_with_it",
        || async {
            let (_helper, mut calc) = world().await;
            // As the CNI plugin makes it; then it is moved to another metric.
            shell("ip route add 10.1.0.9/32 dev cali1");
            calc.hello().await;
            let route = out("cali1", None, Protocol::Device);
            calc.must_apply([set((key("10.1.0.9/32", 1024), route))])
                .await;
            shell("ip route del 10.1.0.9/32 metric 0");
            shell("ip route show 10.1.0.9/32 | grep 1024");
            calc.must_apply([Op::KernelRoute(key("10.1.0.9/32", 0), None)])
                .await;
            shell("ip route show 10.1.0.9/32 | grep 1024");
        },
    );
}

#[test]
fn a_route_of_ours_that_leads_to_the_next_hop_of_the_one_in_its_place_gives_way() {
    test(
        "ownership::a_route_of_ours_that_leads_to_the_next_hop_of_the_one_in_its_place_gives_way",
        || async {
            let (_helper, mut calc) = world().await;
            shell("ip -6 address add fd00:30::11/64 dev eth0 nodad");
            calc.hello().await;
            let device = Op::TunnelDevice(Tunnel::VxlanV6, Some(Box::new(device(Tunnel::VxlanV6))));
            calc.must_apply([device]).await;
            let key = key("fd00:1:1::/122", 1024);
            let direct = out("eth0", Some("fd00:30::12"), Protocol::Safe);
            let tunnelled = out("vxlan-v6.calico", Some("fd00:1:1::1"), Protocol::Safe);
            let shown = || shell("ip -6 route show fd00:1:1::/122");
            for _ in 0..2 {
                calc.must_apply([set((key.clone(), direct.clone()))]).await;
                assert!(shown().contains("via fd00:30::12 dev eth0"), "{}", shown());
                calc.must_apply([set((key.clone(), tunnelled.clone()))])
                    .await;
                assert!(shown().contains("via fd00:1:1::1 dev vxlan"), "{}", shown());
                assert_eq!(shown().lines().count(), 1);
            }
            // Another program's stays in the way, so the former one of ours stays too.
            calc.must_apply([set((key.clone(), direct.clone()))]).await;
            shell("ip -6 route add fd00:1:1::/120 via fd00:30::13 dev eth0 proto static");
            let before = shown();
            // It is named, whether or not there is one of ours.
            let named = |failed: &[(u32, OpError)]| {
                let said = "the route to fd00:1:1::/120, protocol static via fd00:30::13 \
                            dev eth0, leads to the next hop fd00:1:1::1 another way";
                matches!(failed, [(0, OpError::Kernel { errno: 22 | 113, call })] if call.contains(said))
            };
            let set_again = || [set((key.clone(), tunnelled.clone()))];
            let failed = calc.apply(set_again()).await;
            assert!(named(&failed), "{failed:?}");
            assert_eq!(shown(), before);
            calc.must_apply([Op::KernelRoute(key.clone(), None)]).await;
            let failed = calc.apply(set_again()).await;
            assert!(named(&failed), "{failed:?}");
        },
    );
}

#[test]
fn reading_back_what_is_right_writes_nothing() {
    test(
        "ownership::reading_back_what_is_right_writes_nothing",
        || async {
            let (helper, calc) = world().await;
            drop(calc);
            let mut agent = Agent::start(&helper).await;
            agent.in_sync();
            let all = routes();
            let monitor = Monitor::open();
            agent.apply(all.iter().cloned().map(set)).await;
            assert!(monitor.heard().len() >= all.len());
            for _ in 0..3 {
                agent.resync().await;
            }
            // Nor does another one, which wants the same.
            let mut agent = Agent::start(&helper).await;
            agent.in_sync_with(all.into_iter().map(set));
            assert_eq!(monitor.heard(), [0_u16; 0]);
        },
    );
}

#[test]
fn rules_of_ours_are_made_read_and_removed_and_others_stay() {
    test(
        "ownership::rules_of_ours_are_made_read_and_removed_and_others_stay",
        || async {
            let (_helper, mut calc) = world().await;
            shell(
                "ip rule add pref 98 fwmark 0x1/0x1 lookup 77
                 ip rule add pref 99 iif eth0 lookup 77 protocol 80
                 ip -6 rule add pref 99 from fd00::/8 lookup 77 protocol 80
                 ip rule add pref 100 lookup 78 protocol 80",
            );
            let others = shell("ip rule; ip -6 rule");
            let rules: Vec<Rule> = [false, true]
                .into_iter()
                .flat_map(|ipv6| {
                    [
                        (99, Some((0x10_0000, 0x10_0000)), true),
                        (99, Some((0, 0xff)), false),
                        (105, None, false),
                    ]
                    .map(|(priority, mark, invert)| Rule {
                        ipv6,
                        priority,
                        mark,
                        invert,
                    })
                })
                .collect();
            let ops = |wanted| {
                let rules = rules.clone().into_iter();
                rules.map(move |rule| Op::Rule(rule, wanted))
            };
            let observed = || {
                let rules = rules.iter().cloned();
                rules.map(Observed::Rule).collect::<Vec<_>>()
            };
            calc.must_apply(ops(true)).await;
            assert_eq!(sorted(calc.read().await), sorted(observed()));
            let monitor = Monitor::open();
            calc.must_apply(ops(true)).await;
            assert_eq!(monitor.heard(), [0_u16; 0]);
            calc.must_apply(ops(false)).await;
            calc.must_apply(ops(false)).await;
            assert_eq!(shell("ip rule; ip -6 rule"), others);
            // The same as another program's but for the protocol.
            let taken = Rule {
                ipv6: false,
                priority: 98,
                mark: Some((1, 1)),
                invert: false,
            };
            let failed = calc.apply([Op::Rule(taken.clone(), true)]).await;
            assert!(matches!(
                failed.as_slice(),
                [(0, OpError::Kernel { errno: 17, .. })]
            ));
            calc.must_apply([Op::Rule(taken.clone(), false)]).await;
            let first = Rule {
                priority: 0,
                ..taken
            };
            let failed = calc.apply([Op::Rule(first, true)]).await;
            assert!(matches!(failed.as_slice(), [(0, OpError::Denied(_))]));
            assert_eq!(shell("ip rule; ip -6 rule"), others);
        },
    );
}

#[test]
fn rules_need_a_second_table() {
    test("ownership::rules_need_a_second_table", || async {
        let helper = Helper::start("");
        let mut calc = helper.connect().await;
        calc.hello().await;
        let rule = Rule {
            ipv6: false,
            priority: 99,
            mark: None,
            invert: false,
        };
        let failed = calc.apply([Op::Rule(rule, true)]).await;
        assert!(
            matches!(failed.as_slice(), [(0, OpError::Denied(why))] if why.contains("second_table"))
        );
    });
}
