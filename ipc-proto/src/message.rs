//! The requests, the answers and the feed.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, Hasher, RandomState},
    net::IpAddr,
};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{
    BpfRoute, Endpoint, FdbKey, Hook, KernelRoute, Known, Link, LinkAddressKey, LinkEvent,
    LinkProfile, LinkState, Mac, Many, Masquerade, NeighbourKey, ProgramSettings, Rivals, RouteKey,
    Rule, Step, Tunnel, TunnelDevice, bounded::at_most, net, view::Kind,
};

/// The version of everything in this crate that goes over the wire. Both sides must have the same.
pub const VERSION: u16 = 11;

/// One life of a process: another number means that it has crashed or restarted meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// Returns a new one.
    #[must_use]
    pub fn fresh() -> Self {
        Self(random())
    }
}

/// Returns a number that no one can guess: the standard library seeds its hashers from the
/// kernel's random numbers, which spares a dependency for 8 bytes.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The right to write, granted by [`Hello`] and lost at the next one.
///
/// It is random: a restarted helper knows no lease, and a second `calc` takes it from the first.
/// Both show up as refusals of the whole batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease(pub u64);

impl Lease {
    /// Returns a new one.
    #[must_use]
    pub fn fresh() -> Self {
        Self(random())
    }
}

/// The first request: asks for a lease and a fresh reading of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`] of who asks.
    pub version: u16,
    /// What need not be sent if it is so.
    pub known: Known,
}

/// The answer to [`Hello`]; the snapshot that is read for the lease follows page by page, by
/// [`PageRequest`], and is being read meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`VERSION`] of who answers.
    pub version: u16,
    /// Which life of the helper this is.
    pub incarnation: Incarnation,
    /// The lease that starts.
    pub lease: Lease,
    /// The most steps in a batch.
    pub max_steps: u32,
    /// The size of each BPF route map in entries.
    pub bpf_max_entries: u32,
    /// The [`Feed::seq`] that the snapshot's links include.
    pub feed: u64,
}

/// Asks for the next page of a snapshot; each can be had once, and is told to be the last or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRequest {
    /// The lease that it is read for.
    pub lease: Lease,
    /// Which page that is, from 0.
    pub page: u32,
}

/// One page of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// What was read.
    pub items: Vec<Observed>,
}

/// Something that the helper read from the kernel: a link, or state that is ours.
///
/// `None` as a value means "present, but not as any request could make it"; a route of
/// [`Protocol::Bird`](crate::Protocol::Bird) has one wherever it leads, whatever else it says. A key may come more
/// than once where the kernel allows several entries under one (IPv4 append, IPv6 siblings).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Observed {
    /// An interface.
    Link(LinkState),
    /// An interface has all settings of a profile.
    LinkSettings(Link, LinkProfile),
    /// A tunnel device of ours.
    TunnelDevice(Tunnel, Option<TunnelDevice>),
    /// A permanent neighbour on a workload's link or a tunnel device.
    Neighbour(NeighbourKey, Mac),
    /// A permanent forwarding entry of a tunnel device.
    Fdb(FdbKey, #[serde(with = "net")] Option<IpAddr>),
    /// An address of this host on a workload's link: whether a request has made it. Else it is one that a
    /// request could have made, but for whose it is.
    LinkAddress(LinkAddressKey, bool),
    /// An entry of a BPF route map, under its masked key.
    BpfRoute(#[serde(with = "net")] IpNet, Option<BpfRoute>),
    /// A route that is ours.
    KernelRoute(RouteKey, Option<KernelRoute>),
    /// What the packet programs know about a workload's link.
    Endpoint(Link, Option<Endpoint>),
    /// A packet program of ours is attached.
    Attachment(AttachmentKey),
    /// A routing rule of ours.
    Rule(Rule),
    /// All of a kind is as [`Hello::known`] says, and left out.
    AsKnown(Many),
    /// Other programs' routes that have prefixes of ours; once, if there are any.
    Rivals(Rivals),
}

impl Observed {
    /// Returns the interface, if it is one.
    #[must_use]
    pub const fn link(&self) -> Option<&LinkState> {
        match self {
            Self::Link(state) => Some(state),
            Self::LinkSettings(..)
            | Self::TunnelDevice(..)
            | Self::Neighbour(..)
            | Self::Fdb(..)
            | Self::LinkAddress(..)
            | Self::BpfRoute(..)
            | Self::KernelRoute(..)
            | Self::Endpoint(..)
            | Self::Attachment(_)
            | Self::Rule(_)
            | Self::AsKnown(_)
            | Self::Rivals(_) => None,
        }
    }
}

/// What tells program attachments apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttachmentKey {
    /// The interface.
    pub link: Link,
    /// Its hook.
    pub hook: Hook,
}

/// One change: what the helper is to make true of one key.
///
/// `None` means that the key shall be absent. Each is idempotent, so a batch whose answer was lost
/// is repaired by sending again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// The sysctls of an interface. `None` leaves them as they are.
    LinkSettings(Link, Option<LinkProfile>),
    /// A tunnel device.
    TunnelDevice(Tunnel, Option<Box<TunnelDevice>>),
    /// A permanent neighbour.
    Neighbour(NeighbourKey, Option<Mac>),
    /// A permanent forwarding entry: the node behind a hardware address.
    Fdb(FdbKey, #[serde(with = "net")] Option<IpAddr>),
    /// An address of this host on a workload's link: whether it is there, and made by us.
    LinkAddress(LinkAddressKey, bool),
    /// An entry of the BPF route map of the prefix's family.
    BpfRoute(#[serde(with = "net")] IpNet, Option<BpfRoute>),
    /// A kernel route.
    KernelRoute(RouteKey, Option<Box<KernelRoute>>),
    /// A routing rule: whether it exists.
    Rule(Rule, bool),
    /// The packet program at a hook: whether it is attached.
    Attachment(AttachmentKey, bool),
    /// What the packet programs know about a workload's link.
    Endpoint(Link, Option<Box<Endpoint>>),
    /// What the packet programs know about a node: the hardware address of its tunnel end.
    Vtep(#[serde(with = "net")] IpAddr, Option<Mac>),
    /// What the packet programs know about this node.
    ProgramSettings(ProgramSettings),
    /// Outgoing NAT; `None` is no NAT.
    Masquerade(Option<Box<Masquerade>>),
    /// Forgets the tracked connections of one address. Only on [`Lane::Flows`].
    FlowFlush(#[serde(with = "net")] IpAddr),
}

/// A lane has one batch in flight. Flows have their own, because flushing them takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Lane {
    /// Everything but flows; acknowledged when done.
    State,
    /// Flow flushes; acknowledged when started, finished by [`FlowsDone`].
    Flows,
}

/// The number of a batch, unique within its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BatchId(pub u64);

/// Changes to be made in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The lease that it is part of.
    pub lease: Lease,
    /// The lane that it goes on.
    pub lane: Lane,
    /// Its number.
    pub id: BatchId,
    /// The changes, of which there are no more than [`MAX_STEPS`](Self::MAX_STEPS).
    #[serde(deserialize_with = "at_most::<{ Batch::MAX_STEPS }, _, _>")]
    pub steps: Vec<Step>,
}

impl Batch {
    /// The most steps that can be decoded; a helper may take fewer.
    pub const MAX_STEPS: usize = 4096;
}

/// What became of a [`Batch`]. A step that is not listed was carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// The number of the batch.
    pub id: BatchId,
    /// The index of each step that failed, ascending, and why.
    pub failed: Vec<(u32, OpError)>,
}

/// Why an [`Op`] was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum OpError {
    /// The helper's policy forbids it. The same op will fail again.
    #[error("refused by the helper's policy: {0}")]
    Denied(String),
    /// The link is gone, renamed or re-created.
    #[error("{0} is gone, renamed or re-created")]
    StaleLink(Link),
    /// The kernel said no.
    #[error("{call}: {}{}", std::io::Error::from_raw_os_error(*errno), cure(call, *errno))]
    Kernel {
        /// The system call or netlink request.
        call: String,
        /// Its `errno`, positive.
        errno: i32,
    },
    /// The step that it needs failed, or comes later.
    #[error("not tried, since step {0} failed")]
    NotTried(u32),
    /// This helper does not do it.
    #[error("this helper does not do it: {0}")]
    Unsupported(String),
}

/// Returns what the operator can do about an error, where that is known.
fn cure(call: &str, errno: i32) -> &'static str {
    /// No space left.
    const ENOSPC: i32 = 28;
    if errno == ENOSPC && call.starts_with("BPF") {
        "; the map is full: raise bpf_map_size_route (and remove the pin, which has the old size)"
    } else {
        ""
    }
}

impl OpError {
    /// Returns whether the op may succeed later without its value changing.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Denied(_) | Self::Unsupported(_) => false,
            // A stale link is followed by a feed event, which usually changes the value; where it
            // does not (the link came back as it was), trying again is right.
            Self::StaleLink(_) | Self::Kernel { .. } | Self::NotTried(_) => true,
        }
    }
}

/// Changes of interfaces, in the order in which the kernel made them, and of what else others have
/// changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feed {
    /// One more than that of the feed before. A gap means that some were lost: say [`Hello`].
    pub seq: u64,
    /// The changes.
    pub events: Vec<LinkEvent>,
    /// Kinds of state of which others may have changed something that is ours, or is where only ours
    /// should be: another reading tells what.
    pub drift: BTreeSet<Kind>,
}

/// The flow flushes of a batch have ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowsDone {
    /// The lease of the batch.
    pub lease: Lease,
    /// Its number.
    pub id: BatchId,
    /// The index of each step that failed, ascending, and why.
    pub failed: Vec<(u32, OpError)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_op_is_no_larger_than_a_bpf_route_makes_it() {
        // Those come in batches of thousands, which are moved around a lot: larger values go into boxes.
        assert!(size_of::<Op>() <= 48);
    }
}
