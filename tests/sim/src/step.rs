//! What can happen. A step that does not apply does nothing, so any part of a script is a script.

use ipc_proto::Tunnel;
use supervisor::machine::Child;

pub use super::cluster::Doc;

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A document is written, or removed.
    Document(Doc, Option<u16>),
    /// A document cannot be read until it is written again.
    Garble(Doc),
    /// `calc` reads the datastore, from this document on.
    Deliver(u8),
    /// Reading the datastore takes until it is delivered.
    Stall,
    /// `calc` takes in the next message of the helper.
    Hear,
    /// `calc` computes, and sends what it has to.
    Think,
    /// `calc` connects to the helper.
    Connect,
    /// The helper goes half of its way with the next request.
    Serve,
    /// The helper reads the interfaces.
    Watch,
    /// The supervisor hears of the next thing.
    Supervise,
    /// All of them go on for so many rounds.
    Flow(u8),
    /// So many milliseconds pass.
    Wait(u16),
    /// The host sleeps for so many minutes; all that was due meanwhile is due at once.
    Sleep(u16),
    /// An interface changes.
    Link(Slot, Motion),
    /// Somebody changes what is ours.
    Drift(Thing, How, u8),
    /// Somebody changes what is not ours.
    Foreign(u8),
    /// A BGP peer among the workloads announces a prefix, or withdraws it.
    Bird(u8),
    /// So many writes fail, having been made or not.
    Fail(u8, bool),
    /// The helper dies after so many writes.
    Fuse(u8),
    /// A child dies.
    Crash(Child),
    /// The supervisor dies, and its children with it.
    CrashSupervisor,
    /// A child does nothing more.
    Hang(Child),
    /// The connection ends; what was asked may still be done.
    Cut,
    /// An answer never arrives.
    LoseReply,
    /// There are too many interface changes to tell of.
    LoseFeed,
    /// A batch that was sent before arrives once more.
    Late,
    /// An acknowledgement arrives once more.
    LateAck,
    /// Somebody asks for the kernel to be read back.
    Resync,
}

/// An interface by what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// The one that leads to the other nodes.
    Uplink,
    /// That of a workload.
    Cali(u8),
    /// A tunnel device.
    Tunnel(Tunnel),
}

/// What an interface does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Motion {
    /// It appears, down and under another name.
    Plug,
    /// It gets its name, or gets it back, and goes up.
    Name,
    /// It gets another name and stays as it is: that of this workload's link if it is one of them,
    /// or else one that says nothing.
    Rename(u8),
    /// It appears, ready for use.
    Add,
    /// It disappears.
    Remove,
    /// It disappears, and another one of that name appears at once.
    Swap,
    /// It is set down.
    Down,
    /// It is set up.
    Up,
    /// It loses its carrier, or gets it back.
    Carrier(bool),
    /// It gets another hardware address.
    Mac(u8),
    /// It gets another MTU.
    Mtu(u32),
    /// It loses its addresses of a family; the uplink can get them back.
    Addresses {
        /// Which family.
        ipv6: bool,
        /// Whether they are there after.
        present: bool,
    },
}

/// A kind of kernel state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thing {
    /// An entry of a BPF route map.
    Bpf,
    /// A kernel route.
    Route,
    /// A neighbour.
    Neighbour,
    /// A forwarding entry.
    Fdb,
    /// The settings of an interface.
    Settings,
    /// An address on a workload's link.
    Address,
}

/// What is done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It is removed.
    Remove,
    /// It gets another value.
    Alter,
    /// One more appears that nobody wants.
    Stray,
    /// It gets a second value, where the kernel allows that.
    Double,
}
