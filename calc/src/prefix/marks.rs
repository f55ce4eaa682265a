//! Prefixes to look at later.

use ipnet::IpNet;

use super::key::{V4, V6};

/// A set of prefixes that grows by one at a time and is taken as a whole.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    v4: Vec<V4>,
    v6: Vec<V6>,
}

impl Marks {
    pub(crate) fn insert(&mut self, net: IpNet) {
        match net {
            IpNet::V4(net) => push(&mut self.v4, V4(net)),
            IpNet::V6(net) => push(&mut self.v6, V6(net)),
        }
    }

    /// Returns how many there are, some of them more than once.
    pub(crate) fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Returns all, each once and in order, and forgets them.
    pub(crate) fn take(&mut self) -> Vec<IpNet> {
        let Self { mut v4, mut v6 } = std::mem::take(self);
        tidy(&mut v4);
        tidy(&mut v6);
        let v4 = v4.into_iter().map(IpNet::from);
        v4.chain(v6.into_iter().map(IpNet::from)).collect()
    }
}

fn push<K: Ord>(marks: &mut Vec<K>, key: K) {
    // Before they grow, see whether they must: some are marked over and over.
    if marks.len() == marks.capacity() {
        tidy(marks);
    }
    marks.push(key);
}

fn tidy<K: Ord>(marks: &mut Vec<K>) {
    // Mostly sorted already, which this makes use of.
    marks.sort();
    marks.dedup();
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
