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

/// Returns the batches that are to follow.
fn following(bench: &mut Bench) -> Vec<Arc<Batch>> {
    let follow = || match bench.poll() {
        None => None,
        Some(Output::Follow(batch)) => Some(batch),
        other => panic!("{other:?}"),
    };
    std::iter::from_fn(follow).collect()
}

fn ops_of(batches: &[Arc<Batch>]) -> Vec<Op> {
    let steps = batches.iter().flat_map(|batch| &batch.steps);
    steps.map(|step| step.op.clone()).collect()
}

/// Has a batch answered, of which all was made.
fn made(bench: &mut Bench, batch: &Batch) {
    bench.batch = Some(batch.id);
    bench.ack(Vec::new());
}

/// Returns what is asked for once what was to follow is called back while that batch is in flight.
fn recalled(bench: &mut Bench, in_flight: Option<BatchId>) -> Option<Output> {
    assert_eq!(bench.poll(), Some(Output::Recall));
    assert_eq!(bench.poll(), None, "it is not known what was sent");
    bench.handle(Input::Recalled(in_flight));
    bench.poll()
}

#[test]
fn batches_that_follow_a_full_one_are_planned_some_at_a_time_and_each_change_once() {
    let all = numbered(1..=61);
    let mut bench = bench(&all);
    let mut asked = bench.ops();
    let mut unanswered = VecDeque::new();
    unanswered.extend(bench.batch);
    while let Some(id) = unanswered.pop_front() {
        let follow = following(&mut bench);
        asked.extend(ops_of(&follow));
        unanswered.extend(follow.iter().map(|batch| batch.id));
        assert!(unanswered.len() <= 10, "{unanswered:?}");
        bench.batch = Some(id);
        bench.ack(Vec::new());
    }
    assert_eq!(asked, all);
    assert_eq!(bench.poll(), None);
    assert!(bench.calc.is_in_sync());
}

#[test]
fn what_is_wanted_meanwhile_ends_the_plan_and_what_was_sent_counts() {
    let all = numbered(1..=6);
    let changed = [bpf(5, Some(7)), bpf(6, Some(1))];
    // Whichever of the three batches is in flight when it is called back.
    for sent in 0..=2 {
        let mut bench = bench(&all);
        assert_eq!(bench.ops(), all[..2]);
        let mut batches = vec![bench.batch.unwrap()];
        batches.extend(following(&mut bench).iter().map(|batch| batch.id));
        bench.want(&changed[0]);
        assert_eq!(bench.poll(), Some(Output::Recall));
        for id in &batches[..sent] {
            bench.batch = Some(*id);
            bench.ack(Vec::new());
        }
        assert_eq!(bench.poll(), None, "it is not known what else was sent");
        bench.handle(Input::Recalled(Some(batches[sent])));
        assert_eq!(bench.poll(), None, "nothing follows it any more");
        bench.batch = Some(batches[sent]);
        bench.ack(Vec::new());
        let rest = match sent {
            0 => vec![bpf(3, Some(1)), bpf(4, Some(1))],
            1 => changed.to_vec(),
            _ => vec![changed[0].clone()],
        };
        assert_eq!(bench.ops(), rest, "{sent}");
    }
}

#[test]
fn what_is_called_back_too_late_is_known_to_be_made() {
    let all = numbered(1..=4);
    let mut bench = bench(&all);
    assert_eq!(bench.ops(), all[..2]);
    let first = bench.batch;
    let follow = following(&mut bench);
    bench.want(&neighbour(Some(1)));
    assert_eq!(bench.poll(), Some(Output::Recall));
    bench.batch = first;
    bench.ack(Vec::new());
    made(&mut bench, &follow[0]);
    assert_eq!(bench.poll(), None);
    bench.handle(Input::Recalled(None));
    assert_eq!(bench.ops(), [neighbour(Some(1))]);
}

#[test]
fn what_was_not_even_handed_on_is_not_called_back() {
    let all = numbered(1..=6);
    let mut bench = bench(&all);
    assert_eq!(bench.ops(), all[..2]);
    let first = bench.batch;
    let Some(Output::Follow(second)) = bench.poll() else {
        panic!("a batch that follows");
    };
    bench.want(&neighbour(Some(1)));
    assert_eq!(recalled(&mut bench, first), None);
    bench.batch = first;
    bench.ack(Vec::new());
    // A neighbour comes before routes.
    assert_eq!(bench.ops(), [neighbour(Some(1)), bpf(3, Some(1))]);
    assert_ne!(bench.batch, Some(second.id), "its number is no other's");
}

#[test]
fn nothing_follows_a_batch_of_which_something_failed() {
    let all = [neighbour(Some(1)), bpf(1, Some(1)), route(true)];
    let mut bench = bench(&all);
    assert_eq!(bench.ops(), all[..2]);
    assert_eq!(ops_of(&following(&mut bench)), all[2..]);
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
        || Input::InSync { complete: false },
        || Input::Link(LinkEvent::Gone(link(7))),
    ] {
        let mut bench = bench(&all);
        assert_eq!(bench.ops(), all[..2]);
        let first = bench.batch;
        assert_eq!(following(&mut bench).len(), 1);
        bench.handle(input());
        assert_eq!(recalled(&mut bench, first), None, "{:?}", input());
    }
}

#[test]
fn a_reading_waits_until_it_is_known_what_was_sent() {
    let all = numbered(1..=4);
    let mut bench = bench(&all);
    assert_eq!(bench.ops(), all[..2]);
    let first = bench.batch;
    let follow = following(&mut bench);
    bench.handle(Input::Resync);
    assert_eq!(bench.poll(), Some(Output::Recall));
    bench.batch = first;
    bench.ack(Vec::new());
    made(&mut bench, &follow[0]);
    assert_eq!(bench.poll(), None);
    bench.handle(Input::Recalled(None));
    bench.greet();
}

#[test]
fn of_what_follows_it_is_not_known_whether_it_was_made_when_the_connection_ends() {
    let all = numbered(1..=6);
    let mut bench = bench(&all);
    assert_eq!(bench.ops(), all[..2]);
    let first = bench.batch;
    let follow = following(&mut bench);
    assert_eq!(follow.len(), 2);
    bench.want(&neighbour(Some(1)));
    assert_eq!(bench.poll(), Some(Output::Recall));
    bench.batch = first;
    bench.ack(Vec::new());
    bench.handle(Input::Disconnected);
    bench.handle(Input::Connected);
    // What was known before is not asked for again: nothing is.
    assert_eq!(
        bench.greet(),
        Known {
            seed: 2,
            ..Known::default()
        }
    );
    let rows = bench.rows(view::Kind::BpfRoutes, 0, 10);
    let known = rows.iter().filter(|row| row.reason.is_none());
    assert_eq!(known.count(), 2);
}
