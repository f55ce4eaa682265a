//! Prefixes to look at later.

use std::{cmp::Ordering, mem};

use ipnet::IpNet;

use super::key::{V4, V6};

/// A set of prefixes that grows by one at a time and is taken as a whole.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    v4: Keys<V4>,
    v6: Keys<V6>,
}

#[derive(Debug)]
struct Keys<K> {
    keys: Vec<K>,
    /// Whether one comes before the one that it follows: mostly they come in order.
    loose: bool,
}

impl<K> Default for Keys<K> {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            loose: false,
        }
    }
}

impl Marks {
    pub(crate) fn insert(&mut self, net: IpNet) {
        match net {
            IpNet::V4(net) => self.v4.push(V4(net)),
            IpNet::V6(net) => self.v6.push(V6(net)),
        }
    }

    /// Returns how many there are, some of them more than once.
    pub(crate) fn len(&self) -> usize {
        self.v4.keys.len() + self.v6.keys.len()
    }

    /// Returns all, each once and in order, and forgets them.
    pub(crate) fn take(&mut self) -> Vec<IpNet> {
        let Self { mut v4, mut v6 } = mem::take(self);
        v4.tidy();
        v6.tidy();
        let v4 = v4.keys.into_iter().map(IpNet::from);
        v4.chain(v6.keys.into_iter().map(IpNet::from)).collect()
    }
}

impl<K: Ord> Keys<K> {
    fn push(&mut self, key: K) {
        // Before they grow, see whether they must: some are marked over and over.
        if self.keys.len() == self.keys.capacity() {
            self.tidy();
        }
        match self.keys.last().map(|last| last.cmp(&key)) {
            None | Some(Ordering::Less) => {}
            Some(Ordering::Equal) => return,
            Some(Ordering::Greater) => self.loose = true,
        }
        self.keys.push(key);
    }

    fn tidy(&mut self) {
        if mem::take(&mut self.loose) {
            self.keys.sort();
            self.keys.dedup();
        }
    }
}

impl Extend<IpNet> for Marks {
    fn extend<I: IntoIterator<Item = IpNet>>(&mut self, nets: I) {
        for net in nets {
            self.insert(net);
        }
    }
}

impl<'a> Extend<&'a IpNet> for Marks {
    fn extend<I: IntoIterator<Item = &'a IpNet>>(&mut self, nets: I) {
        self.extend(nets.into_iter().copied());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ipnet::Ipv4Net;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn all_are_taken_once_and_in_order(runs in prop::collection::vec((0..40_u32, 0..12_u32), 0..12)) {
            // Runs in order, that lie anywhere and go over each other.
            let nets: Vec<IpNet> = runs
                .into_iter()
                .flat_map(|(first, count)| first..first + count)
                .map(|number| Ipv4Net::new_assert((number << 8).into(), 24).into())
                .collect();
            let mut marks = Marks::default();
            marks.extend(&nets);
            let wanted: BTreeSet<IpNet> = nets.into_iter().collect();
            prop_assert!(marks.take().into_iter().eq(wanted));
            prop_assert_eq!(marks.take(), []);
        }
    }
}
