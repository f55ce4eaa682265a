//! What whoever asks for a reading holds for true of the kinds of which there are many, as sums: where a
//! sum is right, nothing of that kind need be sent.
//!
//! A sum does not depend on the order, and a wrong one costs a reading that is sent whole. Both sides
//! hash by what they were built with: should that differ, no sum is ever right.

use std::hash::{BuildHasher, Hash};

use foldhash::quality::FixedState;
use serde::{Deserialize, Serialize};

use crate::Observed;

/// A kind of which there are many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Many {
    /// The entries of the IPv4 route map.
    BpfV4,
    /// The entries of the IPv6 route map.
    BpfV6,
    /// The kernel's routes that are ours.
    KernelRoutes,
}

/// The sum of any number of keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// How many there are.
    count: u64,
    /// The sum of their hashes.
    hashes: u64,
}

impl Sum {
    /// Adds a key and its value; none is one that no request could make. The hashes are those for
    /// `seed`.
    pub fn add<V: Hash>(&mut self, seed: u64, key: &impl Hash, value: Option<&V>) {
        let hash = FixedState::with_seed(seed).hash_one((key, value));
        self.count = self.count.wrapping_add(1);
        self.hashes = self.hashes.wrapping_add(hash);
    }

    /// Adds what was read, if it is of a kind of which there are many.
    pub fn add_observed(&mut self, seed: u64, item: &Observed) {
        match item {
            Observed::BpfRoute(prefix, route) => self.add(seed, prefix, route.as_ref()),
            Observed::KernelRoute(key, route) => self.add(seed, key, route.as_ref()),
            Observed::Link(_)
            | Observed::LinkSettings(..)
            | Observed::TunnelDevice(..)
            | Observed::Neighbour(..)
            | Observed::Fdb(..)
            | Observed::LinkAddress(..)
            | Observed::Endpoint(..)
            | Observed::Attachment(_)
            | Observed::Rule(_)
            | Observed::AsKnown(_)
            | Observed::Rivals(_) => {}
        }
    }
}

/// See the [module](self). Nothing is known of a kind without a sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Another one at each reading, so that a wrong sum that is right by chance is so but once.
    pub seed: u64,
    /// The entries of the IPv4 route map.
    pub bpf_v4: Option<Sum>,
    /// The entries of the IPv6 route map.
    pub bpf_v6: Option<Sum>,
    /// The kernel's routes that are ours.
    pub kernel_routes: Option<Sum>,
}

impl Known {
    /// Returns the sum of a kind.
    #[must_use]
    pub const fn of(&self, many: Many) -> Option<Sum> {
        match many {
            Many::BpfV4 => self.bpf_v4,
            Many::BpfV6 => self.bpf_v6,
            Many::KernelRoutes => self.kernel_routes,
        }
    }
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::*;
    use crate::BpfRoute;

    fn sum(seed: u64, items: &[(&str, Option<u32>)]) -> Sum {
        let mut sum = Sum::default();
        for (prefix, flags) in items {
            let prefix: IpNet = prefix.parse().unwrap();
            let route = flags.map(|flags| BpfRoute {
                flags: crate::Flags(flags),
                ..BpfRoute::default()
            });
            let before = sum;
            sum.add_observed(seed, &Observed::BpfRoute(prefix, route.clone()));
            let mut other = before;
            other.add(seed, &prefix, route.as_ref());
            assert_eq!(sum, other);
        }
        sum
    }

    #[test]
    fn a_sum_tells_any_two_sets_apart_and_no_two_orders() {
        let (a, b) = (("10.0.0.0/24", Some(1)), ("10.0.1.0/24", Some(2)));
        let all = sum(7, &[a, b]);
        assert_eq!(all, sum(7, &[b, a]));
        for other in [
            sum(8, &[a, b]),
            sum(7, &[]),
            sum(7, &[a]),
            sum(7, &[a, a]),
            sum(7, &[a, b, b]),
            sum(7, &[a, ("10.0.1.0/24", Some(1))]),
            sum(7, &[a, ("10.0.1.0/24", None)]),
            sum(7, &[a, ("10.0.1.0/25", Some(2))]),
            // The values changed places.
            sum(7, &[("10.0.0.0/24", Some(2)), ("10.0.1.0/24", Some(1))]),
        ] {
            assert_ne!(all, other);
        }
    }
}
