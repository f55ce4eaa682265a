//! What became of each element of a batch. Pure.
//!
//! The kernel stops at the first element that fails. How many it says that it has done is true only
//! for some errors; for others it leaves the number as it was given.

use std::ops::Range;

use nix::errno::Errno;

use super::sys::Stopped;

/// Carries out `total` elements by `call`, going on after each that fails.
pub(super) fn resume(
    total: usize,
    mut call: impl FnMut(Range<usize>) -> Result<(), Stopped>,
) -> Vec<Result<(), Errno>> {
    let mut results = Vec::with_capacity(total);
    while results.len() < total {
        let start = results.len();
        match call(start..total) {
            Ok(()) => results.resize(total, Ok(())),
            Err(Stopped { errno, done })
                if matches!(errno, Errno::ENOENT | Errno::ENOSPC) && start + done < total =>
            {
                results.resize(start + done, Ok(()));
                results.push(Err(errno));
            }
            // It may have done any number, so each is done again; that changes nothing.
            Err(_) => results
                .extend((start..total).map(|at| call(at..at + 1).map_err(|stopped| stopped.errno))),
        }
    }
    results
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever fails how, each element has its own outcome and each is tried in order.
        #[test]
        fn each_element_has_its_own_outcome(
            outcomes in prop::collection::vec(
                prop::sample::select(vec![None, None, Some(Errno::ENOENT), Some(Errno::ENOSPC), Some(Errno::ENOMEM)]),
                0..20,
            ),
        ) {
            let mut done = Vec::new();
            let results = resume(outcomes.len(), |range| {
                let len = range.len();
                for (nth, at) in range.enumerate() {
                    match outcomes[at] {
                        None => done.push(at),
                        // As limits measured: the number is left as it was given.
                        Some(Errno::ENOMEM) => {
                            return Err(Stopped { errno: Errno::ENOMEM, done: len });
                        }
                        Some(errno) => return Err(Stopped { errno, done: nth }),
                    }
                }
                Ok(())
            });
            let wanted: Vec<_> = outcomes.iter().map(|errno| errno.map_or(Ok(()), Err)).collect();
            prop_assert_eq!(results, wanted);
            done.dedup();
            for (at, errno) in outcomes.iter().enumerate() {
                prop_assert_eq!(done.contains(&at), errno.is_none());
            }
        }
    }
}
