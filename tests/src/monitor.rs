//! What the kernel tells whoever listens: each change of a route, a rule or a permanent neighbour.
//!
//! It tells before the change is answered, so that what was not heard by then was not made.
#![expect(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on panics"
)]

use std::os::fd::{AsRawFd, OwnedFd};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv,
        setsockopt, socket, sockopt,
    },
};

/// `RTMGRP_NEIGH`, `RTMGRP_IPV4_ROUTE`, `RTMGRP_IPV4_RULE`, `RTMGRP_IPV6_ROUTE` and IPv6 rules.
const GROUPS: u32 = 0x4 | 0x40 | 0x80 | 0x400 | 0x4_0000;
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
        let mut buffer = vec![0; 64 << 10];
        loop {
            let length = match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EAGAIN) => return heard,
                other => other.unwrap(),
            };
            let mut rest = buffer.get(..length).unwrap();
            while let Some((header, _)) = rest.split_first_chunk::<16>() {
                let [l0, l1, l2, l3, k0, k1, ..] = *header;
                let kind = u16::from_ne_bytes([k0, k1]);
                // Others come and go by themselves.
                let state = rest.get(24).copied().unwrap_or_default();
                if !NEIGHBOURS.contains(&kind) || state & PERMANENT != 0 {
                    heard.push(kind);
                }
                let length = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).unwrap();
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}
