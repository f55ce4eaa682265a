//! Kernel routes in both families: set, read back, changed, cleared; and what others made stays.

use ipc_proto::{Hop, KernelRoute, Observed, Op, OpError, Protocol, RouteKey, RouteKind, Table};
use tests::{
    helper::{Calc, Helper, link},
    netns::shell,
};

use super::{address, prefix, sorted, test};

/// An uplink with addresses, a workload's link, and an interface of no concern.
pub(super) const WORLD: &str = "
    ip link add eth0 type veth peer name far0
    ip link add cali1 type veth peer name pod1
    ip link add other0 type veth peer name other1
    for dev in far0 eth0 pod1 cali1 other1 other0; do ip link set $dev up; done
    ip addr add 192.0.2.1/24 dev eth0
    ip -6 addr add 2001:db8::1/64 dev eth0 nodad
    ip addr add 198.51.100.1/24 dev other1";

pub(super) async fn world() -> (Helper, Calc) {
    shell(WORLD);
    let helper = Helper::start("second_table = 77\nuplinks = [\"eth0\"]\n");
    let mut calc = helper.connect().await;
    calc.hello().await;
    (helper, calc)
}

pub(super) fn hop(name: &str, via: Option<&str>, onlink: bool) -> Hop {
    Hop {
        link: link(name),
        via: via.map(address),
        onlink,
    }
}

pub(super) fn route(kind: RouteKind, protocol: Protocol) -> KernelRoute {
    KernelRoute {
        kind,
        protocol,
        source: None,
        mtu: None,
    }
}

pub(super) fn key(text: &str, metric: u32) -> RouteKey {
    RouteKey::new(Table::Main, prefix(text), metric)
}

/// Every shape of route that calc asks for, in both families.
pub(super) fn routes() -> Vec<(RouteKey, KernelRoute)> {
    let mut routes = Vec::new();
    for (net, via, via2, own) in [
        ("10.1", "192.0.2.9", "192.0.2.8", "192.0.2.1"),
        ("fd00:1:", "2001:db8::9", "2001:db8::8", "2001:db8::1"),
    ] {
        let ipv6 = net.contains(':');
        let host = |number: u8| {
            if ipv6 {
                format!("{net}:{number}/128")
            } else {
                format!("{net}.0.{number}/32")
            }
        };
        let block = |number: u8| {
            if ipv6 {
                format!("fd00:1:{number}::/64")
            } else {
                format!("{net}.{number}.0/26")
            }
        };
        let direct = RouteKind::Unicast(hop("cali1", None, false));
        let onlink = RouteKind::Unicast(hop("eth0", Some(via), true));
        let ways = [(via, via2), (via2, via)].map(|(first, second)| {
            RouteKind::Multipath(vec![
                hop("eth0", Some(first), false),
                hop("eth0", Some(second), false),
            ])
        });
        let safe = Protocol::Safe;
        routes.extend([
            (key(&host(1), 0), route(direct.clone(), Protocol::Device)),
            (key(&host(2), 512), route(direct.clone(), Protocol::Device)),
            (key(&host(3), 1024), route(direct.clone(), Protocol::Safe)),
            (key(&block(1), 0), route(onlink.clone(), safe)),
            (
                key(&block(2), 0),
                KernelRoute {
                    source: Some(address(own)),
                    mtu: Some(1400),
                    ..route(onlink, safe)
                },
            ),
            (key(&block(3), 0), route(RouteKind::Blackhole, safe)),
            (key(&block(4), 0), route(RouteKind::Prohibit, safe)),
            (key(&block(5), 0), route(RouteKind::Unreachable, safe)),
            (key(&block(6), 7), route(RouteKind::Throw, safe)),
            (
                key(&block(9), 0),
                route(RouteKind::Local(link("cali1")), safe),
            ),
        ]);
        let [ways, reversed] = ways;
        routes.push((key(&block(7), 0), route(ways, safe)));
        routes.push((key(&block(8), 0), route(reversed, safe)));
        let second = RouteKey::new(Table::Second, prefix(&host(1)), 0);
        routes.push((second, route(direct.clone(), Protocol::Device)));
        // Beside one for any type of service, with the metric that is any to the kernel's delete.
        for metric in [0, 7] {
            let key = RouteKey {
                tos: if ipv6 { 0 } else { 0x10 },
                ..key(&host(1), metric)
            };
            routes.push((key, route(direct.clone(), Protocol::Device)));
        }
    }
    routes.sort();
    routes.dedup();
    routes
}

pub(super) fn set((key, route): (RouteKey, KernelRoute)) -> Op {
    Op::KernelRoute(key, Some(Box::new(route)))
}

fn observed((key, route): (RouteKey, KernelRoute)) -> Observed {
    Observed::KernelRoute(key, Some(route))
}

/// Keeps what was read of kernel routes.
async fn read_routes(calc: &mut Calc) -> Vec<Observed> {
    let mut items = calc.read().await;
    items.retain(|item| matches!(item, Observed::KernelRoute(..)));
    items
}

#[test]
fn kernel_routes_read_back_as_they_were_set() {
    test(
        "routes::kernel_routes_read_back_as_they_were_set",
        || async {
            let (_helper, mut calc) = world().await;
            let before = shell("ip -4 route; ip -6 route");
            let all = routes();
            calc.must_apply(all.iter().cloned().map(set)).await;
            let wanted: Vec<_> = all.iter().cloned().map(observed).collect();
            assert_eq!(sorted(read_routes(&mut calc).await), sorted(wanted.clone()));
            // Again, the same.
            calc.must_apply(all.iter().cloned().map(set)).await;
            assert_eq!(sorted(read_routes(&mut calc).await), sorted(wanted));
            let clear = |(key, _): (RouteKey, KernelRoute)| Op::KernelRoute(key, None);
            calc.must_apply(all.iter().cloned().map(clear)).await;
            assert_eq!(read_routes(&mut calc).await, []);
            assert_eq!(shell("ip -4 route; ip -6 route"), before);
            // Absent already.
            calc.must_apply(all.into_iter().map(clear)).await;
        },
    );
}

#[test]
fn a_set_replaces_whatever_of_ours_is_under_its_key() {
    test(
        "routes::a_set_replaces_whatever_of_ours_is_under_its_key",
        || async {
            let (_helper, mut calc) = world().await;
            for (text, via) in [
                ("10.1.1.0/26", "192.0.2.9"),
                ("fd00:1:1::/64", "2001:db8::9"),
            ] {
                let way = RouteKind::Unicast(hop("eth0", Some(via), true));
                for kind in [
                    RouteKind::Blackhole,
                    way.clone(),
                    RouteKind::Unicast(hop("cali1", None, false)),
                    RouteKind::Throw,
                    way,
                ] {
                    let wanted = (key(text, 0), route(kind, Protocol::Safe));
                    calc.must_apply([set(wanted.clone())]).await;
                    assert_eq!(read_routes(&mut calc).await, [observed(wanted)]);
                }
                // One batch that sets and clears one key over and over.
                let on = || set((key(text, 0), route(RouteKind::Throw, Protocol::Safe)));
                let off = || Op::KernelRoute(key(text, 0), None);
                calc.must_apply([off(), on(), off(), on(), off()]).await;
                assert_eq!(read_routes(&mut calc).await, []);
            }
        },
    );
}

#[test]
fn another_programs_routes_are_neither_reported_nor_cleared() {
    test(
        "routes::another_programs_routes_are_neither_reported_nor_cleared",
        || async {
            let (_helper, mut calc) = world().await;
            shell(
                "ip route add default via 192.0.2.254
             ip route add 10.7.0.0/24 via 192.0.2.9 proto bird
             ip route add 10.8.0.0/24 dev other0
             ip route add blackhole 10.9.0.0/24 proto boot
             ip -6 route add fd00:7::/64 via 2001:db8::9 proto bird
             ip -6 route add blackhole fd00:9::/64 proto boot
             ip route add 10.7.0.0/24 via 192.0.2.9 table 99",
            );
            let foreign = shell("ip -4 route; ip -6 route");
            assert_eq!(read_routes(&mut calc).await, []);
            for (text, metric) in [
                ("10.7.0.0/24", 0),
                ("10.8.0.0/24", 0),
                ("10.9.0.0/24", 0),
                ("fd00:7::/64", 1024),
                ("fd00:9::/64", 1024),
                ("192.0.2.0/24", 0),
            ] {
                // Nothing of ours is there, which is all that is asked for.
                calc.must_apply([Op::KernelRoute(key(text, metric), None)])
                    .await;
            }
            assert_eq!(shell("ip -4 route; ip -6 route"), foreign);
            // A metric of 0 must not stand for any metric.
            shell("ip route add 10.6.0.1/32 dev cali1 metric 1024 proto boot");
            calc.must_apply([Op::KernelRoute(key("10.6.0.1/32", 0), None)])
                .await;
            let kept = observed((
                key("10.6.0.1/32", 1024),
                route(
                    RouteKind::Unicast(hop("cali1", None, false)),
                    Protocol::Device,
                ),
            ));
            assert_eq!(read_routes(&mut calc).await, [kept]);
            calc.must_apply([Op::KernelRoute(key("10.6.0.1/32", 1024), None)])
                .await;
            assert_eq!(shell("ip -4 route; ip -6 route"), foreign);
        },
    );
}

#[test]
fn a_workloads_stray_routes_are_reported_and_can_be_cleared() {
    test(
        "routes::a_workloads_stray_routes_are_reported_and_can_be_cleared",
        || async {
            let (_helper, mut calc) = world().await;
            shell(
                "ip route add 10.7.0.1/32 dev cali1 proto bird
             ip route add 10.7.0.2/32 dev cali1 mtu 1300 advmss 1200
             ip route append 10.7.0.3/32 dev cali1
             ip route append 10.7.0.3/32 dev cali1 proto static
             ip -6 route add fd00:7::1/128 dev cali1 proto bird",
            );
            let strays = read_routes(&mut calc).await;
            let keys: Vec<RouteKey> = strays
                .iter()
                .filter_map(|item| {
                    let Observed::KernelRoute(key, _) = item else {
                        return None;
                    };
                    Some(key.clone())
                })
                .collect();
            assert_eq!(strays.len(), 5, "{strays:?}");
            // Twice, since the kernel has two under one key.
            assert_eq!(
                keys.iter().filter(|k| **k == key("10.7.0.3/32", 0)).count(),
                2
            );
            let by_bird = (
                key("10.7.0.1/32", 0),
                route(
                    RouteKind::Unicast(hop("cali1", None, false)),
                    Protocol::Bird,
                ),
            );
            assert!(strays.contains(&observed(by_bird)));
            assert!(strays.contains(&Observed::KernelRoute(key("10.7.0.2/32", 0), None)));
            calc.must_apply(keys.into_iter().map(|key| Op::KernelRoute(key, None)))
                .await;
            assert_eq!(read_routes(&mut calc).await, []);
        },
    );
}

#[test]
fn what_the_kernel_says_reaches_calc_for_the_right_step() {
    test(
        "routes::what_the_kernel_says_reaches_calc_for_the_right_step",
        || async {
            let (_helper, mut calc) = world().await;
            let good = |number: u32| {
                let text = format!("10.1.{}.{}/32", number / 256, number % 256);
                let kind = RouteKind::Unicast(hop("cali1", None, false));
                set((key(&text, 0), route(kind, Protocol::Device)))
            };
            // Not on any connected network, and not onlink.
            let bad = |text: &str, via: &str| {
                let kind = RouteKind::Unicast(hop("eth0", Some(via), false));
                set((key(text, 0), route(kind, Protocol::Safe)))
            };
            let cali1 = good(0);
            let ops = (0..1500).map(|number| match number {
                700 => bad("10.2.0.0/24", "203.0.113.1"),
                1100 => bad("fd00:2::/64", "fd00:99::1"),
                _ => {
                    let Op::KernelRoute(_, value) = cali1.clone() else {
                        return cali1.clone();
                    };
                    let text = format!("10.1.{}.{}/32", number / 256, number % 256);
                    Op::KernelRoute(key(&text, 0), value)
                }
            });
            let failed = calc.apply(ops).await;
            // ENETUNREACH and EHOSTUNREACH.
            let errnos: Vec<_> = failed
                .iter()
                .map(|(at, error)| {
                    let OpError::Kernel { errno, .. } = error else {
                        panic!("{error:?}")
                    };
                    (*at, *errno)
                })
                .collect();
            assert_eq!(errnos, [(700, 101), (1100, 113)]);
            assert!(
                failed[0].1.to_string().contains("10.2.0.0/24"),
                "{failed:?}"
            );
            assert_eq!(read_routes(&mut calc).await.len(), 1498);
        },
    );
}
