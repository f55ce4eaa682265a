//! What `calc` and `privhelper` say to each other, and the faces that the processes show.
//!
//! A request can only name things that the helper may touch: there is no field for a table or
//! protocol number, a map, a program or a file. Nothing here does I/O but [`bus`].

mod bounded;
pub mod bus;
pub mod codec;
mod iface;
mod known;
mod l2;
mod message;
mod net;
mod route;
mod step;
pub mod view;

pub use self::{
    iface::{
        IfName, InvalidIfName, Link, LinkEvent, LinkProfile, LinkRole, LinkState, Mac, Tunnel,
    },
    known::{Known, Many, Sum},
    l2::{Endpoint, FdbKey, LinkAddressKey, NeighbourKey, TunnelDevice},
    message::{
        Ack, AttachmentKey, Batch, BatchId, Feed, FlowsDone, Hello, Incarnation, Lane, Lease,
        Observed, Op, OpError, Page, PageRequest, VERSION, Welcome,
    },
    route::{
        BpfRoute, BpfTarget, Flags, Hook, Hop, KernelRoute, Masquerade, ProgramSettings, Protocol,
        Rival, Rivals, RouteKey, RouteKind, Rule, Table,
    },
    step::Step,
};
