//! The raw kernel: the same routes by bare netlink messages, packed by hand and in full batches.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send,
    setsockopt, socket, sockopt,
};

use super::{METRIC, Route};

/// How many messages go into one system call, as the helper has it.
const BATCH: usize = 512;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const CREATE_OR_REPLACE: u16 = 0x500;
const DUMP: u16 = 0x300;

/// A netlink socket.
pub(super) struct Raw(OwnedFd);

impl Raw {
    pub(super) fn open() -> Self {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )
        .unwrap();
        setsockopt(&socket, sockopt::RcvBufForce, &(8 << 20)).unwrap();
        setsockopt(&socket, sockopt::SndBufForce, &(8 << 20)).unwrap();
        connect(socket.as_raw_fd(), &NetlinkAddr::new(0, 0)).unwrap();
        Self(socket)
    }

    /// Adds or deletes routes, which must all succeed, and returns how long the kernel took.
    pub(super) fn change(&mut self, routes: &[Route], add: bool) -> Duration {
        let batches: Vec<Vec<u8>> = routes
            .chunks(BATCH)
            .map(|batch| {
                let (kind, flags) = if add {
                    (NEW_ROUTE, REQUEST | CREATE_OR_REPLACE)
                } else {
                    (DELETE_ROUTE, REQUEST)
                };
                let messages = (1..).zip(batch).flat_map(|(nth, route)| {
                    let ack = if nth == batch.len() { ACK } else { 0 };
                    message(kind, flags | ack, Some(route))
                });
                messages.collect()
            })
            .collect();
        let mut buffer = vec![0; 64 << 10];
        let start = Instant::now();
        for batch in batches {
            send(self.0.as_raw_fd(), &batch, MsgFlags::empty()).unwrap();
            let length = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap();
            // The code of a success is 0, and there is but one answer.
            assert_eq!((kind_of(&buffer), u32_at(&buffer, 16)), (ERROR, 0));
            assert_eq!(length, 36);
        }
        start.elapsed()
    }

    /// Reads the main table, which must hold `count` routes of ours.
    pub(super) fn dump(&mut self, count: usize) -> Duration {
        let request = message(GET_ROUTE, REQUEST | DUMP, None);
        let mut buffer = vec![0; 64 << 10];
        let mut found = 0;
        let start = Instant::now();
        send(self.0.as_raw_fd(), &request, MsgFlags::empty()).unwrap();
        'all: loop {
            let length = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap();
            let mut rest = buffer.get(..length).unwrap();
            while rest.len() >= 16 {
                let size = usize::try_from(u32_at(rest, 0)).unwrap();
                match kind_of(rest) {
                    DONE => break 'all,
                    // The main table's.
                    NEW_ROUTE => found += usize::from(rest.get(20) == Some(&254)),
                    other => panic!("a message of type {other}"),
                }
                rest = rest.get(size.next_multiple_of(4)..).unwrap();
            }
        }
        let elapsed = start.elapsed();
        assert_eq!(found, count);
        elapsed
    }
}

fn kind_of(message: &[u8]) -> u16 {
    u16::from_ne_bytes(*message.get(4..).unwrap().first_chunk().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(*bytes.get(at..).unwrap().first_chunk().unwrap())
}

/// Packs a message about a route, or about all of the main table.
fn message(kind: u16, flags: u16, route: Option<&Route>) -> Vec<u8> {
    let attributes = route.map(|route| {
        let address = u32::from_ne_bytes(route.address.octets());
        [(1, address), (4, route.link.index), (6, METRIC)]
    });
    let attributes = attributes.iter().flatten();
    let length = 28 + 8 * u32::try_from(attributes.clone().count()).unwrap();
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    // Family, destination's length, source's length, TOS, table, protocol boot, scope link, unicast.
    bytes.extend(match route {
        Some(_) => [2, 32, 0, 0, 254, 3, 253, 1],
        None => [2, 0, 0, 0, 254, 0, 0, 0],
    });
    bytes.extend([0; 4]);
    // `RTA_DST`, `RTA_OIF` and `RTA_PRIORITY`.
    for (attribute, value) in attributes {
        bytes.extend(8_u16.to_ne_bytes());
        bytes.extend(u16::to_ne_bytes(*attribute));
        bytes.extend(value.to_ne_bytes());
    }
    bytes
}
