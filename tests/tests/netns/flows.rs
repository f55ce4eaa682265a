//! Flow flushes against the kernel's own table: all flows of the addresses that were asked for, in
//! any place of theirs and any zone, and no other.

use std::{collections::BTreeSet, net::IpAddr};

use futures_util::{FutureExt, StreamExt};
use ipc_proto::{Lane, Op, OpError, Step};
use tests::{
    flows::{self, Flow, many},
    helper::{Calc, Helper},
    netns::shell,
};

use super::{address, test};

const ALICE: &str = "10.1.0.9";
const OTHER: &str = "10.1.0.10";

async fn world() -> (Helper, Calc) {
    // Connections are tracked in a namespace once something there asks for it.
    shell(
        "nft 'add table ip t; add chain ip t c { type filter hook input priority 0; }; \
           add rule ip t c ct state new'",
    );
    let helper = Helper::start("");
    let mut calc = helper.connect().await;
    calc.hello().await;
    (helper, calc)
}

fn set(addresses: impl IntoIterator<Item = IpAddr>) -> BTreeSet<IpAddr> {
    addresses.into_iter().collect()
}

/// Flows that have the address in each of the four places and in another zone, and such as do not
/// have it.
fn of_all_kinds(own: &str, other: &str, far: [&str; 3]) -> Vec<Flow> {
    let (own, other) = (address(own), address(other));
    let [far, service, node] = far.map(address);
    let plain = |port| Flow::plain(own, far, port);
    vec![
        plain(1),
        Flow::plain(far, own, 2),
        Flow {
            zone: 7,
            ..plain(3)
        },
        // A service leads to it.
        Flow {
            original: [far, service],
            reply: [own, far],
            ports: [4, 53],
            zone: 0,
        },
        // It goes out under the node's address.
        Flow {
            original: [own, far],
            reply: [far, node],
            ports: [5, 53],
            zone: 0,
        },
        // What went to it is translated to another.
        Flow {
            original: [far, own],
            reply: [other, far],
            ports: [6, 53],
            zone: 9,
        },
        // Another goes out under its address.
        Flow {
            original: [other, far],
            reply: [far, own],
            ports: [7, 53],
            zone: 0,
        },
        Flow::plain(other, far, 8),
        Flow {
            zone: 7,
            ..Flow::plain(other, far, 9)
        },
        Flow::plain(far, node, 10),
    ]
}

const FAR: [&str; 3] = ["192.0.2.53", "10.96.0.1", "192.0.2.1"];
const FAR_V6: [&str; 3] = ["2001:db8::53", "fd00:96::1", "2001:db8::1"];

/// Flushes what `asked` names and compares what is left, all of it.
async fn leaves_the_others(calc: &mut Calc, asked: BTreeSet<IpAddr>) {
    let before = flows::tracked();
    let left: BTreeSet<Flow> = before
        .iter()
        .filter(|flow| !flow.has(&asked))
        .copied()
        .collect();
    assert!(left.len() < before.len(), "there is something to forget");
    assert_eq!(calc.flush(asked).await, []);
    assert_eq!(flows::tracked(), left);
}

#[test]
fn one_address_is_forgotten_in_all_places_and_zones() {
    test(
        "flows::one_address_is_forgotten_in_all_places_and_zones",
        || async {
            let (_helper, mut calc) = world().await;
            flows::track(of_all_kinds(ALICE, OTHER, FAR));
            flows::track(of_all_kinds("fd00:1::9", "fd00:1::10", FAR_V6));
            assert_eq!(flows::tracked().len(), 20);
            leaves_the_others(&mut calc, set([address(ALICE)])).await;
            assert_eq!(flows::tracked().len(), 13);
            leaves_the_others(&mut calc, set([address("fd00:1::9")])).await;
            assert_eq!(flows::tracked().len(), 6);
            // There is nothing left of it, and that is no error.
            assert_eq!(calc.flush([address(ALICE)]).await, []);
            assert_eq!(flows::tracked().len(), 6);
        },
    );
}

#[test]
fn many_addresses_are_forgotten_together_and_nothing_else() {
    test(
        "flows::many_addresses_are_forgotten_together_and_nothing_else",
        || async {
            let (_helper, mut calc) = world().await;
            flows::track(many(10_000));
            flows::track(of_all_kinds(ALICE, OTHER, FAR));
            flows::track(of_all_kinds("fd00:1::9", "fd00:1::10", FAR_V6));
            leaves_the_others(&mut calc, set([address(ALICE), address("fd00:1::9")])).await;
            let first = many(10_000).map(|flow| flow.original[0]);
            leaves_the_others(&mut calc, first.take(100).collect()).await;
            let one = many(10_000).map(|flow| flow.original[0]).nth(5_000);
            leaves_the_others(&mut calc, one.into_iter().collect()).await;
            // More than the helper holds at a time.
            flows::track(many(30_000).skip(10_000));
            leaves_the_others(&mut calc, set([address("192.0.2.53"), address(OTHER)])).await;
        },
    );
}

#[test]
fn what_may_not_be_flushed_is_refused_alone() {
    test(
        "flows::what_may_not_be_flushed_is_refused_alone",
        || async {
            shell(
                "ip link add eth0 type veth peer name far0; ip link set eth0 up; ip link set far0 up",
            );
            shell("ip addr add 192.0.2.1/24 dev eth0");
            let (_helper, mut calc) = world().await;
            flows::track(of_all_kinds(ALICE, OTHER, FAR));
            let asked = ["192.0.2.1", "127.0.0.1", ALICE, "0.0.0.0", "::", "ff02::1"];
            let failed = calc.flush(asked.map(address)).await;
            let numbers: Vec<u32> = failed.iter().map(|(at, _)| *at).collect();
            assert_eq!(numbers, [0, 1, 3, 4, 5]);
            assert!(
                failed
                    .iter()
                    .all(|(_, error)| matches!(error, OpError::Denied(_))),
                "{failed:?}"
            );
            assert_eq!(flows::tracked().len(), 3);
            let on_the_wrong_lane = calc.apply([Op::FlowFlush(address(ALICE))]).await;
            assert!(matches!(
                on_the_wrong_lane.as_slice(),
                [(0, OpError::Denied(_))]
            ));
        },
    );
}

#[test]
fn a_flush_holds_up_no_route() {
    test("flows::a_flush_holds_up_no_route", || async {
        let (_helper, mut calc) = world().await;
        flows::track(many(60_000));
        let asked: Vec<IpAddr> = many(2_000).map(|flow| flow.original[0]).collect();
        let flush = |lease, number| ipc_proto::Batch {
            lease,
            lane: Lane::Flows,
            id: ipc_proto::BatchId((1_u64 << 40) + number),
            steps: asked
                .iter()
                .map(|address| Step {
                    op: Op::FlowFlush(*address),
                    needs: None,
                })
                .collect(),
        };
        let route = Op::BpfRoute(
            super::prefix("10.1.0.0/24"),
            Some(ipc_proto::BpfRoute::default()),
        );
        let mut ends = calc.proxy.receive_flows_flushed().await.unwrap();
        // One that was held up could be answered just before the end is told, but not several. A flush
        // that ends while this process does not run shows nothing.
        let mut during = 0;
        for number in 0..100 {
            let bytes = tests::helper::bytes(&flush(calc.lease, number));
            calc.proxy.apply(&bytes).await.unwrap();
            let mut answered = 0;
            while ends.next().now_or_never().is_none() {
                calc.must_apply([route.clone()]).await;
                answered += 1;
            }
            during = during.max(answered);
            if during >= 5 {
                return;
            }
        }
        panic!("at most {during} routes were set while flows were flushed");
    });
}
