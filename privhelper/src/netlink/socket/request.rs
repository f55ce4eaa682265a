//! A change to be made, as the kernel wants it.

use libc::{RTM_DELROUTE, RTM_NEWROUTE};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NetlinkSerializable};
use netlink_packet_route::{RouteNetlinkMessage, neighbour::NeighbourMessage};

/// The length of a message's header in bytes.
const HEADER: usize = 16;

/// A change to be made.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// `RTM_*`.
    pub(super) kind: u16,
    /// `NLM_F_*` besides `REQUEST` and `ACK`.
    pub(super) flags: u16,
    /// What follows the header.
    pub(super) body: Vec<u8>,
    deletes: bool,
}

impl Request {
    /// Asks for a change with `NLM_F_*` besides `REQUEST` and `ACK`.
    pub(crate) fn new(message: &RouteNetlinkMessage, flags: u16) -> Self {
        Self {
            kind: message.message_type(),
            flags,
            body: body(message),
            deletes: matches!(
                message,
                RouteNetlinkMessage::DelRoute(_)
                    | RouteNetlinkMessage::DelNeighbour(_)
                    | RouteNetlinkMessage::DelAddress(_)
                    | RouteNetlinkMessage::DelLink(_)
                    | RouteNetlinkMessage::DelRule(_)
            ),
        }
    }

    /// Makes an object, or makes it so if there is one.
    pub(crate) fn set(message: &RouteNetlinkMessage) -> Self {
        Self::new(message, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Makes an object; fails with `EEXIST` if there is one.
    pub(crate) fn create(message: &RouteNetlinkMessage) -> Self {
        Self::new(message, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Changes or deletes an object that there is.
    pub(crate) fn change(message: &RouteNetlinkMessage) -> Self {
        Self::new(message, 0)
    }

    /// Makes a route; fails with `EEXIST` if there is one under its key.
    pub(crate) fn create_route(body: Vec<u8>) -> Self {
        Self {
            kind: RTM_NEWROUTE,
            flags: NLM_F_CREATE | NLM_F_EXCL,
            body,
            deletes: false,
        }
    }

    /// Puts a route in the place of the first one under its key.
    pub(crate) fn replace_route(body: Vec<u8>) -> Self {
        Self {
            flags: NLM_F_CREATE | NLM_F_REPLACE,
            ..Self::create_route(body)
        }
    }

    /// Deletes a route.
    pub(crate) fn delete_route(body: Vec<u8>) -> Self {
        Self {
            kind: RTM_DELROUTE,
            flags: 0,
            body,
            deletes: true,
        }
    }

    /// Returns what follows its header.
    pub(crate) fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// Sets or deletes a neighbour or forwarding entry.
    pub(crate) fn entry(message: NeighbourMessage, set: bool) -> Self {
        if set {
            Self::set(&RouteNetlinkMessage::NewNeighbour(message))
        } else {
            Self::change(&RouteNetlinkMessage::DelNeighbour(message))
        }
    }

    /// Returns whether it makes something absent.
    pub(crate) fn deletes(&self) -> bool {
        self.deletes
    }

    /// Returns how many bytes it takes among others.
    pub(super) fn len(&self) -> usize {
        (HEADER + self.body.len()).next_multiple_of(4)
    }
}

/// Lays out what follows the header of a message.
pub(crate) fn body(message: &RouteNetlinkMessage) -> Vec<u8> {
    let mut body = vec![0; message.buffer_len()];
    message.serialize(&mut body);
    body
}

/// Adds a message, and fills up to where the next one may start.
pub(super) fn append(bytes: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, body: &[u8]) {
    let length = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    // To the kernel.
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}
