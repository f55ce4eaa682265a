//! In which order, and in which groups, the steps of a batch are carried out. Pure.
//!
//! The order is the batch's own. Neighbouring ops of one kind go to the kernel together, unless one
//! needs another of the same group to have succeeded.

use std::mem::{discriminant, take};

use ipc_proto::OpError;

use crate::policy::Permitted;

/// A step after its check: what it needs, and whether it may be.
pub type Checked = (Option<u32>, Result<Permitted, OpError>);

/// Carries out `steps` by `group`, which takes ops of one kind, and returns those that failed.
pub fn carry_out(
    steps: Vec<Checked>,
    mut group: impl FnMut(&[Permitted]) -> Vec<Result<(), OpError>>,
) -> Vec<(u32, OpError)> {
    let mut outcomes: Vec<Result<(), OpError>> = Vec::with_capacity(steps.len());
    let mut waiting: Vec<Permitted> = Vec::new();
    for (needs, verdict) in steps {
        // What is waiting is always the end of what was seen.
        let at = outcomes.len() + waiting.len();
        let needs = needs.map(|needs| usize::try_from(needs).unwrap_or(usize::MAX));
        let breaks = match &verdict {
            Ok(next) => waiting
                .last()
                .is_some_and(|last| discriminant(last.op()) != discriminant(next.op())),
            Err(_) => true,
        };
        if breaks || needs.is_some_and(|needs| (outcomes.len()..at).contains(&needs)) {
            outcomes.extend(flush(&mut waiting, &mut group));
        }
        let met = match needs {
            None => true,
            Some(needs) => needs < at && outcomes.get(needs).is_none_or(Result::is_ok),
        };
        match (met, verdict) {
            (true, Ok(next)) => waiting.push(next),
            (true, Err(error)) => outcomes.push(Err(error)),
            (false, _) => {
                outcomes.extend(flush(&mut waiting, &mut group));
                let needs = needs.and_then(|needs| u32::try_from(needs).ok());
                outcomes.push(Err(OpError::NotTried(needs.unwrap_or(u32::MAX))));
            }
        }
    }
    outcomes.extend(flush(&mut waiting, &mut group));
    (0..)
        .zip(outcomes)
        .filter_map(|(index, outcome)| Some((index, outcome.err()?)))
        .collect()
}

fn flush(
    waiting: &mut Vec<Permitted>,
    group: &mut impl FnMut(&[Permitted]) -> Vec<Result<(), OpError>>,
) -> Vec<Result<(), OpError>> {
    if waiting.is_empty() {
        return Vec::new();
    }
    let ops = take(waiting);
    let mut outcomes = group(&ops);
    // An op without an outcome must not shift those of others.
    outcomes.resize_with(ops.len(), || {
        Err(OpError::Unsupported("no outcome was reported".into()))
    });
    outcomes
}

#[cfg(test)]
mod tests {
    use ipc_proto::{Lane, Op, Tunnel};
    use ipnet::IpNet;
    use proptest::prelude::*;

    use super::*;
    use crate::policy::tests::{links, policy};

    fn permitted(kind: bool, number: u8) -> Permitted {
        let op = if kind {
            let prefix: IpNet = format!("10.0.{number}.0/24").parse().unwrap();
            Op::BpfRoute(prefix, None)
        } else {
            let tunnel = [Tunnel::VxlanV4, Tunnel::VxlanV6][usize::from(number % 2)];
            Op::TunnelDevice(tunnel, None)
        };
        let policy = policy();
        policy.check(Lane::State, op, &links(&policy)).unwrap()
    }

    #[derive(Clone, Debug)]
    struct Sample {
        kind: bool,
        needs: Option<u32>,
        allowed: bool,
        fails: bool,
    }

    fn any_sample() -> impl Strategy<Value = Sample> {
        (
            any::<bool>(),
            prop::option::weighted(0.3, 0_u32..12),
            prop::bool::weighted(0.9),
            prop::bool::weighted(0.2),
        )
            .prop_map(|(kind, needs, allowed, fails)| Sample {
                kind,
                needs,
                allowed,
                fails,
            })
    }

    proptest! {
        /// The same as carrying out each step alone, in order.
        #[test]
        fn groups_change_nothing(samples in prop::collection::vec(any_sample(), 0..12)) {
            let failure = || OpError::Kernel { call: "test".into(), errno: 1 };
            let refusal = || OpError::Denied("test".into());

            let mut wanted_tries = Vec::new();
            let mut outcomes: Vec<Option<OpError>> = Vec::new();
            for (at, sample) in samples.iter().enumerate() {
                let met = sample.needs.is_none_or(|needs| {
                    outcomes.get(usize::try_from(needs).unwrap()).is_some_and(Option::is_none)
                });
                outcomes.push(match (met, sample.allowed, sample.fails) {
                    (false, _, _) => Some(OpError::NotTried(sample.needs.unwrap())),
                    (true, false, _) => Some(refusal()),
                    (true, true, fails) => {
                        wanted_tries.push(permitted(sample.kind, u8::try_from(at).unwrap()));
                        fails.then(failure)
                    }
                });
            }
            let wanted: Vec<(u32, OpError)> =
                (0..).zip(outcomes).filter_map(|(at, error)| Some((at, error?))).collect();

            // Which of the allowed steps fail, by their place among those that are tried.
            let mut fates = Vec::new();
            for (at, sample) in samples.iter().enumerate() {
                let skipped = wanted.iter().any(|(index, error)| {
                    usize::try_from(*index).unwrap() == at
                        && matches!(error, OpError::NotTried(_) | OpError::Denied(_))
                });
                if !skipped {
                    fates.push(sample.fails);
                }
            }
            let steps = (0_u8..).zip(&samples).map(|(at, sample)| {
                let verdict = if sample.allowed {
                    Ok(permitted(sample.kind, at))
                } else {
                    Err(refusal())
                };
                (sample.needs, verdict)
            });
            let mut tries = Vec::new();
            let failed = carry_out(steps.collect(), |ops| {
                assert!(ops.windows(2).all(|two| {
                    discriminant(two[0].op()) == discriminant(two[1].op())
                }));
                let outcomes = ops.iter().zip(&fates[tries.len()..]).map(|(_, fails)| {
                    if *fails { Err(failure()) } else { Ok(()) }
                });
                let outcomes = outcomes.collect();
                tries.extend_from_slice(ops);
                outcomes
            });
            prop_assert_eq!(failed, wanted);
            prop_assert_eq!(tries, wanted_tries);
        }
    }
}
