//! What follows from answers of the helper.

use super::*;

impl Bench {
    /// Returns how often it was told that the kernel is in sync for the first time.
    fn told_in_sync(&mut self) -> usize {
        let signals = std::iter::from_fn(|| self.signals.try_recv().ok());
        signals
            .filter(|signal| matches!(**signal, Signal::InSync { .. }))
            .count()
    }

    fn told_host_ips(&mut self) -> Vec<Vec<String>> {
        let signals = std::iter::from_fn(|| self.signals.try_recv().ok());
        let addresses = signals.filter_map(|signal| match &*signal {
            Signal::HostIps { addresses, .. } => Some(addresses.clone()),
            _ => None,
        });
        addresses.collect()
    }
}

#[test]
fn a_failed_change_is_tried_again_and_in_sync_is_told_once_after_all_is_made() {
    let mut bench = Bench::new(&settings(None));
    bench.connect();
    bench.read([]);
    assert!(!bench.turn());
    bench.update(0..2);
    assert!(bench.turn());
    let (id, _) = bench.asked();
    bench.ack(id, vec![(0, failure())]);
    assert!(bench.node.status().connected, "so the process is ready");
    assert!(!bench.node.status().in_sync);
    assert_eq!(bench.told_in_sync(), 0);

    bench.now = bench.node.poll_timeout().unwrap();
    while !bench.turn() {
        bench.now = bench.node.poll_timeout().unwrap();
    }
    let (id, steps) = bench.asked();
    assert_eq!(steps, 1);
    bench.ack(id, Vec::new());
    assert!(bench.node.status().in_sync);
    assert_eq!(bench.told_in_sync(), 1);

    bench.now += IDLE;
    bench.update(2..3);
    assert!(bench.turn());
    bench.answer_all();
    assert!(bench.node.status().in_sync);
    assert_eq!(bench.told_in_sync(), 0);
}

#[test]
fn a_load_of_many_batches_goes_on_as_fast_as_it_is_answered() {
    let mut bench = Bench::new(&settings(None));
    bench.max_steps = 10;
    bench.connect();
    bench.read([]);
    assert!(!bench.turn());
    bench.update(0..200);
    assert!(bench.turn());
    // Something is waiting for a token all the time.
    bench.update(200..201);
    for _ in 0..20 {
        let (id, steps) = bench.asked();
        assert_eq!(steps, 10);
        bench.ack(id, Vec::new());
    }
    assert_eq!(bench.batch(), None);
}

#[test]
fn a_slow_helper_holds_up_no_input() {
    let mut bench = Bench::idle(&settings(None));
    bench.update(1..2);
    assert!(bench.turn());
    let (id, _) = bench.asked();
    for n in 2..7 {
        bench.now += TOKEN;
        bench.update([n]);
        assert!(bench.turn());
        assert_eq!(bench.batch(), None, "one batch at a time");
    }
    assert_eq!(bench.node.status().desired, 7);
    bench.ack(id, Vec::new());
    assert_eq!(bench.asked().1, 5);
}

#[test]
fn an_address_is_not_told_before_its_entry_is_made_though_an_answer_comes_in_between() {
    let mut bench = Bench::idle(&settings(None));
    bench.exhaust();
    bench.now += TOKEN;
    assert!(bench.turn());
    let (id, _) = bench.asked();
    bench.told_host_ips();
    bench.link(uplink(&["192.0.2.7/24"]));
    assert!(!bench.turn());
    bench.ack(id, Vec::new());
    assert_eq!(bench.batch(), None);
    assert_eq!(bench.told_host_ips(), Vec::<Vec<String>>::new());
    bench.now += TOKEN;
    assert!(bench.turn());
    let (id, _) = bench.asked();
    assert_eq!(bench.told_host_ips(), Vec::<Vec<String>>::new());
    bench.ack(id, Vec::new());
    assert_eq!(bench.told_host_ips(), [["192.0.2.7"]]);
}

#[test]
fn interfaces_as_they_were_read_are_newer_than_changes_that_were_heard_before() {
    let mut bench = Bench::idle(&settings(None));
    bench.resync();
    assert!(bench.turn());
    bench.greeted();
    bench.link(uplink(&["192.0.2.7/24"]));
    bench.read([Observed::Link(uplink(&["192.0.2.8/24"]))]);
    assert!(bench.turn());
    bench.answer_all();
    let told = bench.told_host_ips();
    assert_eq!(told.last().unwrap(), &["192.0.2.8"], "{told:?}");
}

#[test]
fn a_reading_that_was_under_way_when_another_was_asked_for_does_not_answer_that() {
    let mut bench = Bench::idle(&settings(None));
    let first = bench.resync();
    bench.turn();
    bench.greeted();
    bench.answer(first);
    assert_eq!(bench.node.status().answered, 0);
    let second = bench.resync();
    assert!(second > first);
    bench.turn();
    bench.read([]);
    bench.turn();
    assert_eq!(bench.node.status().answered, first);
    bench.answer(second);
    assert_eq!(bench.node.status().answered, first);
    bench.greeted();
    // The helper dies, and so does that reading.
    bench.connect();
    let third = bench.resync();
    bench.read([]);
    bench.turn();
    assert_eq!(bench.node.status().answered, second);
    bench.greeted();
    bench.read([]);
    bench.turn();
    assert_eq!(bench.node.status().answered, second, "of the datastore");
    bench.answer(third);
    assert_eq!(bench.node.status().answered, third);
}

/// Starts a first load of twenty batches, and returns what is asked for.
fn loading() -> (Bench, Vec<Request>) {
    let mut bench = Bench::new(&settings(None));
    bench.max_steps = 10;
    bench.connect();
    bench.read([]);
    assert!(!bench.turn());
    bench.update(0..200);
    assert!(bench.turn());
    let requests = bench.asked_for();
    (bench, requests)
}

impl Bench {
    /// Returns all that was asked for since.
    fn asked_for(&mut self) -> Vec<Request> {
        std::iter::from_fn(|| self.requests.try_recv().ok()).collect()
    }
}

#[test]
fn a_first_load_is_sent_while_it_is_computed_and_not_called_back() {
    let (mut bench, requests) = loading();
    let [Request::Apply(first), follow @ ..] = &requests[..] else {
        panic!("{requests:?}");
    };
    let batches: Vec<&Arc<Batch>> = [first]
        .into_iter()
        .chain(follow.iter().map(|request| match request {
            Request::Follow(batch) => batch,
            other => panic!("{other:?}"),
        }))
        .collect();
    assert_eq!(batches.len(), 20);
    for batch in batches {
        assert_eq!(batch.steps.len(), 10);
        bench.ack(batch.id, Vec::new());
    }
    bench.answer_all();
    assert!(bench.node.status().in_sync);
}

#[test]
fn what_follows_is_called_back_at_once_when_the_datastore_cannot_be_read() {
    let (mut bench, requests) = loading();
    assert!(requests.len() > 1);
    let mut unreadable = update(200..201);
    unreadable.complete = false;
    bench.node.datastore(bench.now, Told::Update(unreadable));
    let requests = bench.asked_for();
    assert!(matches!(requests[..], [Request::Recall]), "{requests:?}");
}
