//! Many entries at once.

use proptest::prelude::*;

use super::*;

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
