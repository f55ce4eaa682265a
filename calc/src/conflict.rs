//! Which route a prefix gets where several are wanted. A choice among values; nothing is kept.

use std::cmp::Reverse;

/// What asks for a route; the lowest wins.
///
/// The order is Calico's. Classes of routes that Cairn does not make are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// A workload of this node.
    LocalWorkload,
    /// A workload of a VXLAN pool on a node of the same subnet.
    VxlanSameSubnet,
    /// A workload of a VXLAN pool on another node.
    VxlanTunnel,
    /// A workload of a pool without encapsulation on another node.
    NoEncap,
    /// A block of this node in a VXLAN pool.
    VxlanBlackhole,
    /// A block of this node in a pool without encapsulation.
    NoEncapBlackhole,
}

/// A route that something asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate<T> {
    pub(crate) class: Class,
    /// The index of its link, 0 without one.
    pub(crate) link: u32,
    /// Whether its link can carry packets now.
    pub(crate) carrier: bool,
    pub(crate) route: T,
}

/// Returns the route to make: that of the lowest class, and within a class that of a link with a
/// carrier, and then of the newest.
///
/// The kernel would keep routes of different metrics side by side and prefer the lowest. As local
/// workloads have the highest here, asking for one route per prefix is what makes the class decide,
/// in both families alike.
pub(crate) fn winner<T>(candidates: impl IntoIterator<Item = Candidate<T>>) -> Option<T> {
    candidates
        .into_iter()
        .min_by_key(|candidate| (candidate.class, !candidate.carrier, Reverse(candidate.link)))
        .map(|candidate| candidate.route)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_class_wins_then_a_carrier_and_then_the_newest_link() {
        use Class::*;
        const UNPLUGGED: u32 = 8;
        type Case<'a> = (&'a [(Class, u32)], Option<(Class, u32)>);
        let cases: [Case<'_>; 9] = [
            (&[], None),
            (&[(NoEncap, 3)], Some((NoEncap, 3))),
            (
                &[(VxlanTunnel, 9), (LocalWorkload, 5)],
                Some((LocalWorkload, 5)),
            ),
            (
                &[(VxlanTunnel, 4), (VxlanSameSubnet, 2)],
                Some((VxlanSameSubnet, 2)),
            ),
            (
                &[(VxlanBlackhole, 0), (VxlanTunnel, 4)],
                Some((VxlanTunnel, 4)),
            ),
            (
                &[(LocalWorkload, 5), (LocalWorkload, 7)],
                Some((LocalWorkload, 7)),
            ),
            (
                &[(LocalWorkload, 5), (LocalWorkload, UNPLUGGED)],
                Some((LocalWorkload, 5)),
            ),
            (
                &[(NoEncap, 5), (LocalWorkload, UNPLUGGED)],
                Some((LocalWorkload, UNPLUGGED)),
            ),
            (
                &[(LocalWorkload, 7), (LocalWorkload, 5)],
                Some((LocalWorkload, 7)),
            ),
        ];
        for (candidates, expected) in cases {
            let won = winner(candidates.iter().map(|&(class, link)| Candidate {
                class,
                link,
                carrier: link != UNPLUGGED,
                route: (class, link),
            }));
            assert_eq!(won, expected, "{candidates:?}");
        }
    }
}
