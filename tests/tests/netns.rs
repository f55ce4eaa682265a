//! The real helper, with exactly its two capabilities, against the real kernel: program, dump,
//! compare; and what it must not do.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[path = "netns/feed.rs"]
mod feed;
#[path = "netns/flows.rs"]
mod flows;
#[path = "netns/hostile.rs"]
mod hostile;
#[path = "netns/known.rs"]
mod known;
#[path = "netns/l2.rs"]
mod l2;
#[path = "netns/lookups.rs"]
mod lookups;
#[path = "netns/others.rs"]
mod others;
#[path = "netns/ownership.rs"]
mod ownership;
#[path = "netns/routes.rs"]
mod routes;
#[path = "netns/wire.rs"]
mod wire;

use std::net::IpAddr;

use futures_util::StreamExt;
use ipc_proto::{BpfRoute, BpfTarget, Flags, LinkEvent, LinkRole, Observed, Op, OpError, Step};
use ipnet::IpNet;
use tests::{
    helper::{Helper, feed, link, link_state},
    isolate,
    netns::shell,
};

/// Runs `body` inside with a runtime.
fn test<F: Future<Output = ()>>(name: &str, body: impl FnOnce() -> F) {
    isolate::test(name, || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(body());
    });
}

fn prefix(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn bpf(text: &str, flags: u32, target: BpfTarget) -> (IpNet, BpfRoute) {
    let flags = Flags(flags);
    (prefix(text), BpfRoute { flags, target })
}

/// Sorts what was read, which has no order.
fn sorted(mut items: Vec<Observed>) -> Vec<String> {
    let mut lines: Vec<String> = items.drain(..).map(|item| format!("{item:?}")).collect();
    lines.sort();
    lines
}

#[test]
fn the_process_keeps_nothing_but_its_two_capabilities() {
    test(
        "the_process_keeps_nothing_but_its_two_capabilities",
        || async {
            let helper = Helper::start("");
            let mut calc = helper.connect().await;
            calc.hello().await;
            let pid = helper.pid();
            // The threads have their own capabilities.
            let threads = shell(&format!(
                "cat /proc/{pid}/task/*/status | grep ^CapEff | uniq"
            ));
            assert_eq!(threads.lines().count(), 1, "{threads}");
            let status = shell(&format!("cat /proc/{pid}/status"));
            let field = |name: &str| {
                let line = status.lines().find(|line| line.starts_with(name)).unwrap();
                line.split_once(':')
                    .unwrap()
                    .1
                    .split_whitespace()
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            // CAP_NET_ADMIN is 12, CAP_BPF is 39.
            let both = format!("{:016x}", (1_u64 << 12) | (1 << 39));
            for (name, wanted) in [
                ("Uid", "65534 65534 65534 65534"),
                ("Groups", ""),
                ("CapEff", &both),
                ("CapPrm", &both),
                ("CapBnd", &both),
                ("CapInh", "0000000000000000"),
                ("CapAmb", "0000000000000000"),
                ("NoNewPrivs", "1"),
            ] {
                assert_eq!(field(name), wanted, "{name}");
            }
            assert_eq!(shell("stat -c '%u %a' /sys/fs/bpf/cairn"), "65534 700\n");
        },
    );
}

#[test]
fn bpf_routes_read_back_as_they_were_set() {
    test("bpf_routes_read_back_as_they_were_set", || async {
        shell(
            "ip link add cali1 type veth peer name pod1 && ip link set pod1 up && ip link set cali1 up",
        );
        let helper = Helper::start("");
        let mut calc = helper.connect().await;
        let (welcome, items) = calc.hello().await;
        assert_eq!(welcome.bpf_max_entries, 262_144);
        assert_eq!(link_state(&items, "cali1").role, LinkRole::Workload);
        let routes = [
            bpf("0.0.0.0/0", 0, BpfTarget::None),
            bpf("10.1.0.0/16", 1, BpfTarget::None),
            bpf(
                "10.1.0.64/26",
                0x447,
                BpfTarget::NextHop(address("192.0.2.9")),
            ),
            bpf("10.1.0.9/32", 0xf, BpfTarget::Link(link("cali1"))),
            bpf("fd00:1::/64", 1, BpfTarget::None),
            bpf(
                "fd00:1::40/122",
                0x447,
                BpfTarget::NextHop(address("2001:db8::9")),
            ),
            bpf("fd00:1::9/128", 0xf, BpfTarget::Link(link("cali1"))),
        ];
        let set = |(prefix, route): (IpNet, BpfRoute)| Op::BpfRoute(prefix, Some(route));
        calc.must_apply(routes.clone().map(set)).await;
        let wanted: Vec<_> = routes
            .iter()
            .cloned()
            .map(|(prefix, route)| Observed::BpfRoute(prefix, Some(route)))
            .collect();
        assert_eq!(sorted(calc.read().await), sorted(wanted));

        // Absent already, present, absent.
        let clear = ["10.1.0.10/32", "10.1.0.9/32", "10.1.0.11/32", "fd00:1::/64"];
        calc.must_apply(clear.map(|text| Op::BpfRoute(prefix(text), None)))
            .await;
        assert_eq!(calc.read().await.len(), routes.len() - 2);

        // The pins outlive the helper; the interface of an entry may not.
        helper.signal("TERM");
        let (status, log) = helper.ended();
        assert!(status.success(), "{log}");
        shell("ip link del cali1");
        let helper = Helper::start("");
        let mut calc = helper.connect().await;
        let items = calc.read().await;
        assert_eq!(items.len(), routes.len() - 2);
        assert!(items.contains(&Observed::BpfRoute(prefix("fd00:1::9/128"), None)));
    });
}

#[test]
fn changes_of_interfaces_are_told_once_and_in_order() {
    test(
        "changes_of_interfaces_are_told_once_and_in_order",
        || async {
            let helper = Helper::start("");
            let mut calc = helper.connect().await;
            let mut feeds = calc.proxy.receive_links_changed().await.unwrap();
            let (welcome, items) = calc.hello().await;
            assert_eq!(link_state(&items, "lo").role, LinkRole::Other);
            shell(
                "ip link add eth0 address 02:00:00:00:00:01 mtu 1400 type veth peer name far0 && ip link set far0 up \
             && ip addr add 192.0.2.1/24 dev eth0 && ip -6 addr add 2001:db8::1/64 dev eth0 nodad \
             && ip link set eth0 up",
            );
            let mut seq = welcome.feed;
            let mut next = async || {
                let signal = feeds.next().await.unwrap();
                let feed = feed(signal.args().unwrap().feed());
                seq += 1;
                assert_eq!(feed.seq, seq);
                feed.events
            };
            let eth0 = link("eth0");
            // The kernel adds its own fe80 address once the interface is up.
            let state = 'found: loop {
                for event in next().await {
                    if let LinkEvent::Set(state) = event
                        && state.link == eth0
                        && state.up
                        && state.addresses.len() >= 2
                    {
                        break 'found state;
                    }
                }
            };
            assert_eq!(state.role, LinkRole::Uplink);
            assert_eq!(state.mtu, 1400);
            assert_eq!(state.mac, Some("02:00:00:00:00:01".parse().unwrap()));
            for own in ["192.0.2.1/24", "2001:db8::1/64"] {
                assert!(state.addresses.contains(&prefix(own)), "{state:?}");
            }
            shell("ip link set eth0 down && ip link set eth0 name eth1 && ip link del eth1");
            loop {
                if next().await.contains(&LinkEvent::Gone(eth0.clone())) {
                    break;
                }
            }
            let (_, items) = calc.hello().await;
            assert_eq!(
                items
                    .iter()
                    .filter(|item| matches!(item, Observed::Link(_)))
                    .count(),
                1
            );
        },
    );
}

#[test]
fn a_request_that_overtakes_its_interfaces_event_is_served() {
    test(
        "a_request_that_overtakes_its_interfaces_event_is_served",
        || async {
            let helper = Helper::start("");
            let mut calc = helper.connect().await;
            calc.hello().await;
            for round in 0..20 {
                let name = format!("cali{round}");
                shell(&format!(
                    "ip link add {name} type veth peer name pod{round}"
                ));
                let (prefix, route) = bpf("10.1.0.9/32", 0xf, BpfTarget::Link(link(&name)));
                calc.must_apply([Op::BpfRoute(prefix, Some(route.clone()))])
                    .await;
                shell(&format!("ip link del {name}"));
                let failed = calc.apply([Op::BpfRoute(prefix, Some(route))]).await;
                // The event may not be there yet; then the table does not know better.
                assert!(
                    failed.is_empty() || matches!(failed.as_slice(), [(0, OpError::StaleLink(_))]),
                    "{failed:?}"
                );
            }
            let gone = ipc_proto::Link {
                index: 9999,
                name: "cali9".parse().unwrap(),
            };
            let (prefix, route) = bpf("10.1.0.9/32", 0xf, BpfTarget::Link(gone.clone()));
            let failed = calc.apply([Op::BpfRoute(prefix, Some(route))]).await;
            assert_eq!(failed, [(0, OpError::StaleLink(gone))]);
        },
    );
}

#[test]
fn a_step_whose_need_failed_is_not_tried() {
    test("a_step_whose_need_failed_is_not_tried", || async {
        let helper = Helper::start("");
        let mut calc = helper.connect().await;
        calc.hello().await;
        let op = |text| Op::BpfRoute(prefix(text), Some(BpfRoute::default()));
        let step = |text, needs| Step {
            op: op(text),
            needs,
        };
        let failed = calc
            .try_apply(vec![
                step("127.0.0.0/24", None),
                step("10.1.0.0/24", Some(0)),
                step("10.2.0.0/24", None),
                step("10.3.0.0/24", Some(2)),
                step("10.4.0.0/24", Some(9)),
            ])
            .await
            .unwrap();
        let numbers: Vec<_> = failed.iter().map(|(at, _)| *at).collect();
        assert_eq!(numbers, [0, 1, 4]);
        assert_eq!(failed[1].1, OpError::NotTried(0));
        assert_eq!(failed[2].1, OpError::NotTried(9));
        let set = |text| Observed::BpfRoute(prefix(text), Some(BpfRoute::default()));
        let wanted = ["10.2.0.0/24", "10.3.0.0/24"].map(set);
        assert_eq!(sorted(calc.read().await), sorted(wanted.to_vec()));
    });
}

#[test]
fn a_full_map_refuses_what_is_new_and_takes_what_is_not() {
    test(
        "a_full_map_refuses_what_is_new_and_takes_what_is_not",
        || async {
            let helper = Helper::start("bpf_map_size_route = 100");
            let mut calc = helper.connect().await;
            let (welcome, _) = calc.hello().await;
            assert_eq!(welcome.bpf_max_entries, 100);
            let op = |number: u8, flags| {
                let flags = Flags(flags);
                let target = BpfTarget::None;
                let prefix = prefix(&format!("10.0.{number}.0/24"));
                Op::BpfRoute(prefix, Some(BpfRoute { flags, target }))
            };
            let failed = calc.apply((0..110).map(|number| op(number, 0))).await;
            assert_eq!(failed.len(), 10);
            assert!(failed.iter().all(|(at, error)| *at >= 100
            && matches!(error, OpError::Kernel { errno: 28, call } if call.contains("cali_v4"))));
            calc.must_apply((0..100).map(|number| op(number, 1))).await;
        },
    );
}

#[test]
fn a_full_sized_map_fits_through() {
    test("a_full_sized_map_fits_through", || async {
        const COUNT: u32 = 250_000;
        let helper = Helper::start("");
        let mut calc = helper.connect().await;
        calc.hello().await;
        let ops = (0..COUNT).map(|number| {
            let pod = IpAddr::from((0x0a00_0000 + number).to_be_bytes());
            let hop = BpfTarget::NextHop(address("192.0.2.9"));
            let (prefix, route) = bpf(&IpNet::from(pod).to_string(), 0x45, hop);
            Op::BpfRoute(prefix, Some(route))
        });
        let mut ops = ops.peekable();
        while ops.peek().is_some() {
            calc.must_apply(ops.by_ref().take(2048)).await;
        }
        let items = calc.read().await;
        assert_eq!(items.len(), usize::try_from(COUNT).unwrap());
        assert!(
            items
                .iter()
                .all(|item| matches!(item, Observed::BpfRoute(_, Some(_))))
        );
    });
}

/// Starts a helper that must not start, and returns what it says.
fn refused(helper: Helper) -> String {
    let (status, log) = helper.ended();
    assert_eq!(status.code(), Some(1), "{log}");
    log
}

#[test]
fn a_pin_of_another_shape_is_named_and_left_alone() {
    test("a_pin_of_another_shape_is_named_and_left_alone", || async {
        let pin = "/sys/fs/bpf/cairn/cali_v6_routes";
        let make = |shape: &str| {
            shell(&format!(
                "mkdir -p /sys/fs/bpf/cairn && rm -f {pin} && bpftool map create {pin} {shape} \
                 name x && chown -R 65534 /sys/fs/bpf/cairn"
            ))
        };
        for (shape, said) in [
            (
                "type hash key 4 value 4 entries 10",
                "type Hash, not LPM_TRIE",
            ),
            (
                "type lpm_trie key 8 value 20 entries 262144 flags 1",
                "key size 8, not 20",
            ),
            (
                "type lpm_trie key 20 value 8 entries 262144 flags 1",
                "value size 8, not 20",
            ),
            (
                "type lpm_trie key 20 value 20 entries 1000 flags 1",
                "max_entries 1000, not 262144",
            ),
        ] {
            make(shape);
            let before = shell(&format!("bpftool map show pinned {pin}"));
            let log = refused(Helper::start(""));
            assert!(log.contains(pin) && log.contains(said), "{log}");
            assert!(
                log.contains("remove the pin, or set bpf_map_size_route"),
                "{log}"
            );
            assert_eq!(shell(&format!("bpftool map show pinned {pin}")), before);
        }
        make("type lpm_trie key 20 value 20 entries 1000 flags 1");
        shell("rm -f /sys/fs/bpf/cairn/cali_v4_routes");
        let helper = Helper::start("bpf_map_size_route = 1000");
        helper.connect().await.hello().await;
    });
}
