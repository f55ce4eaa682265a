//! What the reconciler does when changes fail or answers are lost.

use super::*;

#[test]
fn a_failing_key_waits_and_blocks_no_other() {
    let mut bench = Bench::new(Vec::new());
    bench.want(&bpf(1, Some(1)));
    bench.want(&bpf(2, Some(1)));
    assert_eq!(bench.ops().len(), 2);
    bench.ack(vec![(0, errno(12)), (1, denied())]);
    assert_eq!(
        bench.notices(),
        [
            "set BPF route 10.0.1.0/24: bpf: Cannot allocate memory (os error 12)",
            "set BPF route 10.0.2.0/24: refused by the helper's policy: it is not ours"
        ]
    );
    bench.want(&bpf(3, Some(1)));
    assert_eq!(bench.ops(), [bpf(3, Some(1))]);
    bench.ack(Vec::new());
    let counts = bench.calc.counts(view::Kind::BpfRoutes);
    assert_eq!((counts.desired, counts.pending, counts.held), (3, 0, 2));
    assert!(!bench.calc.is_in_sync());

    for wait in [500, 1000, 2000] {
        assert_eq!(bench.poll(), None);
        let due = bench.now + Duration::from_millis(wait);
        assert_eq!(bench.calc.poll_timeout(), Some(due));
        bench.now = due;
        assert_eq!(bench.ops(), [bpf(1, Some(1))]);
        bench.ack(vec![(0, errno(12))]);
        assert!(bench.notices().is_empty(), "it is no news");
    }

    // Another value is another matter, and a new lease tries everything once more.
    bench.want(&bpf(2, Some(2)));
    assert_eq!(bench.ops(), [bpf(2, Some(2))]);
    bench.ack(vec![(0, denied())]);
    assert_eq!(bench.notices().len(), 1);
    bench.handle(Input::Resync);
    bench.welcome(vec![observed(bpf(3, Some(1)))]);
    assert_eq!(bench.ops(), [bpf(1, Some(1)), bpf(2, Some(2))]);
    bench.ack(vec![(1, denied())]);
    let recovered = "set BPF route 10.0.1.0/24: is as it should be";
    assert_eq!(bench.notices(), [recovered]);
    assert_eq!(bench.calc.poll_timeout(), None, "nothing to wait for");
}

#[test]
fn what_others_have_repaired_has_recovered() {
    let mut bench = Bench::new(Vec::new());
    bench.want(&bpf(1, Some(1)));
    bench.settle_failing();
    assert_eq!(bench.notices().len(), 1);
    bench.handle(Input::Resync);
    bench.welcome(vec![observed(bpf(1, Some(1)))]);
    let recovered = "set BPF route 10.0.1.0/24: is as it should be";
    assert_eq!(bench.notices(), [recovered]);
    assert!(bench.calc.is_in_sync());
}

#[test]
fn a_flood_of_failures_is_summed_up() {
    let mut bench = Bench::new(Vec::new());
    for n in 0..100 {
        bench.want(&bpf(n, Some(1)));
    }
    bench.settle_failing();
    let notices = bench.notices();
    assert_eq!(notices.len(), MAX_NOTICES + 1);
    let more = "and 84 more; see the rows of the tables";
    assert_eq!(notices.last().map(String::as_str), Some(more));
}

#[test]
fn a_route_goes_right_after_the_neighbour_that_it_waited_for() {
    let mut bench = Bench::new(Vec::new());
    bench.want(&route(true));
    bench.want(&neighbour(Some(1)));
    let steps = bench.steps();
    assert_eq!(steps.last().and_then(|step| step.needs), Some(0));
    bench.ack(vec![(0, errno(12)), (1, OpError::NotTried(0))]);
    assert_eq!(bench.notices().len(), 1, "the neighbour alone is news");
    bench.want(&neighbour(Some(2)));
    assert_eq!(bench.ops(), [neighbour(Some(2))], "the route still waits");
    bench.ack(Vec::new());
    assert_eq!(bench.ops(), [route(true)]);
}

#[test]
fn what_was_sent_and_not_answered_is_ours_to_clear() {
    let mut bench = Bench::starting();
    bench.handle(Input::InSync { complete: false });
    bench.connect(vec![observed(bpf(2, Some(1)))]);
    bench.want(&bpf(1, Some(1)));
    assert_eq!(bench.ops(), [bpf(1, Some(1))]);
    bench.handle(Input::Disconnected);
    bench.want(&bpf(1, None));
    bench.connect(vec![observed(bpf(1, Some(1))), observed(bpf(2, Some(1)))]);
    assert_eq!(bench.ops(), [bpf(1, None)], "but not what it never wanted");
    bench.ack(Vec::new());
    assert!(bench.calc.is_in_sync());
    bench.handle(Input::InSync { complete: true });
    assert_eq!(bench.ops(), [bpf(2, None)]);
}

#[test]
fn a_route_stays_until_the_one_in_its_place_is_made() {
    let with_metric = |metric, present: bool| {
        let Op::KernelRoute(key, route) = route(true) else {
            panic!("a route")
        };
        let key = RouteKey::new(key.table, key.prefix, metric);
        Op::KernelRoute(key, route.filter(|_| present))
    };
    let (former, ended) = (with_metric(1024, true), with_metric(1024, false));
    let next = with_metric(512, true);
    let mut bench = Bench::new(vec![observed(former.clone())]);
    bench.want(&former);
    assert_eq!(bench.poll(), None);
    bench.want(&next);
    bench.want(&ended);
    let steps = bench.steps();
    let needs: Vec<_> = steps.iter().map(|step| (&step.op, step.needs)).collect();
    assert_eq!(needs, [(&next, None), (&ended, Some(0))]);
    bench.ack(vec![(0, errno(22)), (1, OpError::NotTried(0))]);
    bench.calc.notices.clear();
    // However long the kernel refuses it.
    for _ in 0..3 {
        bench.now += Duration::from_mins(1);
        let steps = bench.steps();
        assert_eq!(steps[0].op, next);
        assert!(
            steps[1..].iter().all(|step| step.needs == Some(0)),
            "{steps:?}"
        );
        let failed = (1..)
            .zip(&steps[1..])
            .map(|(at, _)| (at, OpError::NotTried(0)));
        bench.ack([(0, errno(22))].into_iter().chain(failed).collect());
        bench.calc.notices.clear();
        assert_eq!(bench.poll(), None);
    }
    bench.now += Duration::from_mins(1);
    assert_eq!(bench.ops(), [next, ended]);
    bench.ack(Vec::new());
    assert_eq!(bench.notices().len(), 1);
    assert_eq!(bench.poll(), None);
}
