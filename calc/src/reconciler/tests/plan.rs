//! What follows a full batch.

use super::*;

/// Starts with these wanted, in batches of two.
fn bench(ops: &[Op]) -> Bench {
    let mut bench = Bench::starting();
    bench.handle(Input::InSync { complete: true });
    bench.handle(Input::Connected);
    bench.greet();
    let welcome = Welcome {
        version: ipc_proto::VERSION,
        incarnation: Incarnation(1),
        lease: Lease(1),
        max_steps: 2,
        bpf_max_entries: 100,
        feed: 0,
    };
    bench.handle(Input::Welcome(welcome, Reading::default()));
    for op in ops {
        bench.want(op);
    }
    bench
}

fn numbered(numbers: std::ops::RangeInclusive<u8>) -> Vec<Op> {
    numbers.map(|n| bpf(n, Some(1))).collect()
}

/// Expects that the helper is to be sent what follows, and returns that.
#[track_caller]
fn prepared(bench: &mut Bench) -> Batch {
    match bench.poll() {
        Some(Output::Prepare(batch)) => batch,
        other => panic!("{other:?}"),
    }
}

/// Expects nothing but these ops to follow.
#[track_caller]
fn prepares(bench: &mut Bench, ops: &[Op]) {
    let batch = prepared(bench);
    assert!(batch.steps.iter().map(|step| &step.op).eq(ops), "{batch:?}");
    assert_eq!(bench.poll(), None);
}

#[test]
fn what_follows_a_batch_in_flight_is_prepared_once_and_applied_as_it_was() {
    let all = numbered(1..=7);
    let mut bench = bench(&all);
    assert_eq!(bench.ops(), all[..2]);
    for (nth, ops) in all[2..].chunks(2).enumerate() {
        let batch = prepared(&mut bench);
        assert!(batch.steps.iter().map(|step| &step.op).eq(ops), "{nth}");
        assert_eq!(bench.poll(), None, "once");
        bench.ack(Vec::new());
        assert_eq!(bench.poll(), Some(Output::Apply(batch.clone())));
        bench.batch = Some(batch.id);
    }
    assert_eq!(bench.poll(), None);
    bench.ack(Vec::new());
    assert!(bench.calc.is_in_sync());
}

#[test]
fn what_was_prepared_and_is_not_to_be_applied_gives_its_number_to_no_other() {
    let mut bench = bench(&numbered(1..=4));
    assert_eq!(bench.ops().len(), 2);
    let dropped = prepared(&mut bench);
    bench.want(&bpf(3, Some(7)));
    assert_eq!(bench.poll(), None, "it is not looked ahead again");
    bench.ack(Vec::new());
    assert_eq!(bench.ops(), [bpf(3, Some(7)), bpf(4, Some(1))]);
    assert_ne!(bench.batch, Some(dropped.id));
}

#[test]
fn what_follows_is_sent_before_what_was_made_is_taken_in() {
    let all = numbered(1..=5);
    let mut bench = bench(&all);
    assert_eq!(bench.ops(), all[..2]);
    prepares(&mut bench, &all[2..4]);
    bench.ack(Vec::new());
    assert_eq!(bench.calc.totals().pending, 5, "not yet");
    assert_eq!(bench.ops(), all[2..4]);
    prepares(&mut bench, &all[4..]);
    assert_eq!(bench.poll(), None);
    assert_eq!(bench.calc.totals().pending, 3);
    bench.ack(Vec::new());
    assert_eq!(bench.ops(), all[4..]);
    bench.ack(Vec::new());
    assert_eq!(bench.poll(), None);
    assert!(bench.calc.is_in_sync());
}

#[test]
fn what_is_wanted_meanwhile_is_sent_as_it_is_then() {
    let all = numbered(1..=4);
    let mut bench = bench(&all);
    assert_eq!(bench.ops(), all[..2]);
    bench.want(&bpf(3, Some(7)));
    bench.want(&bpf(4, None));
    bench.want(&neighbour(Some(1)));
    bench.ack(Vec::new());
    // A neighbour comes before routes.
    assert_eq!(bench.ops(), [neighbour(Some(1)), bpf(3, Some(7))]);
    bench.ack(Vec::new());
    assert_eq!(bench.poll(), None);
    assert!(bench.calc.is_in_sync());
}

#[test]
fn nothing_follows_a_batch_of_which_something_failed() {
    let all = [neighbour(Some(1)), bpf(1, Some(1)), route(true)];
    let mut bench = bench(&all);
    assert_eq!(bench.ops(), all[..2]);
    bench.ack(vec![(0, errno(12))]);
    bench.notices();
    // The neighbour waits for a time of its own.
    assert_eq!(bench.ops(), all[2..]);
    let counts = bench.calc.totals();
    assert_eq!((counts.pending, counts.held), (1, 1));
}

#[test]
fn what_may_be_doubted_ends_the_plan() {
    let all = numbered(1..=4);
    for input in [
        || Input::Resync,
        || Input::Connected,
        || Input::Disconnected,
        || Input::InSync { complete: false },
        || Input::Link(LinkEvent::Gone(link(7))),
    ] {
        let mut bench = bench(&all);
        assert_eq!(bench.ops(), all[..2]);
        prepares(&mut bench, &all[2..]);
        assert_eq!(bench.calc.plan.len(), 1);
        bench.handle(input());
        assert!(bench.calc.plan.is_empty(), "{:?}", input());
    }
}

#[test]
fn what_was_made_when_the_connection_ended_is_known_to_be() {
    let all = numbered(1..=4);
    let mut bench = bench(&all);
    assert_eq!(bench.ops(), all[..2]);
    prepares(&mut bench, &all[2..]);
    bench.ack(Vec::new());
    bench.handle(Input::Disconnected);
    assert_eq!(bench.calc.totals().pending, 2);
}
