//! What the kernel tells whoever listens: each change of a route, a rule, a permanent neighbour or a
//! permanent forwarding entry.
//!
//! It tells before the change is answered, so that what was not heard by then was not made.
#![expect(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on panics"
)]

use std::{
    net::IpAddr,
    os::fd::{AsRawFd, OwnedFd},
};

use ipc_proto::Mac;
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv,
        setsockopt, socket, sockopt,
    },
};

/// `RTMGRP_NEIGH`, `RTMGRP_IPV4_ROUTE`, `RTMGRP_IPV4_RULE`, `RTMGRP_IPV6_ROUTE` and IPv6 rules.
const GROUPS: u32 = 0x4 | 0x40 | 0x80 | 0x400 | 0x4_0000;
/// `RTM_NEWROUTE` and `RTM_DELROUTE`.
const ROUTES: [u16; 2] = [24, 25];
/// `RTPROT_KERNEL`.
const KERNEL: u8 = 2;
/// `RTM_NEWNEIGH` and `RTM_DELNEIGH`.
const NEIGHBOURS: [u16; 2] = [28, 29];
/// `NUD_PERMANENT`.
const PERMANENT: u8 = 0x80;

/// See the [module](self).
#[derive(Debug)]
pub struct Monitor(OwnedFd);

impl Monitor {
    /// Listens from now on.
    #[must_use]
    pub fn open() -> Self {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )
        .unwrap();
        setsockopt(&socket, sockopt::RcvBufForce, &(8 << 20)).unwrap();
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS)).unwrap();
        Self(socket)
    }

    /// Returns the types (`RTM_*`) of what was heard since the last time.
    #[must_use]
    pub fn heard(&self) -> Vec<u16> {
        let mut heard = Vec::new();
        self.read(|kind, message| {
            // Others come and go by themselves, and so do routes of the kernel's own as a link's
            // addresses come to be valid.
            let state = message.get(24).copied().unwrap_or_default();
            let passes = NEIGHBOURS.contains(&kind) && state & PERMANENT == 0;
            let own = ROUTES.contains(&kind) && message.get(21) == Some(&KERNEL);
            if !passes && !own {
                heard.push(kind);
            }
        });
        heard
    }

    /// Returns what was heard since the last time of one interface's entries and of routes in the
    /// main table, in a word each: `+fdb MAC ADDRESS`, `-neigh ADDRESS`, `+route PREFIX`.
    #[must_use]
    pub fn told(&self, index: u32) -> Vec<String> {
        let mut told = Vec::new();
        self.read(|kind, message| told.extend(word(kind, message, index)));
        told
    }

    /// Hands each message that was heard since the last time to `take`, with its type.
    fn read(&self, mut take: impl FnMut(u16, &[u8])) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let length = match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EAGAIN) => return,
                other => other.unwrap(),
            };
            let mut rest = buffer.get(..length).unwrap();
            while let Some((header, _)) = rest.split_first_chunk::<16>() {
                let [l0, l1, l2, l3, k0, k1, ..] = *header;
                let length = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).unwrap();
                take(u16::from_ne_bytes([k0, k1]), rest.get(..length).unwrap());
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

/// Says what a message tells, if it is of that sort.
fn word(kind: u16, message: &[u8], index: u32) -> Option<String> {
    const BRIDGE: u8 = 7;
    const MAIN: u8 = 254;
    let sign = if kind.is_multiple_of(2) { '+' } else { '-' };
    let (mut destination, mut mac) = (None, None);
    let mut rest = message.get(28..)?;
    while let Some((&[l0, l1, k0, k1], _)) = rest.split_first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = rest.get(4..length)?;
        match u16::from_ne_bytes([k0, k1]) {
            1 => destination = address(value),
            2 => mac = value.try_into().ok().map(Mac),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    let &[family, length, _, _, table, ..] = message.get(16..28)? else {
        return None;
    };
    if ROUTES.contains(&kind) {
        return (table == MAIN).then(|| format!("{sign}route {}/{length}", destination.unwrap()));
    }
    let of = u32::from_ne_bytes(*message.get(20..)?.first_chunk()?);
    let permanent = message.get(24)? & PERMANENT != 0;
    let destination = destination.map_or("?".to_owned(), |to| to.to_string());
    match (kind, family, sign) {
        _ if of != index || !NEIGHBOURS.contains(&kind) => None,
        (_, BRIDGE, '+') => Some(format!("+fdb {} {destination}", mac?)),
        (_, BRIDGE, _) => Some(format!("-fdb {} {destination}", mac?)),
        // The kernel lets one fail before it deletes it.
        (_, _, '+') => permanent.then(|| format!("+neigh {destination} {}", mac.unwrap())),
        (_, _, _) => Some(format!("-neigh {destination}")),
    }
}

fn address(value: &[u8]) -> Option<IpAddr> {
    let v4 = value.try_into().map(|bytes: [u8; 4]| bytes.into());
    v4.or_else(|_| value.try_into().map(|bytes: [u8; 16]| bytes.into()))
        .ok()
}
