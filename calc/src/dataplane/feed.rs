//! The order of what the feed tells: nothing twice, nothing left out, nothing before its reading. Pure.

use std::mem;

use ipc_proto::Feed;

/// Something of the feed never arrived.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("changes that the helper told were lost: expected number {expected} and got {got}")]
pub struct Gap {
    expected: u64,
    got: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub enum FeedOrder {
    /// A reading is under way. Whether it includes these will be known when it is there.
    Held(Vec<Feed>),
    /// This is the number of the last one that is known.
    Following(u64),
}

impl Default for FeedOrder {
    fn default() -> Self {
        Self::Held(Vec::new())
    }
}

impl FeedOrder {
    /// Takes in that a reading was asked for.
    pub fn hold(&mut self) {
        if let Self::Following(_) = self {
            *self = Self::default();
        }
    }

    /// Takes in changes, and returns them if they may be handed on.
    ///
    /// # Errors
    ///
    /// If some before them were lost.
    pub fn push(&mut self, feed: Feed) -> Result<Option<Feed>, Gap> {
        match self {
            Self::Held(held) => {
                held.push(feed);
                Ok(None)
            }
            Self::Following(last) => Ok(Some(next(last, feed)?)),
        }
    }

    /// Takes in a reading that includes all up to `seq`, and returns what came after.
    ///
    /// # Errors
    ///
    /// If some of those were lost.
    pub fn follow(&mut self, seq: u64) -> Result<Vec<Feed>, Gap> {
        let mut last = seq;
        let mut after = Vec::new();
        if let Self::Held(held) = mem::replace(self, Self::Following(seq)) {
            for feed in held.into_iter().filter(|feed| feed.seq > seq) {
                after.push(next(&mut last, feed)?);
            }
        }
        *self = Self::Following(last);
        Ok(after)
    }
}

fn next(last: &mut u64, feed: Feed) -> Result<Feed, Gap> {
    let expected = last.wrapping_add(1);
    if feed.seq != expected {
        let got = feed.seq;
        return Err(Gap { expected, got });
    }
    *last = expected;
    Ok(feed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn feed(seq: u64) -> Feed {
        Feed {
            seq,
            events: Vec::new(),
            drift: BTreeSet::new(),
        }
    }

    #[test]
    fn changes_follow_the_reading_without_a_gap() {
        let mut order = FeedOrder::default();
        for seq in 3..=6 {
            assert_eq!(order.push(feed(seq)), Ok(None));
        }
        assert_eq!(order.follow(4), Ok(vec![feed(5), feed(6)]));
        assert_eq!(order.push(feed(7)), Ok(Some(feed(7))));
        order.hold();
        assert_eq!(order.push(feed(8)), Ok(None));
        assert_eq!(order.follow(8), Ok(vec![]));
        assert_eq!(order.push(feed(9)), Ok(Some(feed(9))));
    }

    #[test]
    fn a_gap_is_an_error_wherever_it_is() {
        let gap = |expected, got| Gap { expected, got };
        let mut order = FeedOrder::default();
        assert_eq!(order.follow(4), Ok(vec![]));
        assert_eq!(order.push(feed(6)), Err(gap(5, 6)));

        let mut order = FeedOrder::default();
        assert_eq!(order.push(feed(6)), Ok(None));
        assert_eq!(order.follow(4), Err(gap(5, 6)));

        let mut order = FeedOrder::default();
        assert_eq!(order.follow(4), Ok(vec![]));
        assert_eq!(order.push(feed(4)), Err(gap(5, 4)), "seen before");
    }
}
