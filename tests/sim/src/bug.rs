//! Bugs that are seeded on purpose: the test of the test.

/// One thing that some part of the system does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// An acknowledgement of an older batch is taken for that of the newer one.
    AckOfOlder,
    /// Interface changes are lost, and the numbers of the others do not show it.
    FeedLost,
    /// The helper carries out batches of leases that have ended.
    OldLease,
    /// What the datastore does not ask for is swept although it is incomplete.
    SweepIncomplete,
    /// What failed is never due again.
    HoldForever,
    /// The helper reports the neighbours that it has set, not those that there are.
    NeighboursByMemory,
    /// The datastore counts as in sync before it was read.
    EarlyWrite,
    /// A BPF entry is deleted and inserted instead of updated.
    BreakBeforeMake,
    /// The helper takes the routes of other programs for its own.
    OthersRoutes,
    /// The answer to a `Hello` is ignored but for the interfaces.
    SnapshotIgnored,
    /// The supervisor is told that a child is gone when it is only about to go.
    EarlyBurial,
    /// The reconciler does not hear of interface changes.
    FlapUnheard,
    /// The end of a document is not told.
    RemovalLost,
    /// A clear that was refused counts as done.
    FailureUnheard,
    /// The helper says that it has forgotten flows, and has not.
    FlushSkipped,
    /// A flush counts as done once it is asked for.
    FlushNotAwaited,
    /// The reconciler does not hear of what others change.
    DriftUnheard,
    /// What was due while the host slept is never due again.
    TimersLostInSleep,
    /// An unfinished view of the datastore counts as complete after a reconnect.
    DoubtForgotten,
    /// What comes while there is no token for an apply is forgotten.
    ThrottledForgotten,
    /// A map that was full once counts as full for ever.
    FullForEver,
    /// The helper says of what it knows a sum of that it is so, and has not read it.
    SumUnread,
    /// What is to follow a batch is sent although something of that failed.
    FollowsFailure,
    /// What is to follow is sent although it was called back.
    RecallUnheard,
    /// The reconciler does not hear which workloads are BGP peers.
    PeersUnheard,
    /// The helper does not tell that others have put an address in the place of ours.
    AddressesUnheard,
    /// An address on a workload's link that is no longer wanted is not removed.
    AddressKept,
    /// The helper tells of others' addresses on workloads' links as if they could be ours.
    OthersAddresses,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 28] = [
        Self::AckOfOlder,
        Self::FeedLost,
        Self::OldLease,
        Self::SweepIncomplete,
        Self::HoldForever,
        Self::NeighboursByMemory,
        Self::EarlyWrite,
        Self::BreakBeforeMake,
        Self::OthersRoutes,
        Self::SnapshotIgnored,
        Self::EarlyBurial,
        Self::FlapUnheard,
        Self::RemovalLost,
        Self::FailureUnheard,
        Self::FlushSkipped,
        Self::FlushNotAwaited,
        Self::DriftUnheard,
        Self::TimersLostInSleep,
        Self::DoubtForgotten,
        Self::ThrottledForgotten,
        Self::FullForEver,
        Self::SumUnread,
        Self::FollowsFailure,
        Self::RecallUnheard,
        Self::PeersUnheard,
        Self::AddressesUnheard,
        Self::AddressKept,
        Self::OthersAddresses,
    ];
}
