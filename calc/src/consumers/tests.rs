//! What consumers are told, beside what the kernel of a model helper holds.

mod bench;
mod subscriber;

use ipc_proto::{BpfTarget, Flags, Link};
use proptest::{collection::vec, option, prelude::*};

use self::bench::Bench;
use super::*;
use crate::reconciler::Input;

fn prefix(n: u16) -> IpNet {
    let [high, low] = n.to_be_bytes();
    if n.is_multiple_of(2) {
        format!("10.9.{high}.{low}/32").parse().unwrap()
    } else {
        format!("fd09::{high}:{low}/128").parse().unwrap()
    }
}

fn route(flags: u32) -> BpfRoute {
    BpfRoute {
        flags: Flags(flags),
        target: BpfTarget::None,
    }
}

fn row(n: u16, flags: u32) -> RouteRow {
    RouteRow::new(prefix(n), &route(flags))
}

fn changed(seq: u64, updates: &[RouteRow], deletes: &[u16]) -> Signal {
    Signal::Routes {
        seq,
        updates: updates.to_vec(),
        deletes: deletes.iter().map(|n| prefix(*n).to_string()).collect(),
    }
}

fn host_ips(seq: u64, addresses: &[&str]) -> Signal {
    Signal::HostIps {
        seq,
        addresses: addresses.iter().map(|text| (*text).to_owned()).collect(),
    }
}

#[test]
fn nothing_is_told_before_all_is_right_for_the_first_time() {
    let mut bench = Bench::starting();
    bench.want(2, Some(4));
    assert_eq!(bench.signals(), []);
    bench.connect();
    assert_eq!(bench.signals(), []);
    bench.in_sync();
    assert_eq!(bench.signals(), []);
    assert_eq!(bench.page(""), None);
    bench.ack();
    bench.want(4, Some(4));
    assert_eq!(bench.signals(), []);
    bench.ack();
    assert_eq!(bench.signals(), [Signal::Reset { seq: 1 }]);
    let page = bench.page("").unwrap();
    assert_eq!((page.seq, page.routes), (1, vec![row(2, 4), row(4, 4)]));
}

#[test]
fn a_route_is_told_once_it_is_acknowledged() {
    let mut bench = Bench::new();
    bench.want(2, Some(4));
    assert_eq!(bench.signals(), []);
    assert_eq!(bench.pages().routes, []);
    bench.ack();
    // More is wanted by then.
    bench.want(4, Some(4));
    assert_eq!(bench.signals(), [changed(2, &[row(2, 4)], &[])]);
    bench.ack();
    bench.want(2, Some(16));
    bench.want(4, None);
    assert_eq!(bench.signals(), [changed(3, &[row(4, 4)], &[])]);
    assert_eq!(bench.pages().routes, [row(2, 4), row(4, 4)]);
    bench.ack();
    assert_eq!(bench.signals(), [changed(4, &[row(2, 16)], &[4])]);
    assert_eq!(bench.signals(), []);
}

#[test]
fn a_crash_of_the_helper_and_a_repair_are_no_news() {
    for carried_out in [false, true] {
        let mut bench = Bench::new();
        bench.want(2, Some(4));
        bench.want(4, Some(4));
        bench.signals();
        bench.ack();
        bench.signals();
        // One change is in flight, and somebody else takes a route away.
        bench.want(4, Some(16));
        assert_eq!(bench.signals(), []);
        if carried_out {
            bench.apply();
        }
        bench.kernel.remove(&prefix(2));
        bench.connect();
        assert_eq!(bench.signals(), [], "it is being repaired");
        let page = bench.page("").unwrap();
        assert_eq!((page.seq, page.routes), (2, vec![row(2, 4), row(4, 4)]));
        bench.ack();
        assert_eq!(bench.signals(), [changed(3, &[row(4, 16)], &[])]);
        bench.connect();
        assert_eq!(bench.signals(), []);
    }
}

#[test]
fn an_entry_that_cannot_be_read_or_changed_stays_as_it_was_told() {
    let mut bench = Bench::new();
    bench.want(2, Some(4));
    bench.signals();
    bench.ack();
    bench.signals();
    bench.unreadable.insert(prefix(2));
    bench.connect();
    assert_eq!(bench.signals(), []);
    bench.fail();
    assert_eq!(bench.signals(), []);
    assert_eq!(bench.pages().routes, [row(2, 4)]);
    bench.want(2, None);
    assert_eq!(bench.signals(), []);
    bench.ack();
    assert_eq!(bench.signals(), [changed(3, &[], &[2])]);
}

#[test]
fn host_addresses_are_told_with_their_routes_and_only_if_they_differ() {
    let mut bench = Bench::new();
    let address: IpAddr = "10.9.0.2".parse().unwrap();
    bench.local.insert(address);
    bench.want(2, Some(24));
    assert_eq!(bench.signals(), []);
    bench.ack();
    let told = [changed(2, &[row(2, 24)], &[]), host_ips(3, &["10.9.0.2"])];
    assert_eq!(bench.signals(), told);
    assert_eq!(bench.signals(), []);
    // One without a route of its own waits for nothing.
    bench.local.insert("10.9.0.1".parse().unwrap());
    let told = [host_ips(4, &["10.9.0.1", "10.9.0.2"])];
    assert_eq!(bench.signals(), told);
    assert_eq!(bench.pages().host_ips, ["10.9.0.1", "10.9.0.2"]);
    // It goes as its route does.
    bench.local.remove(&address);
    bench.want(2, None);
    assert_eq!(bench.signals(), []);
    bench.ack();
    let told = [changed(5, &[], &[2]), host_ips(6, &["10.9.0.1"])];
    assert_eq!(bench.signals(), told);
}

#[test]
fn more_than_a_signal_holds_is_a_reset() {
    // By number, and by size: the second lot are few enough.
    for (few, many, flags) in [(0_u16..500, 0_u16..1002, 4), (0..400, 0..900, 16)] {
        let mut bench = Bench::new();
        for n in few.clone() {
            bench.want(n, Some(flags));
        }
        bench.signals();
        bench.ack();
        let told = bench.signals();
        assert!(matches!(told.as_slice(), [Signal::Routes { seq: 2, .. }]));
        for n in many.clone() {
            bench.want(n, Some(1));
        }
        bench.signals();
        bench.ack();
        assert_eq!(bench.signals(), [Signal::Reset { seq: 3 }]);
        let all = bench.pages();
        assert_eq!((all.seq, all.routes.len()), (3, many.len()));
        let size = bench.page("").unwrap().routes.len();
        assert!(size < many.len(), "{size} in a page");
        for n in many.clone() {
            bench.want(n, None);
        }
        for n in few {
            bench.want(n, Some(1));
        }
        bench.signals();
        bench.ack();
        assert_eq!(bench.signals().len(), 1);
    }
}

/// A bench where so much is done at a time that no answer is told one by one.
fn loading(batches: u16) -> Bench {
    let mut bench = Bench::starting();
    bench.max_steps = 1001;
    bench.in_sync();
    bench.connect();
    assert_eq!(bench.signals(), [Signal::Reset { seq: 1 }]);
    (0..batches * 1001).for_each(|n| bench.want(n, Some(4)));
    bench
}

#[test]
fn a_load_of_many_batches_is_one_reset_at_its_end() {
    let mut bench = loading(5);
    for _ in 0..5 {
        assert_eq!(bench.signals(), []);
        bench.ack();
    }
    assert_eq!(bench.signals(), [Signal::Reset { seq: 2 }]);
    // What comes then is told one by one.
    assert_eq!(bench.pages().routes.len(), 5005);
    bench.want(2, Some(16));
    assert_eq!(bench.signals(), []);
    bench.ack();
    assert_eq!(bench.signals(), [changed(3, &[row(2, 16)], &[])]);
}

#[test]
fn a_load_that_the_helper_dies_in_is_told_as_far_as_it_got() {
    let mut bench = loading(3);
    assert_eq!(bench.signals(), []);
    bench.ack();
    assert_eq!(bench.signals(), []);
    bench.handle(Input::Disconnected);
    assert_eq!(bench.signals(), [Signal::Reset { seq: 2 }]);
    assert_eq!(bench.signals(), []);
}

#[test]
fn a_load_without_an_end_is_told_now_and_then() {
    let mut bench = loading(1);
    let mut resets = 0;
    for round in 0..250_u32 {
        // There is always more to be done than was done.
        (0..1001).for_each(|n| bench.want(n, Some(8 + round)));
        resets += bench.signals().len();
        bench.ack();
    }
    assert_eq!(resets, 2);
}

#[test]
fn many_host_addresses_are_a_reset_and_some_pages() {
    let mut bench = Bench::new();
    bench.want(2, Some(4));
    bench.signals();
    bench.ack();
    bench.signals();
    let hosts = (0..2500_u16).map(|n| format!("192.0.{}.{}", n / 250, n % 250));
    bench.local = hosts.map(|text| text.parse().unwrap()).collect();
    assert_eq!(bench.signals(), [Signal::Reset { seq: 3 }]);
    let all = bench.pages();
    let texts: Vec<_> = bench.local.iter().map(IpAddr::to_string).collect();
    assert_eq!(all.host_ips, texts);
    assert_eq!(all.routes, [row(2, 4)]);
}

#[test]
fn a_page_starts_after_what_there_is_or_was() {
    for (text, cursor) in [
        ("", Some(Cursor::Start)),
        (
            "10.9.0.2",
            Some(Cursor::Address("10.9.0.2".parse().unwrap())),
        ),
        ("10.9.0.2/32", Some(Cursor::Route(prefix(2)))),
        ("fd09::0:1/128", Some(Cursor::Route(prefix(1)))),
        ("10.9.0.2/33", None),
        ("next", None),
    ] {
        assert_eq!(text.parse().ok(), cursor, "{text}");
    }
}

proptest! {
    /// The sizes that are reckoned with are those on the wire.
    #[test]
    fn a_signal_is_no_longer_than_it_may_be(
        hops in vec(option::of(any::<IpAddr>()), 1..1000),
        deletes in 0..300_u16,
    ) {
        let link = Link { index: 70_000, name: "cali0123456789a".parse().unwrap() };
        let mut changes: Vec<(IpNet, Option<BpfRoute>)> = hops
            .into_iter()
            .map(|hop| {
                let prefix = hop.map_or(prefix(7), IpNet::from);
                let target = hop.map_or(BpfTarget::Link(link.clone()), BpfTarget::NextHop);
                (prefix, Some(BpfRoute { flags: Flags(u32::MAX), target }))
            })
            .collect();
        changes.extend((0..deletes).map(|n| (prefix(n), None)));
        let context = zbus::wire::serialized::Context::new(zbus::wire::LE, 0);
        let reckoned: usize = changes
            .iter()
            .map(|(prefix, route)| match route {
                Some(route) => row_size(&RouteRow::new(*prefix, route)),
                None => text_size(&prefix.to_string()),
            })
            .sum();
        let fits = reckoned <= MAX_BYTES - FRAME && changes.len() <= MAX_CHANGES;
        match routes(1, changes) {
            Some(Signal::Routes { seq, updates, deletes }) => {
                prop_assert!(fits);
                let size = zbus::wire::serialized_size(context, &(seq, updates, deletes));
                let size = *size.unwrap();
                prop_assert!(size <= MAX_BYTES && size >= reckoned, "{size} {reckoned}");
            }
            other => prop_assert!(!fits, "{other:?}"),
        }
    }
}

#[test]
fn addresses_that_are_clean_are_told_under_the_same_numbers() {
    let mut consumers = Consumers::default();
    assert_eq!(consumers.clean(&[]), []);
    let addresses: Vec<IpAddr> = (0..1_200_u32)
        .map(|n| IpAddr::from(n.to_be_bytes()))
        .collect();
    let signals = consumers.clean(&addresses);
    let numbers: Vec<u64> = signals.iter().map(|signal| signal.after() + 1).collect();
    assert_eq!(numbers, [1, 2, 3]);
    let told = signals.into_iter().flat_map(|signal| {
        let Signal::Clean { addresses, .. } = signal else {
            panic!("{signal:?}");
        };
        addresses
    });
    assert!(told.eq(addresses.iter().map(ToString::to_string)));
}
