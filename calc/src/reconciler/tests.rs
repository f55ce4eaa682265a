//! What the reconciler does in situations that have a name.

#![expect(
    clippy::wildcard_enum_match_arm,
    clippy::disallowed_methods,
    reason = "a test knows few ops, and any instant will do to start with"
)]

mod contests;
mod drift;
mod failures;
mod grace;
mod known;
mod left;
mod links;
mod load;
mod plan;

use std::time::Duration;

use ipc_proto::{
    AttachmentKey, BpfRoute, Endpoint, Flags, Hook, Hop, Incarnation, KernelRoute, Known, Link,
    LinkAddressKey, LinkRole, LinkState, Mac, Many, NeighbourKey, Observed, OpError, Protocol,
    RouteKey, RouteKind, Step, Sum, Table,
    view::{self, Reason, Row},
};

use super::{readings::Drift, *};

/// A reconciler and the helper's part, played by hand.
struct Bench {
    calc: Reconciler,
    now: Instant,
    batch: Option<BatchId>,
    /// What was told of others.
    drift: Vec<Drift>,
}

impl Bench {
    /// Starts with everything known, and `observed` in the kernel.
    fn new(observed: Vec<Observed>) -> Self {
        let mut bench = Self::starting();
        bench.handle(Input::InSync { complete: true });
        bench.connect(observed);
        bench
    }

    fn starting() -> Self {
        Self {
            calc: Reconciler::default(),
            now: Instant::now(),
            batch: None,
            drift: Vec::new(),
        }
    }

    fn connect(&mut self, observed: Vec<Observed>) {
        self.handle(Input::Connected);
        self.welcome(observed);
    }

    /// Expects to be greeted, and answers.
    fn welcome(&mut self, observed: Vec<Observed>) {
        self.greet();
        self.answer(observed);
    }

    fn greet(&mut self) -> Known {
        match self.poll() {
            Some(Output::Hello(known)) => known,
            other => panic!("{other:?}"),
        }
    }

    fn answer(&mut self, observed: Vec<Observed>) {
        let welcome = Welcome {
            version: ipc_proto::VERSION,
            incarnation: Incarnation(1),
            lease: Lease(1),
            max_steps: 100,
            bpf_max_entries: 3,
            feed: 0,
        };
        self.handle(Input::Welcome(welcome, observed.into_iter().collect()));
        self.calc.notices.retain(|notice| match notice {
            Notice::Drift(drift) => {
                self.drift.push(drift.clone());
                false
            }
            _ => true,
        });
    }

    fn handle(&mut self, input: Input) {
        self.calc.handle(self.now, input);
    }

    fn poll(&mut self) -> Option<Output> {
        self.calc.poll(self.now)
    }

    fn want(&mut self, op: &Op) {
        self.calc.want(op.clone()).unwrap();
    }

    fn steps(&mut self) -> Vec<Step> {
        match self.poll() {
            None => Vec::new(),
            Some(Output::Apply(batch)) => {
                self.batch = Some(batch.id);
                batch.steps.clone()
            }
            Some(
                other @ (Output::Hello(_)
                | Output::Follow(_)
                | Output::Recall
                | Output::Notice(_)
                | Output::AddressClean(_)),
            ) => panic!("{other:?}"),
        }
    }

    fn rows(&self, kind: view::Kind, skip: usize, max: usize) -> Vec<Row> {
        self.calc.rows(&Page {
            kind,
            skip,
            max,
            differing: false,
        })
    }

    /// Why the keys that are not as they should be are not.
    fn reasons(&self, kind: view::Kind) -> Vec<Reason> {
        let rows = self.calc.rows(&Page {
            kind,
            skip: 0,
            max: usize::MAX,
            differing: true,
        });
        rows.into_iter().filter_map(|row| row.reason).collect()
    }

    fn ops(&mut self) -> Vec<Op> {
        self.steps().into_iter().map(|step| step.op).collect()
    }

    fn ack(&mut self, failed: Vec<(u32, OpError)>) {
        let id = self.batch.take().unwrap();
        self.handle(Input::Ack(Ack { id, failed }));
    }

    fn notices(&mut self) -> Vec<String> {
        let notices = std::mem::take(&mut self.calc.notices);
        notices.iter().map(ToString::to_string).collect()
    }

    /// Has the next batch fail.
    fn settle_failing(&mut self) {
        let steps = u32::try_from(self.ops().len()).unwrap();
        self.ack((0..steps).map(|index| (index, errno(12))).collect());
    }
}

fn bpf(n: u8, flags: Option<u32>) -> Op {
    let route = flags.map(|flags| BpfRoute {
        flags: Flags(flags),
        ..BpfRoute::default()
    });
    Op::BpfRoute(format!("10.0.{n}.0/24").parse().unwrap(), route)
}

fn link(index: u32) -> Link {
    Link {
        index,
        name: "cali1".parse().unwrap(),
    }
}

fn state(index: u32, up: bool) -> LinkState {
    LinkState {
        link: link(index),
        role: LinkRole::Workload,
        up,
        carrier: up,
        mac: None,
        mtu: 1500,
        addresses: Vec::new(),
    }
}

fn neighbour(mac: Option<u8>) -> Op {
    let key = NeighbourKey {
        link: link(7),
        address: [192, 0, 2, 1].into(),
    };
    Op::Neighbour(key, mac.map(|mac| Mac([mac; 6])))
}

fn route(present: bool) -> Op {
    let key = RouteKey::new(Table::Main, "10.9.0.0/16".parse().unwrap(), 0);
    let route = present.then(|| KernelRoute {
        kind: RouteKind::Unicast(Hop {
            link: link(7),
            via: Some([192, 0, 2, 1].into()),
            onlink: true,
        }),
        protocol: Protocol::Safe,
        source: None,
        mtu: None,
    });
    Op::KernelRoute(key, route.map(Box::new))
}

fn observed(op: Op) -> Observed {
    match op {
        Op::BpfRoute(key, value) => Observed::BpfRoute(key, value),
        Op::Neighbour(key, Some(mac)) => Observed::Neighbour(key, mac),
        Op::KernelRoute(key, value) => Observed::KernelRoute(key, value.map(|route| *route)),
        Op::LinkSettings(key, Some(profile)) => Observed::LinkSettings(key, profile),
        Op::Endpoint(key, value) => Observed::Endpoint(key, value.map(|endpoint| *endpoint)),
        Op::Attachment(key, true) => Observed::Attachment(key),
        other => panic!("{other:?}"),
    }
}

fn errno(errno: i32) -> OpError {
    OpError::Kernel {
        call: "bpf".to_owned(),
        errno,
    }
}

fn denied() -> OpError {
    OpError::Denied("it is not ours".to_owned())
}

#[test]
fn nothing_is_written_before_both_sides_are_known() {
    let mut bench = Bench::starting();
    bench.want(&bpf(1, Some(1)));
    bench.connect(Vec::new());
    assert_eq!(bench.poll(), None, "the datastore may hold more");
    bench.handle(Input::InSync { complete: true });
    assert_eq!(bench.ops(), [bpf(1, Some(1))]);

    let mut bench = Bench::starting();
    bench.handle(Input::InSync { complete: true });
    bench.want(&bpf(1, Some(1)));
    assert_eq!(bench.poll(), None, "there is no helper");
    bench.connect(vec![observed(bpf(1, Some(1)))]);
    assert_eq!(bench.poll(), None, "it is as it should be");
    assert!(bench.calc.is_in_sync());
}

#[test]
fn nothing_is_swept_from_when_the_datastore_can_no_longer_be_read() {
    let mut bench = Bench::starting();
    bench.handle(Input::Unreadable);
    bench.connect(vec![observed(bpf(1, Some(1)))]);
    assert_eq!(bench.poll(), None, "that is no leave to begin");
    bench.handle(Input::InSync { complete: true });
    bench.handle(Input::Unreadable);
    assert_eq!(bench.poll(), None);
    bench.handle(Input::InSync { complete: true });
    assert_eq!(bench.ops(), [bpf(1, None)]);
}

#[test]
fn a_sweep_that_is_lost_is_not_tried_again_while_nothing_may_be_swept() {
    let stray = observed(bpf(1, Some(1)));
    let mut bench = Bench::new(vec![stray.clone()]);
    assert_eq!(bench.ops(), [bpf(1, None)]);
    bench.handle(Input::InSync { complete: false });
    bench.handle(Input::Disconnected);
    bench.connect(vec![stray]);
    assert_eq!(bench.poll(), None);
    bench.handle(Input::InSync { complete: true });
    assert_eq!(bench.ops(), [bpf(1, None)]);
}

#[test]
fn entries_come_before_others_go_while_the_map_has_room() {
    let old = vec![observed(bpf(1, Some(1))), observed(bpf(2, Some(1)))];
    let mut bench = Bench::new(old.clone());
    bench.want(&bpf(2, Some(2)));
    bench.want(&bpf(3, Some(1)));
    let (update, insert, clear) = (bpf(2, Some(2)), bpf(3, Some(1)), bpf(1, None));
    assert_eq!(bench.ops(), [update.clone(), insert.clone(), clear.clone()]);

    let mut bench = Bench::new(old.clone());
    for op in [&update, &insert, &bpf(4, Some(1))] {
        bench.want(op);
    }
    let crowded = [update, clear.clone(), insert.clone(), bpf(4, Some(1))];
    assert_eq!(bench.ops(), crowded);

    let mut bench = Bench::new([old, vec![observed(bpf(5, Some(1)))]].concat());
    bench.want(&insert);
    let but_one = [clear, insert, bpf(2, None), bpf(5, None)];
    assert_eq!(bench.ops(), but_one, "no more than must goes before");
}

#[test]
fn a_program_comes_after_what_it_goes_by_and_goes_before() {
    let endpoint = |present: bool| {
        let endpoint = present.then(|| Endpoint {
            host_mac: Mac([0xee; 6]),
            workload_mac: Mac([2; 6]),
            sources: Vec::new(),
        });
        Op::Endpoint(link(7), endpoint.map(Box::new))
    };
    let program = |attached| {
        let (link, hook) = (link(7), Hook::Ingress);
        Op::Attachment(AttachmentKey { link, hook }, attached)
    };
    let mut bench = Bench::new(Vec::new());
    let set = [endpoint(true), bpf(1, Some(1)), route(true), program(true)];
    for op in set.iter().rev() {
        bench.want(op);
    }
    assert_eq!(bench.ops(), set);
    bench.ack(Vec::new());
    let clear = [program(false), route(false), bpf(1, None), endpoint(false)];
    for op in clear.iter().rev() {
        bench.want(op);
    }
    assert_eq!(bench.ops(), clear);
    bench.ack(Vec::new());

    // Read back right, nothing is done; and nothing is left of a link that is gone.
    let mut bench = Bench::new(set.iter().cloned().map(observed).collect());
    for op in &set {
        bench.want(op);
    }
    assert_eq!(bench.poll(), None);
    bench.want(&endpoint(false));
    bench.want(&program(false));
    bench.handle(Input::Link(LinkEvent::Gone(link(7))));
    let gone = |op: &Op| matches!(op, Op::Endpoint(..) | Op::Attachment(..));
    assert!(!bench.ops().iter().any(gone));
}

#[test]
fn changes_meanwhile_are_coalesced() {
    let mut bench = Bench::new(Vec::new());
    bench.want(&bpf(1, Some(1)));
    assert_eq!(bench.ops(), [bpf(1, Some(1))]);
    for flags in [2, 3, 4] {
        bench.want(&bpf(1, Some(flags)));
        assert_eq!(bench.poll(), None, "one batch in flight");
    }
    bench.ack(Vec::new());
    assert_eq!(bench.ops(), [bpf(1, Some(4))]);
    bench.want(&bpf(1, Some(5)));
    bench.want(&bpf(1, Some(4)));
    bench.ack(Vec::new());
    assert_eq!(bench.poll(), None);
}

#[test]
fn an_answer_to_something_else_changes_nothing() {
    let mut bench = Bench::new(Vec::new());
    bench.want(&bpf(1, Some(1)));
    assert_eq!(bench.ops().len(), 1);
    let id = BatchId(77);
    let failed = Vec::new();
    bench.handle(Input::Ack(Ack { id, failed }));
    assert!(!bench.calc.is_in_sync());
    assert_eq!(bench.poll(), None, "still in flight");
}

#[test]
fn reading_back_waits_for_the_batch_in_flight() {
    let mut bench = Bench::new(Vec::new());
    bench.want(&bpf(1, Some(1)));
    assert_eq!(bench.ops().len(), 1);
    bench.handle(Input::Resync);
    assert_eq!(bench.poll(), None);
    bench.ack(Vec::new());
    bench.welcome(vec![observed(bpf(1, Some(1)))]);
    assert_eq!(bench.poll(), None);
}

#[test]
fn reading_back_asked_for_during_a_reading_happens_after_it() {
    let mut bench = Bench::starting();
    bench.handle(Input::Connected);
    bench.greet();
    bench.handle(Input::Resync);
    assert_eq!(bench.poll(), None);
    bench.answer(Vec::new());
    bench.greet();
}

#[test]
fn several_values_under_one_key_are_put_right() {
    let blackhole = |protocol| {
        let route = KernelRoute {
            kind: RouteKind::Blackhole,
            protocol,
            source: None,
            mtu: None,
        };
        let key = RouteKey::new(Table::Main, "10.9.0.0/16".parse().unwrap(), 0);
        observed(Op::KernelRoute(key, Some(Box::new(route))))
    };
    for (twice, wanted, ops) in [
        (
            vec![observed(route(true)), blackhole(Protocol::Safe)],
            true,
            vec![route(true)],
        ),
        (
            vec![observed(route(true)), blackhole(Protocol::Safe)],
            false,
            vec![route(false)],
        ),
        (
            vec![observed(route(true)), observed(route(true))],
            true,
            vec![],
        ),
        (vec![observed(route(false))], true, vec![route(true)]),
    ] {
        let mut bench = Bench::new(twice);
        bench.want(&route(wanted));
        assert_eq!(bench.ops(), ops);
    }
}

#[test]
fn rows_come_in_pages_over_both_maps() {
    let v6 = Op::BpfRoute("fd00::/64".parse().unwrap(), Some(BpfRoute::default()));
    let mut bench = Bench::new(vec![observed(bpf(1, Some(1)))]);
    bench.want(&bpf(2, Some(1)));
    bench.want(&v6);
    let kind = view::Kind::BpfRoutes;
    let all = bench.rows(kind, 0, 9);
    assert_eq!(all.len(), 3);
    let pages: Vec<Row> = (0..3).flat_map(|skip| bench.rows(kind, skip, 1)).collect();
    assert_eq!(pages, all);
    let [only_actual, only_desired, last] = all.try_into().unwrap();
    assert_eq!(only_actual.desired, None);
    assert_eq!(only_actual.actual, Some(observed(bpf(1, Some(1)))));
    assert_eq!(only_desired.desired, Some(bpf(2, Some(1))));
    assert_eq!(last.desired, Some(v6));

    bench.settle_failing();
    assert_eq!(
        bench.rows(kind, 1, 1)[0].reason,
        Some(Reason::Failed(errno(12)))
    );
    bench.now += Duration::from_secs(1);
    bench.calc.notices.clear();
    assert_eq!(bench.ops().len(), 3);
    bench.ack(Vec::new());
    let rows = bench.rows(kind, 0, 9);
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.reason.is_none()));
}

#[test]
fn what_is_not_as_it_should_be_is_told_with_its_reason() {
    let mut bench = Bench::starting();
    bench.handle(Input::InSync { complete: false });
    bench.connect(vec![observed(bpf(1, Some(1))), observed(bpf(2, Some(1)))]);
    bench.want(&bpf(2, Some(1)));
    bench.want(&bpf(3, Some(1)));
    let kind = view::Kind::BpfRoutes;
    assert_eq!(bench.reasons(kind), [Reason::Unread, Reason::Pending]);
    bench.settle_failing();
    let failed = Reason::Failed(errno(12));
    assert_eq!(bench.reasons(kind), [Reason::Unread, failed.clone()]);
    bench.handle(Input::InSync { complete: true });
    assert_eq!(bench.reasons(kind), [Reason::Pending, failed]);
}

#[test]
fn an_op_without_a_table_is_refused() {
    let flush = Op::FlowFlush([10, 0, 0, 1].into());
    let refused = Reconciler::default().want(flush.clone());
    assert_eq!(refused, Err(Unplaced(flush)));
}
