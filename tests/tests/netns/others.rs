//! What the feed says of other programs' changes, and what is none of its business.

use std::{collections::BTreeSet, net::IpAddr};

use futures_util::{Stream, StreamExt};
use ipc_proto::{
    FdbKey, KernelRoute, Mac, NeighbourKey, Op, Protocol, RouteKey, RouteKind, Rule, Tunnel,
    bus::DataplaneProxy, view::Kind,
};
use tests::{
    helper::{self, Calc, Helper, link},
    netns::shell,
    wait::PATIENCE,
};
use tokio::time::timeout;

use super::{
    address,
    l2::device,
    routes::{hop, key, route, world},
    test,
};

const OURS: &str = "10.1.0.9 dev cali1 proto 80";

/// Returns of which kinds others are said to have changed something, each time that they are.
async fn listen(helper: DataplaneProxy<'static>) -> impl Stream<Item = BTreeSet<Kind>> + Unpin {
    let feeds = helper.receive_links_changed().await.unwrap();
    let drift = feeds.map(|signal| helper::feed(signal.args().unwrap().feed()).drift);
    Box::pin(drift.filter(|drift| std::future::ready(!drift.is_empty())))
}

/// Returns the next of these.
async fn next(told: &mut (impl Stream<Item = BTreeSet<Kind>> + Unpin)) -> BTreeSet<Kind> {
    let next = timeout(PATIENCE, told.next()).await;
    next.unwrap().unwrap()
}

/// What nobody but this test changes, so that all before it has been heard once it is told.
fn mark() {
    shell("ip rule add pref 1 lookup 77 protocol 80; ip rule del pref 1 lookup 77 protocol 80");
}

/// Entries of each kind, with a value each.
fn entries() -> Vec<(Op, Op)> {
    let mac = Mac([0x66, 0, 0, 0, 0, 9]);
    let neighbour = |name: &str, text: &str| NeighbourKey {
        link: link(name),
        address: address(text),
    };
    let fdb = FdbKey {
        link: link("vxlan.calico"),
        mac,
    };
    let rule = Rule {
        ipv6: false,
        priority: 99,
        mark: None,
        invert: false,
    };
    [("cali1", "10.1.0.9"), ("vxlan.calico", "10.1.1.0")]
        .map(|(name, text)| neighbour(name, text))
        .into_iter()
        .map(|key| {
            (
                Op::Neighbour(key.clone(), Some(mac)),
                Op::Neighbour(key, None),
            )
        })
        .chain([
            (
                Op::Fdb(fdb.clone(), Some(address("192.0.2.9"))),
                Op::Fdb(fdb, None),
            ),
            (Op::Rule(rule.clone(), true), Op::Rule(rule, false)),
        ])
        .collect()
}

fn many() -> impl Iterator<Item = (RouteKey, KernelRoute)> {
    // It asks the kernel which interface that is.
    let own = route(
        RouteKind::Unicast(hop("cali1", None, false)),
        Protocol::Device,
    );
    (0..10_000_u32).map(move |number| {
        let pod = IpAddr::from((0x0a02_0000 + number).to_be_bytes());
        (key(&format!("{pod}/32"), 0), own.clone())
    })
}

async fn tunnel(calc: &mut Calc) {
    calc.must_apply([Op::TunnelDevice(
        Tunnel::VxlanV4,
        Some(Box::new(device(Tunnel::VxlanV4))),
    )])
    .await;
    calc.hello().await;
}

async fn apply_all(calc: &mut Calc, ops: impl Iterator<Item = Op>) {
    let mut ops = ops.peekable();
    while ops.peek().is_some() {
        calc.must_apply(ops.by_ref().take(2000)).await;
    }
}

#[test]
fn what_others_change_of_ours_is_told_by_its_kind() {
    test(
        "others::what_others_change_of_ours_is_told_by_its_kind",
        || async {
            let (_helper, mut calc) = world().await;
            tunnel(&mut calc).await;
            let mut told = listen(calc.proxy.clone()).await;
            calc.must_apply(entries().into_iter().map(|(set, _)| set))
                .await;
            let own = route(
                RouteKind::Unicast(hop("cali1", None, false)),
                Protocol::Device,
            );
            let own = [
                (key("10.1.0.9/32", 0), own.clone()),
                (key("fd00:1::9/128", 1024), own),
            ];
            let own = own.map(|(key, route)| Op::KernelRoute(key, Some(Box::new(route))));
            calc.must_apply(own).await;
            for (change, kind) in [
                ("ip route del 10.1.0.9", Kind::KernelRoutes),
                (&format!("ip route add {OURS}"), Kind::KernelRoutes),
                // It is no longer ours, but took the place of what was.
                ("ip route replace 10.1.0.9 dev eth0", Kind::KernelRoutes),
                ("ip -6 route del fd00:1::9", Kind::KernelRoutes),
                (
                    "ip route add blackhole 10.9.0.0/16 proto 80",
                    Kind::KernelRoutes,
                ),
                (
                    "ip route add blackhole 10.9.0.0/16 table 77",
                    Kind::KernelRoutes,
                ),
                ("ip neigh del 10.1.0.9 dev cali1", Kind::Neighbours),
                (
                    "ip neigh replace 10.1.1.0 lladdr 02:00:00:00:00:10 dev vxlan.calico",
                    Kind::Neighbours,
                ),
                (
                    "bridge fdb del 66:00:00:00:00:09 dev vxlan.calico",
                    Kind::Fdb,
                ),
                (
                    "bridge fdb add 66:00:00:00:00:08 dev vxlan.calico dst 192.0.2.8",
                    Kind::Fdb,
                ),
                ("ip rule del pref 99", Kind::Rules),
            ] {
                shell(change);
                assert_eq!(next(&mut told).await, [kind].into(), "{change}");
            }
            // After a reading, entries that others have made are known.
            calc.hello().await;
            shell("bridge fdb replace 66:00:00:00:00:08 dev vxlan.calico dst 192.0.2.7");
            assert_eq!(next(&mut told).await, [Kind::Fdb].into());
        },
    );
}

#[test]
fn what_it_writes_itself_is_not_told_as_others_change() {
    test(
        "others::what_it_writes_itself_is_not_told_as_others_change",
        || async {
            let (_helper, mut calc) = world().await;
            tunnel(&mut calc).await;
            let mut told = listen(calc.proxy.clone()).await;
            apply_all(
                &mut calc,
                many().map(|(key, route)| Op::KernelRoute(key, Some(Box::new(route)))),
            )
            .await;
            for _ in 0..2 {
                calc.must_apply(entries().into_iter().map(|(set, _)| set))
                    .await;
                calc.must_apply(entries().into_iter().map(|(_, clear)| clear))
                    .await;
            }
            apply_all(&mut calc, many().map(|(key, _)| Op::KernelRoute(key, None))).await;
            mark();
            assert_eq!(next(&mut told).await, [Kind::Rules].into());
        },
    );
}

#[test]
fn what_is_not_ours_is_not_told() {
    test("others::what_is_not_ours_is_not_told", || async {
        let (_helper, calc) = world().await;
        let mut told = listen(calc.proxy.clone()).await;
        shell(
            "for n in $(seq 10000); do
               echo route add blackhole 10.200.$((n / 250)).$((n % 250)) table 78
             done | ip -batch -
             ip route add blackhole 10.201.0.0/16 proto static
             ip route add 10.202.0.0/16 dev eth0 proto bird
             ip neigh add 192.0.2.77 lladdr 02:00:00:00:00:10 nud permanent dev eth0
             ip neigh add 192.0.2.78 lladdr 02:00:00:00:00:10 nud reachable dev eth0
             ip rule add pref 98 lookup 78 protocol 80
             ip rule add pref 98 lookup 77 protocol 4
             ip link add blip type vxlan id 7 dstport 4790
             bridge fdb add 02:00:00:00:00:11 dev blip dst 192.0.2.11; ip link del blip",
        );
        mark();
        assert_eq!(next(&mut told).await, [Kind::Rules].into());
    });
}

#[test]
fn what_the_kernel_could_not_tell_may_be_of_any_kind() {
    test(
        "others::what_the_kernel_could_not_tell_may_be_of_any_kind",
        || async {
            let (helper, calc) = world().await;
            let mut told = listen(calc.proxy.clone()).await;
            helper.signal("STOP");
            shell(
                "for n in $(seq 30000); do
               echo route add blackhole 10.$((n / 62500 + 200)).$((n / 250 % 250)).$((n % 250))
             done | ip -batch -",
            );
            helper.signal("CONT");
            let all = [Kind::Neighbours, Kind::Fdb, Kind::KernelRoutes, Kind::Rules];
            assert_eq!(next(&mut told).await, all.into());
            // It listens on, and what was dropped meanwhile is not lost.
            mark();
            assert!(next(&mut told).await.contains(&Kind::Rules));
            drop::<Helper>(helper);
        },
    );
}
