//! In which order, and in which groups, the steps of a batch are carried out. Pure.
//!
//! The order is the batch's own. Neighbouring ops of one kind go to the kernel together, unless one
//! needs another of the same group to have succeeded.

use std::mem::discriminant;

use ipc_proto::OpError;

use crate::policy::Permitted;

/// A step after its check: what it needs, and whether it may be.
pub type Checked = (Option<u32>, Result<Permitted, OpError>);

/// Neighbouring steps that may be, of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a>(&'a [Checked]);

impl<'a> Group<'a> {
    /// Returns the ops in their order.
    pub fn ops(self) -> impl Iterator<Item = &'a Permitted> {
        self.0
            .iter()
            .filter_map(|(_, verdict)| verdict.as_ref().ok())
    }

    /// Returns how many there are.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns them in groups of at most so many, which are not 0.
    pub fn chunks(self, size: usize) -> impl Iterator<Item = Self> {
        self.0.chunks(size.max(1)).map(Group)
    }
}

/// What became of ops, in their order. Of those that were carried out it is known how many they are.
#[derive(Debug, Default)]
pub struct Outcomes {
    len: usize,
    failed: Vec<(usize, OpError)>,
}

impl Outcomes {
    /// Adds that of the next op.
    pub fn push(&mut self, outcome: Result<(), OpError>) {
        if let Err(error) = outcome {
            self.failed.push((self.len, error));
        }
        self.len += 1;
    }

    fn has_failed(&self, at: usize) -> bool {
        self.failed.binary_search_by_key(&at, |(at, _)| *at).is_ok()
    }

    /// Makes them `len`: an op without an outcome must not shift those of others.
    fn end_at(&mut self, len: usize) {
        self.failed.retain(|(at, _)| *at < len);
        self.len = self.len.min(len);
        while self.len < len {
            self.push(Err(OpError::Unsupported("no outcome was reported".into())));
        }
    }
}

impl Extend<Result<(), OpError>> for Outcomes {
    fn extend<T: IntoIterator<Item = Result<(), OpError>>>(&mut self, outcomes: T) {
        outcomes.into_iter().for_each(|outcome| self.push(outcome));
    }
}

/// Carries out `steps` by `group`, which takes ops of one kind, and returns those that failed.
pub fn carry_out(
    steps: &[Checked],
    mut group: impl FnMut(Group<'_>, &mut Outcomes),
) -> Vec<(u32, OpError)> {
    let mut outcomes = Outcomes::default();
    let mut flush = |outcomes: &mut Outcomes, end: usize| {
        // What is waiting is always the end of what was seen.
        let waiting = steps.get(outcomes.len..end).unwrap_or_default();
        if !waiting.is_empty() {
            group(Group(waiting), outcomes);
            outcomes.end_at(end);
        }
    };
    let mut last = None;
    for (at, (needs, verdict)) in steps.iter().enumerate() {
        let index = needs.map(|needs| usize::try_from(needs).unwrap_or(usize::MAX));
        let kind = verdict.as_ref().ok().map(|next| discriminant(next.op()));
        if kind.is_none() || kind != last || index.is_some_and(|needs| needs >= outcomes.len) {
            flush(&mut outcomes, at);
        }
        last = kind;
        let met = index.is_none_or(|needs| needs < at && !outcomes.has_failed(needs));
        match (met, needs, verdict) {
            (true, _, Ok(_)) => {}
            (true, _, Err(error)) => outcomes.push(Err(error.clone())),
            (false, needs, _) => {
                flush(&mut outcomes, at);
                outcomes.push(Err(OpError::NotTried(needs.unwrap_or(u32::MAX))));
            }
        }
    }
    flush(&mut outcomes, steps.len());
    let failed = outcomes.failed.into_iter();
    failed
        .filter_map(|(at, error)| Some((u32::try_from(at).ok()?, error)))
        .collect()
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
            let steps: Vec<Checked> = steps.collect();
            let failed = carry_out(&steps, |group, outcomes| {
                let ops: Vec<Permitted> = group.ops().cloned().collect();
                assert_eq!(ops.len(), group.len());
                assert!(ops.windows(2).all(|two| {
                    discriminant(two[0].op()) == discriminant(two[1].op())
                }));
                let fates = fates[tries.len()..].iter().take(ops.len());
                outcomes.extend(fates.map(|fails| if *fails { Err(failure()) } else { Ok(()) }));
                tries.extend(ops);
            });
            prop_assert_eq!(failed, wanted);
            prop_assert_eq!(tries, wanted_tries);
        }
    }

    #[test]
    fn an_op_without_an_outcome_has_failed_and_one_outcome_more_is_nobodys() {
        let steps: Vec<Checked> = [true, true, false]
            .map(|kind| (None, Ok(permitted(kind, 0))))
            .into();
        let failure = || OpError::Denied("test".into());
        let failed = carry_out(&steps, |group, outcomes| match group.len() {
            2 => outcomes.push(Ok(())),
            _ => outcomes.extend([Ok(()), Err(failure())]),
        });
        let missing = OpError::Unsupported("no outcome was reported".into());
        assert_eq!(failed, [(1, missing)]);
    }
}
