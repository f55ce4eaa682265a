//! Many entries at once.

use proptest::prelude::*;

use super::*;
use crate::dataplane::Train;

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0_u8..12, any::<bool>(), prop::option::weighted(0.8, 1_u32..3)).prop_map(
            |(n, v6, flags)| {
                let prefix = if v6 {
                    format!("fd00:{n}::/64")
                } else {
                    format!("10.{n}.0.0/32")
                };
                let route = flags.map(|flags| BpfRoute {
                    flags: Flags(flags),
                    ..BpfRoute::default()
                });
                Op::BpfRoute(prefix.parse().unwrap(), route)
            }
        ),
        6 => (0_u8..8, 0_u32..3, prop::option::weighted(0.8, 7_u32..10)).prop_map(
            |(n, metric, index)| {
                let prefix = format!("10.9.{n}.0/24").parse().unwrap();
                let Op::KernelRoute(key, Some(mut value)) = route(true) else {
                    panic!("it is a route");
                };
                if let RouteKind::Unicast(hop) = &mut value.kind {
                    hop.link = link(index.unwrap_or(7));
                }
                let key = RouteKey { prefix, metric, ..key };
                Op::KernelRoute(key, index.map(|_| value))
            }
        ),
        1 => prop::option::of(1_u8..3).prop_map(neighbour),
    ]
}

/// All that is to be done, and how things stand.
fn outcome(bench: &mut Bench) -> (Vec<Op>, Counts) {
    let mut all = Vec::new();
    for _ in 0..10 {
        let ops = bench.ops();
        if ops.is_empty() {
            return (all, bench.calc.totals());
        }
        all.extend(ops);
        bench.ack(Vec::new());
    }
    panic!("it goes on for ever: {all:?}");
}

proptest! {
    #[test]
    fn all_at_once_is_as_one_by_one(
        there in prop::collection::vec(any_op(), 0..12),
        wanted in prop::collection::vec(any_op(), 0..4),
        mut ops in prop::collection::vec(any_op(), 0..24),
        in_order in any::<bool>(),
    ) {
        if in_order {
            ops.sort_by_key(|op| match op {
                Op::BpfRoute(prefix, _) => (Some(*prefix), None),
                Op::KernelRoute(key, _) => (None, Some(key.clone())),
                _ => (None, None),
            });
        }
        let there = there.into_iter().filter_map(|op| match op {
            Op::BpfRoute(prefix, route) => Some(Observed::BpfRoute(prefix, route)),
            Op::KernelRoute(key, route) => Some(Observed::KernelRoute(key, route.map(|route| *route))),
            _ => None,
        });
        let there: Vec<_> = there.collect();
        let [one_by_one, at_once] = [false, true].map(|at_once| {
            let mut bench = Bench::new(there.clone());
            for op in &wanted {
                bench.want(op);
            }
            if at_once {
                bench.calc.want_all(ops.clone()).unwrap();
            } else {
                for op in &ops {
                    bench.want(op);
                }
            }
            outcome(&mut bench)
        });
        prop_assert_eq!(at_once, one_by_one);
    }
}

/// Starts with maps that hold ten entries, and batches of two.
fn empty(observed: Vec<Observed>) -> Bench {
    let mut bench = Bench::starting();
    bench.connect(observed);
    if let Peer::Idle(grant) = &mut bench.calc.peer {
        grant.max_steps = 2;
        grant.bpf_max_entries = 10;
    }
    bench
}

/// Has all outputs, and what follows from them, carried out but for the batch of this place, which fails; returns
/// what was asked for.
fn carry_out(bench: &mut Bench, early: Vec<Output>, fails: Option<usize>) -> Vec<Op> {
    let (mut train, mut asked) = (Train::default(), Vec::new());
    let mut early = early.into_iter();
    for place in 0.. {
        let mut batch = None;
        while let Some(output) = early.next().or_else(|| bench.poll()) {
            match output {
                Output::Apply(first) => {
                    train.start(&first);
                    batch = Some(first);
                }
                Output::Follow(next) => train.add(next),
                Output::Recall => {
                    let in_flight = train.stop();
                    bench.handle(Input::Recalled(in_flight));
                }
                Output::Notice(_) => {}
                other => panic!("{other:?}"),
            }
        }
        let Some(batch) = batch.or_else(|| Some(train.next()?.0)) else {
            break;
        };
        let failed = fails == Some(place);
        let failed = failed.then(|| (0, denied())).into_iter().collect();
        let ack = Ack {
            id: batch.id,
            failed,
        };
        train.answered(&ack);
        asked.extend(batch.steps.iter().map(|step| step.op.clone()));
        bench.handle(Input::Ack(ack));
    }
    asked
}

#[test]
fn a_first_load_is_sent_as_it_comes_and_ends_as_if_all_were_wanted_at_once() {
    let early: Vec<Op> = (1..=5).map(|n| bpf(n, Some(1))).collect();
    let rest = vec![bpf(9, Some(1)), route(true)];
    let all = [vec![neighbour(Some(1))], early.clone(), rest.clone()].concat();
    for fails in [None, Some(0), Some(2), Some(3)] {
        let mut bench = empty(Vec::new());
        let mut sent = Vec::new();
        let mut load = bench.calc.load(9).unwrap();
        load.begin(vec![neighbour(Some(1))], |output| sent.push(output))
            .unwrap();
        for part in early.chunks(load.size()) {
            load.add(part.to_vec(), |output| sent.push(output));
        }
        load.end(rest.clone()).unwrap();
        assert_eq!(sent.len(), 4);
        assert_eq!(bench.calc.totals().desired, all.len());
        assert!(!bench.calc.is_in_sync());
        bench.handle(Input::InSync { complete: true });
        let mut asked = carry_out(&mut bench, sent, fails);
        assert_eq!(bench.poll(), None);
        let counts = bench.calc.totals();
        assert_eq!(
            (counts.pending, counts.held),
            (0, usize::from(fails.is_some()))
        );
        if fails.is_none() {
            assert_eq!(asked, all);
        }
        asked.sort_by_key(|op| format!("{op:?}"));
        asked.dedup();
        let mut all = all.clone();
        all.sort_by_key(|op| format!("{op:?}"));
        assert_eq!(asked, all, "each of them was asked for");
    }
}

#[test]
fn nothing_is_swept_while_all_that_is_wanted_is_not_known() {
    let mut bench = empty(vec![observed(route(true))]);
    bench.handle(Input::InSync { complete: true });
    let mut sent = Vec::new();
    let mut load = bench.calc.load(9).unwrap();
    load.begin(Vec::new(), |output| sent.push(output)).unwrap();
    load.add(vec![bpf(1, Some(1))], |output| sent.push(output));
    load.end(vec![route(true)]).unwrap();
    assert_eq!(carry_out(&mut bench, sent, None), [bpf(1, Some(1))]);
    assert!(bench.calc.is_in_sync());
}

#[test]
fn a_load_begins_only_where_the_helper_waits_and_the_maps_are_empty_and_known() {
    assert!(Bench::starting().calc.load(9).is_none());
    let mut bench = empty(Vec::new());
    assert!(bench.calc.load(2).is_none(), "that is one batch");
    assert!(bench.calc.load(3).is_some());
    assert!(bench.calc.load(11).is_none(), "the map has no room for all");
    bench.want(&bpf(1, Some(1)));
    assert!(bench.calc.load(9).is_none());
    let mut bench = empty(vec![observed(bpf(1, Some(1)))]);
    assert!(bench.calc.load(9).is_none());
    let mut bench = empty(Vec::new());
    bench.handle(Input::InSync { complete: true });
    bench.want(&neighbour(Some(1)));
    assert_eq!(bench.ops().len(), 1);
    assert!(bench.calc.load(9).is_none());
}

/// Batches of a load that are large are taken in by a short way, unless something else has happened.
#[test]
fn a_large_load_is_known_to_be_made_batch_by_batch_whatever_is_wanted_meanwhile() {
    const BATCH: u16 = 1500;
    let entry = |n: u16, flags| {
        let [high, low] = n.to_be_bytes();
        let route = BpfRoute {
            flags: Flags(flags),
            ..BpfRoute::default()
        };
        let prefix = format!("10.{high}.{low}.0/24").parse().unwrap();
        Op::BpfRoute(prefix, Some(route))
    };
    let all: Vec<Op> = (0..3 * BATCH).map(|n| entry(n, 1)).collect();
    let within = Op::BpfRoute("10.0.1.7/32".parse().unwrap(), Some(BpfRoute::default()));
    for meanwhile in [None, Some(entry(BATCH + 7, 2)), Some(neighbour(Some(1)))] {
        for rest in [None, Some(within.clone())] {
            let mut bench = Bench::starting();
            bench.connect(Vec::new());
            if let Peer::Idle(grant) = &mut bench.calc.peer {
                grant.max_steps = BATCH.into();
                grant.bpf_max_entries = 10_000;
            }
            let mut sent = Vec::new();
            let mut load = bench.calc.load(all.len()).unwrap();
            for part in all.chunks(BATCH.into()) {
                load.add(part.to_vec(), |output| sent.push(output));
            }
            load.end(rest.clone().into_iter().collect()).unwrap();
            bench.handle(Input::InSync { complete: true });
            let ids = sent.iter().map(|output| match output {
                Output::Apply(batch) | Output::Follow(batch) => batch.id,
                other => panic!("{other:?}"),
            });
            let ids: Vec<BatchId> = ids.collect();
            let pending = |bench: &Bench| bench.calc.totals().pending;
            let left = pending(&bench);
            assert_eq!(left, all.len() + usize::from(rest.is_some()));
            bench.batch = ids.first().copied();
            bench.ack(Vec::new());
            assert_eq!(pending(&bench), left - usize::from(BATCH));
            if let Some(op) = &meanwhile {
                bench.want(op);
                assert_eq!(bench.poll(), Some(Output::Recall));
                bench.batch = ids.get(1).copied();
                bench.ack(Vec::new());
                bench.handle(Input::Recalled(ids.get(2).copied()));
                bench.batch = ids.get(2).copied();
                bench.ack(Vec::new());
            } else {
                for id in &ids[1..] {
                    bench.batch = Some(*id);
                    bench.ack(Vec::new());
                }
            }
            let wanted = [&meanwhile, &rest].into_iter().flatten().cloned();
            let asked = carry_out(&mut bench, Vec::new(), None);
            let sorted = |ops: Vec<Op>| {
                let mut ops: Vec<String> = ops.iter().map(|op| format!("{op:?}")).collect();
                ops.sort();
                ops
            };
            assert_eq!(sorted(asked), sorted(wanted.collect()));
            assert!(bench.calc.is_in_sync());
        }
    }
}
