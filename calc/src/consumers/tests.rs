//! What consumers are told, beside what the kernel of a model helper holds.

#![expect(
    clippy::disallowed_methods,
    clippy::wildcard_enum_match_arm,
    reason = "any instant will do to start with, and the model knows few ops"
)]

mod subscriber;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

use ipc_proto::{
    Ack, Batch, BpfTarget, Flags, Incarnation, Lease, Link, Observed, Op, SnapshotId, Welcome,
};
use proptest::{collection::vec, option, prelude::*};

use self::subscriber::Subscriber;
use super::*;
use crate::reconciler::{Input, Output, Reconciler};

type Routes = BTreeMap<IpNet, BpfRoute>;

/// The cores, and the helper's part played by hand.
struct Bench {
    reconciler: Reconciler,
    consumers: Consumers,
    local: BTreeSet<IpAddr>,
    kernel: Routes,
    batch: Option<Batch>,
    now: Instant,
}

impl Bench {
    fn starting() -> Self {
        Self {
            reconciler: Reconciler::default(),
            consumers: Consumers::default(),
            local: BTreeSet::new(),
            kernel: Routes::new(),
            batch: None,
            now: Instant::now(),
        }
    }

    /// Starts with all known and the first signal behind it.
    fn new() -> Self {
        let mut bench = Self::starting();
        bench.in_sync();
        bench.connect();
        assert_eq!(bench.signals(), [Signal::Reset { seq: 1 }]);
        bench
    }

    fn in_sync(&mut self) {
        self.handle(Input::InSync { complete: true });
    }

    fn handle(&mut self, input: Input) {
        self.reconciler.handle(self.now, input);
    }

    fn want(&mut self, n: u16, flags: Option<u32>) {
        let op = Op::BpfRoute(prefix(n), flags.map(route));
        self.reconciler.want(op).unwrap();
    }

    /// The helper is there, perhaps again, and what was in flight is lost.
    fn connect(&mut self) {
        self.handle(Input::Disconnected);
        self.batch = None;
        self.handle(Input::Connected);
        assert_eq!(self.reconciler.poll(self.now), Some(Output::Hello));
        let welcome = Welcome {
            version: ipc_proto::VERSION,
            incarnation: Incarnation(1),
            lease: Lease(1),
            max_steps: 5000,
            bpf_max_entries: 5000,
            snapshot: SnapshotId(1),
            pages: 1,
            feed: 0,
        };
        let read =
            |(key, value): (&IpNet, &BpfRoute)| Observed::BpfRoute(*key, Some(value.clone()));
        let observed = self.kernel.iter().map(read).collect();
        self.handle(Input::Welcome(welcome, observed));
    }

    /// As the shell does after each event: sends what there is to send, and tells.
    fn signals(&mut self) -> Vec<Signal> {
        while let Some(output) = self.reconciler.poll(self.now) {
            match output {
                Output::Apply(batch) => self.batch = Some(batch),
                other => panic!("{other:?}"),
            }
        }
        let Some(told) = self.reconciler.tell() else {
            return Vec::new();
        };
        let awaits = |prefix: &_| self.reconciler.awaits(prefix);
        self.consumers.settle(told, &self.local, awaits)
    }

    /// The kernel takes over what is in flight.
    fn apply(&mut self) {
        let Some(batch) = &self.batch else { return };
        for step in &batch.steps {
            match step.op.clone() {
                Op::BpfRoute(key, Some(value)) => drop(self.kernel.insert(key, value)),
                Op::BpfRoute(key, None) => drop(self.kernel.remove(&key)),
                other => panic!("{other:?}"),
            }
        }
    }

    /// The helper does what it was asked for, and says so.
    fn ack(&mut self) {
        self.apply();
        if let Some(batch) = self.batch.take() {
            let failed = Vec::new();
            self.handle(Input::Ack(Ack {
                id: batch.id,
                failed,
            }));
        }
    }

    fn page(&self, after: &str) -> Option<SnapshotPage> {
        let after: Cursor = after.parse().unwrap();
        let routes = self.reconciler.told_after(after.prefix())?;
        Some(self.consumers.page(&after, routes))
    }

    /// Returns all pages as one.
    fn pages(&self) -> SnapshotPage {
        let mut all = self.page("").unwrap();
        while !all.next.is_empty() {
            let page = self.page(&all.next).unwrap();
            assert!(page.host_ips.len() + page.routes.len() > 0);
            all.host_ips.extend(page.host_ips);
            all.routes.extend(page.routes);
            all.next = page.next;
        }
        all
    }
}

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

#[derive(Clone, Debug)]
enum Step {
    /// A route is wanted or not.
    Want(u16, Option<u32>),
    /// So many are.
    WantMany(u16, Option<u32>),
    /// The host has an address or not.
    Address(u8, bool),
    /// The helper answers.
    Ack,
    /// It dies after it has done what was asked, or before.
    Crash(bool),
    /// It cannot be reached for a while.
    Gone,
    /// Somebody else takes a route away, or sets it.
    Drift(u16, bool),
    /// The subscriber hears what was signalled.
    Hear,
    /// So do those that were signalled first, but for one that gets lost.
    Lose,
    /// It reads a page, if it needs one.
    Read,
    /// It starts anew.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let flags = || option::weighted(0.7, 1..4_u32);
    prop_oneof![
        6 => (0..12_u16, flags()).prop_map(|(n, flags)| Step::Want(n, flags)),
        1 => (990..1200_u16, flags()).prop_map(|(n, flags)| Step::WantMany(n, flags)),
        2 => (0..6_u8, any::<bool>()).prop_map(|(n, there)| Step::Address(n, there)),
        6 => Just(Step::Ack),
        1 => any::<bool>().prop_map(Step::Crash),
        1 => Just(Step::Gone),
        1 => (0..12_u16, any::<bool>()).prop_map(|(n, set)| Step::Drift(n, set)),
        5 => Just(Step::Hear),
        1 => Just(Step::Lose),
        5 => Just(Step::Read),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// However late it comes, whatever it misses and whenever it reads: in the end it has what the
    /// kernel holds.
    #[test]
    fn a_subscriber_catches_up_without_a_gap(steps in vec(step(), 0..80)) {
        let mut bench = Bench::starting();
        bench.in_sync();
        bench.connect();
        let mut queue = VecDeque::new();
        let mut subscriber = Subscriber::default();
        for step in steps {
            match step {
                Step::Want(n, flags) => bench.want(n, flags),
                Step::WantMany(many, flags) => (0..many).for_each(|n| bench.want(n, flags)),
                Step::Address(n, true) => drop(bench.local.insert([192, 0, 2, n].into())),
                Step::Address(n, false) => drop(bench.local.remove(&IpAddr::from([192, 0, 2, n]))),
                Step::Ack => bench.ack(),
                Step::Crash(carried_out) => {
                    if carried_out {
                        bench.apply();
                    }
                    bench.connect();
                }
                Step::Gone => {
                    bench.batch = None;
                    bench.handle(Input::Disconnected);
                }
                Step::Drift(n, true) => drop(bench.kernel.insert(prefix(n), route(9))),
                Step::Drift(n, false) => drop(bench.kernel.remove(&prefix(n))),
                Step::Hear => queue.drain(..).for_each(|signal| subscriber.hear(signal)),
                Step::Lose => {
                    if queue.pop_front().is_some() && let Some(signal) = queue.pop_front() {
                        subscriber.hear(signal);
                    }
                }
                Step::Read => subscriber.read(&bench),
                Step::Restart => {
                    // What was signalled before is not for it.
                    queue.clear();
                    subscriber = Subscriber::default();
                }
            }
            queue.extend(bench.signals());
        }
        // All comes to rest; the last signal tells of a loss that no other has told of.
        bench.connect();
        for n in 0..3 {
            queue.extend(bench.signals());
            bench.ack();
            bench.want(2, Some(20 + n));
        }
        bench.ack();
        queue.extend(bench.signals());
        bench.ack();
        queue.extend(bench.signals());
        for _ in 0..20 {
            queue.drain(..).for_each(|signal| subscriber.hear(signal));
            subscriber.read(&bench);
        }
        let kernel = bench.kernel.iter().map(|(key, value)| RouteRow::new(*key, value));
        let kernel: BTreeMap<_, _> = kernel.map(|row| (row.prefix.clone(), row)).collect();
        prop_assert_eq!(subscriber.routes(), Some(&kernel));
        let local: Vec<_> = bench.local.iter().map(IpAddr::to_string).collect();
        prop_assert_eq!(subscriber.host_ips(), local);
    }
}
