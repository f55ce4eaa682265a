//! The ways in which Cairn differs from the recorded steps on purpose.

use std::fmt;

/// A deliberate difference. What it accepts must still satisfy a check of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// The recorded writer reads the map again in the apply after a write failed or a delete found
    /// its key missing (V22, V24). Cairn tries the failed key alone, after a back-off, and reads the
    /// map when asked and periodically, so that one stuck key does not cost a reading of the whole
    /// map each time. Where the vectors read, Cairn is asked to and must then do just the same; a
    /// second Cairn that is not asked must do all but the repair of what others changed. So with
    /// kernel routes, which the recorded program reads when an interface comes up.
    ReadWhenAsked,
    /// Writes of one group (updates, inserts, deletes) come by key bytes in the vectors, and in any
    /// order in V23; Cairn's is by address. The groups must be the same.
    OrderWithinGroup,
    /// The recorded program asks for one route per metric, so that a tunnel's of metric 0 goes before
    /// a local workload's of 1024 (WK-8). Cairn makes the one that has precedence by its class.
    OneRoutePerPrefix,
    /// The recorded program makes routes with the protocol that is asked for. Where neither that nor
    /// their interface marks them as its own, it does not find them again and never removes them
    /// (1.7). Cairn gives those the safe protocol.
    SafeProtocol,
    /// The recorded program makes what is unreachable with the scope of a link, and several ways with
    /// that of the target (1.4). In Cairn the scope follows from where the route leads.
    ScopeOfKind,
    /// The recorded program replaces whatever is under a key that it wants (OW-13), and deletes by
    /// the key alone (WK-3). In Cairn another program's route stays, and the operator is told.
    OthersRoutesStay,
    /// Others have changed a prefix, and the recorded program has not looked at it since: it was
    /// asked to look at one interface, where Cairn reads all; or Cairn was trying to make it anyhow.
    RepairsSooner,
    /// Cairn spares what is on a new interface from when the helper first told of it, the recorded
    /// program from its first apply on, or for a while although the prefix is wanted elsewhere.
    GraceSinceSeen,
    /// In the vectors, some changes of interfaces are not told. Cairn is always told, so that it
    /// makes routes by an interface as soon as that is there and repairs what was lost with one.
    LinksAlwaysTold,
    /// What failed, and what others undo again and again, is tried again after a wait and not with
    /// each apply (WK-21). In a vector time stands still; at its end all is made.
    BackOff,
    /// The recorded program never removes a neighbour (WK-12). Cairn's go with what they are for.
    NeighbourGoes,
    /// A process that starts cannot know whether the one before it has forgotten the flows of an
    /// address whose route it had removed, so Cairn has them forgotten before the first route of a pod.
    FlushAtStart,
    /// Somebody else had the address, and the recorded program has lost that: its tracker misses
    /// what a reading finds, and what was removed together with an interface (WK-4 to WK-6).
    OwedFlush,
    /// The recorded program forgets flows of an address that nobody has had since Cairn forgot its
    /// flows: it was told of the end later, or the route is not known to be its own.
    NothingToForget,
    /// The recorded program forgets the flows of a pod that keeps its address (WK-7, WK-18).
    SameOwner,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadWhenAsked => "read-when-asked",
            Self::OrderWithinGroup => "order-within-group",
            Self::OneRoutePerPrefix => "one-route-per-prefix",
            Self::SafeProtocol => "safe-protocol",
            Self::ScopeOfKind => "scope-of-kind",
            Self::OthersRoutesStay => "others-routes-stay",
            Self::RepairsSooner => "repairs-sooner",
            Self::GraceSinceSeen => "grace-since-seen",
            Self::LinksAlwaysTold => "links-always-told",
            Self::BackOff => "back-off",
            Self::NeighbourGoes => "neighbour-goes",
            Self::FlushAtStart => "flush-at-start",
            Self::OwedFlush => "owed-flush",
            Self::NothingToForget => "nothing-to-forget",
            Self::SameOwner => "same-owner",
        })
    }
}
