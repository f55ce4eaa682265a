//! Which route a prefix gets where several are wanted. A choice among values; nothing is kept.

use std::cmp::Reverse;

/// What asks for a route; the lowest wins.
///
/// The order is Calico's, with the classes of routes that Cairn does not make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A workload of this node.
    LocalWorkload,
    /// A service that the packet programs are to see; not made.
    BpfSpecial,
    /// A workload of another node by its WireGuard key; not made.
    Wireguard,
    /// A workload of a VXLAN pool on a node of the same subnet.
    VxlanSameSubnet,
    /// A workload of a VXLAN pool on another node.
    VxlanTunnel,
    /// A workload of an IPIP pool on a node of the same subnet; not made.
    IpipSameSubnet,
    /// A workload of an IPIP pool on another node; not made.
    IpipTunnel,
    /// A workload of a pool without encapsulation on another node.
    NoEncap,
    /// A block of this node in a VXLAN pool.
    VxlanBlackhole,
    /// A block of this node in an IPIP pool; not made.
    IpipBlackhole,
    /// A block of this node in a pool without encapsulation.
    NoEncapBlackhole,
}

/// A route that something asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<T> {
    /// What asks for it.
    pub class: Class,
    /// The index of its link, 0 without one.
    pub link: u32,
    /// Whether its link can carry packets now.
    pub carrier: bool,
    /// The route.
    pub route: T,
}

/// Returns the route to make: that of the lowest class, and within a class that of a link with a
/// carrier, and then of the newest.
///
/// The kernel would keep routes of different metrics side by side and prefer the lowest. As local
/// workloads have the highest here, asking for one route per prefix is what makes the class decide,
/// in both families alike.
pub fn winner<T>(candidates: impl IntoIterator<Item = Candidate<T>>) -> Option<T> {
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
