//! The kernel's table of tracked connections, by ctnetlink on a socket of its own.
//!
//! One IPv4 address costs four walks through the table inside the kernel, any number of them one dump
//! and a request for each flow found. One IPv6 address costs a dump as well: Linux 6.18 deletes by an
//! IPv6 filter just what does not match it. What is gone already counts as forgotten.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr},
    path::Path,
};

use netlink_sys::{Socket, protocols::NETLINK_NETFILTER};
use nix::{
    errno::Errno,
    sys::{
        socket::{setsockopt, sockopt},
        time::TimeVal,
    },
};

use super::message::{self, Answer, Flow, PLACES, Received};

/// How many flows are held, and deleted, at a time.
const FLOWS: usize = 16 << 10;
/// How many deletions go into one system call. Each of them may fail, and be told so.
const BATCH: usize = 256;
/// How many dumps one flush takes at most: each but the last has found [`FLOWS`] of them, or was
/// interrupted.
const DUMPS: usize = 64;
/// The kernel fills at most half of this per datagram.
const READ: usize = 64 << 10;
/// Room in the socket for the errors of a batch.
const BUFFER: usize = 1 << 20;
/// Seconds that the kernel has for an answer.
const TIMEOUT: i64 = 30;
/// Is there where connections are tracked.
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Table {
    socket: Option<Socket>,
    sequence: u32,
    /// Whether this kernel was found to delete only by whole tuples.
    exact_only: bool,
}

impl Table {
    /// Forgets all flows of these addresses, and of no other.
    ///
    /// # Errors
    ///
    /// What the kernel said. Some flows may be forgotten then.
    pub(super) fn forget(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<(), Errno> {
        if !Path::new(COUNT).exists() {
            return Ok(());
        }
        let mut only = addresses.iter();
        let result = match (only.next(), only.next()) {
            (None, _) => Ok(()),
            (Some(IpAddr::V4(address)), None) if !self.exact_only => {
                match self.forget_one(*address) {
                    // So say kernels that do not know the filter.
                    Err(Errno::EINVAL | Errno::EOPNOTSUPP) => {
                        self.exact_only = true;
                        self.forget_many(addresses)
                    }
                    result => result,
                }
            }
            (Some(_), _) => self.forget_many(addresses),
        };
        if result.is_err() {
            // Leaves behind what the kernel may still say.
            self.socket = None;
        }
        result
    }

    fn forget_one(&mut self, address: Ipv4Addr) -> Result<(), Errno> {
        for place in PLACES {
            let sequence = self.take_sequence(1);
            let mut bytes = Vec::new();
            message::delete_by_address(&mut bytes, sequence, true, address, place);
            self.exchange(&bytes, |received| match received.answer {
                _ if received.sequence != sequence => Ok(false),
                Answer::Outcome(0) => Ok(true),
                Answer::Outcome(code) => Err(Errno::from_raw(code)),
                Answer::Flow(_) | Answer::Done(_) | Answer::Other => Ok(false),
            })
            .or_else(absent_is_fine)?;
        }
        Ok(())
    }

    fn forget_many(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<(), Errno> {
        let mut families = addresses.iter().map(IpAddr::is_ipv6);
        let first = families.next();
        let family = first.filter(|first| families.all(|other| other == *first));
        for _ in 0..DUMPS {
            let (flows, complete) = self.find(addresses, family)?;
            for batch in flows.chunks(BATCH) {
                self.delete(batch)?;
            }
            if complete {
                return Ok(());
            }
        }
        Err(Errno::EAGAIN)
    }

    /// Returns flows of these addresses, and whether those are all.
    fn find(
        &mut self,
        addresses: &BTreeSet<IpAddr>,
        family: Option<bool>,
    ) -> Result<(Vec<Flow>, bool), Errno> {
        let sequence = self.take_sequence(1);
        let mut bytes = Vec::new();
        message::dump(&mut bytes, sequence, family);
        let (mut flows, mut complete) = (Vec::new(), true);
        self.exchange(&bytes, |received| {
            if received.sequence != sequence {
                return Ok(false);
            }
            complete &= !received.interrupted;
            match received.answer {
                Answer::Flow(flow) => {
                    if flow.addresses.iter().any(|end| addresses.contains(end)) {
                        if flows.len() < FLOWS {
                            flows.push(flow);
                        } else {
                            complete = false;
                        }
                    }
                    Ok(false)
                }
                Answer::Done(0) | Answer::Outcome(0) => Ok(true),
                Answer::Done(code) | Answer::Outcome(code) => Err(Errno::from_raw(code)),
                Answer::Other => Ok(false),
            }
        })?;
        Ok((flows, complete))
    }

    fn delete(&mut self, flows: &[Flow]) -> Result<(), Errno> {
        let first = self.take_sequence(flows.len());
        let mut bytes = Vec::new();
        let mut last = first;
        for (nth, flow) in (0..).zip(flows) {
            last = first.wrapping_add(nth);
            // The others answer only if they fail.
            let acknowledged = usize::try_from(nth).is_ok_and(|nth| nth + 1 == flows.len());
            message::delete_flow(&mut bytes, last, acknowledged, flow);
        }
        let mut failed = None;
        self.exchange(&bytes, |received| {
            if let Answer::Outcome(code) = received.answer
                && received.sequence.wrapping_sub(first) <= last.wrapping_sub(first)
            {
                let errno = Errno::from_raw(code);
                if code != 0 && errno != Errno::ENOENT {
                    failed = Some(errno);
                }
                return Ok(received.sequence == last);
            }
            Ok(false)
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// Sends `bytes` and hands each answer to `take` until it says that it has all, or why not.
    fn exchange(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(Received) -> Result<bool, Errno>,
    ) -> Result<(), Errno> {
        let socket = match &mut self.socket {
            Some(socket) => socket,
            none @ None => none.insert(open().map_err(|error| errno(&error))?),
        };
        socket.send(bytes, 0).map_err(|error| errno(&error))?;
        let mut buffer = Vec::with_capacity(READ);
        loop {
            buffer.clear();
            let (_, sender) = socket
                .recv_from(&mut buffer, 0)
                .map_err(|error| errno(&error))?;
            // Only the kernel is answered to.
            if sender.port_number() != 0 {
                continue;
            }
            for received in message::read(&buffer) {
                if take(received)? {
                    return Ok(());
                }
            }
        }
    }

    fn take_sequence(&mut self, count: usize) -> u32 {
        let first = self.sequence;
        self.sequence = first.wrapping_add(u32::try_from(count).unwrap_or(u32::MAX));
        first
    }
}

fn absent_is_fine(errno: Errno) -> Result<(), Errno> {
    if errno == Errno::ENOENT {
        Ok(())
    } else {
        Err(errno)
    }
}

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.set_cap_ack(true)?;
    let timeout = TimeVal::new(TIMEOUT, 0);
    setsockopt(&socket, sockopt::ReceiveTimeout, &timeout)?;
    setsockopt(&socket, sockopt::SendTimeout, &timeout)?;
    setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)?;
    Ok(socket)
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
