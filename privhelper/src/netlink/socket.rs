//! A blocking netlink socket: many changes in one message, and filtered dumps.
//!
//! Every request gets its own outcome. Nothing waits for ever: a kernel that does not answer in
//! time costs the socket, and whoever asked is told so.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REPLACE, NLM_F_REQUEST,
    NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::{RouteNetlinkMessage, neighbour::NeighbourMessage};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use nix::{
    errno::Errno,
    sys::{
        socket::{setsockopt, sockopt},
        time::TimeVal,
    },
};

/// How many messages go into one system call; more gain nothing.
const BATCH: usize = 512;
/// Room in the socket for a full batch, and for errors of all of it.
const BUFFER: usize = 8 << 20;
/// The kernel fills at most half of this per datagram.
const READ: usize = 64 << 10;
/// Seconds that the kernel has for an answer.
const TIMEOUT: i64 = 10;
/// How often a dump that was disturbed is started again.
const DUMPS: u32 = 4;

/// A change to be made.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// What.
    pub(crate) message: RouteNetlinkMessage,
    /// `NLM_F_*` besides `REQUEST` and `ACK`.
    pub(crate) flags: u16,
}

impl Request {
    /// Makes an object, or makes it so if there is one.
    pub(crate) fn set(message: RouteNetlinkMessage) -> Self {
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        Self { message, flags }
    }

    /// Changes or deletes an object that there is.
    pub(crate) fn change(message: RouteNetlinkMessage) -> Self {
        Self { message, flags: 0 }
    }

    /// Sets or deletes a neighbour or forwarding entry.
    pub(crate) fn entry(message: NeighbourMessage, set: bool) -> Self {
        if set {
            Self::set(RouteNetlinkMessage::NewNeighbour(message))
        } else {
            Self::change(RouteNetlinkMessage::DelNeighbour(message))
        }
    }

    /// Returns whether it makes something absent.
    pub(crate) fn deletes(&self) -> bool {
        matches!(
            self.message,
            RouteNetlinkMessage::DelRoute(_)
                | RouteNetlinkMessage::DelNeighbour(_)
                | RouteNetlinkMessage::DelAddress(_)
                | RouteNetlinkMessage::DelLink(_)
        )
    }
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// What the kernel said.
    pub(crate) errno: Errno,
    /// What it said in words.
    pub(crate) text: String,
}

impl Refused {
    /// Returns whether the reason is that the object is absent.
    pub(crate) fn is_absence(&self) -> bool {
        matches!(self.errno, Errno::ESRCH | Errno::ENOENT)
    }
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        let text = String::new();
        Self { errno, text }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Requests {
    socket: Socket,
    sequence: u32,
}

impl Requests {
    /// Opens a socket.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self {
            socket: open()?,
            sequence: 1,
        })
    }

    /// Makes changes in order and returns the outcome of each.
    pub(crate) fn send(&mut self, requests: Vec<Request>) -> Vec<Result<(), Refused>> {
        let mut outcomes = Vec::with_capacity(requests.len());
        let mut rest = requests.into_iter().peekable();
        while rest.peek().is_some() {
            let batch: Vec<Request> = rest.by_ref().take(BATCH).collect();
            outcomes.extend(self.send_batch(batch));
        }
        outcomes
    }

    fn send_batch(&mut self, batch: Vec<Request>) -> Vec<Result<(), Refused>> {
        let count = batch.len();
        let first = self.take_sequence(count);
        let mut bytes = Vec::new();
        for (nth, Request { message, flags }) in batch.into_iter().enumerate() {
            // The others answer only if they fail.
            let ack = if nth + 1 == count { NLM_F_ACK } else { 0 };
            let sequence = first.wrapping_add(u32::try_from(nth).unwrap_or(u32::MAX));
            append(&mut bytes, message, NLM_F_REQUEST | ack | flags, sequence);
        }
        let mut outcomes = vec![Ok(()); count];
        let done = self.exchange(&bytes, |header, payload| {
            let nth = usize::try_from(header.sequence_number.wrapping_sub(first));
            let outcome = nth.ok().and_then(|nth| outcomes.get_mut(nth));
            if let (Some(outcome), NetlinkPayload::Error(error)) = (outcome, payload)
                && let Some(code) = error.code
            {
                *outcome = Err(Refused {
                    errno: Errno::from_raw(code.get().saturating_neg()),
                    text: words(&error.header),
                });
            }
            let last = first.wrapping_add(u32::try_from(count).unwrap_or(u32::MAX) - 1);
            Ok(header.sequence_number == last)
        });
        match done {
            Ok(()) => outcomes,
            // Some may have been carried out; asking again changes nothing for those.
            Err(errno) => vec![Err(errno.into()); count],
        }
    }

    /// Asks for all objects that match `message`, and keeps what `keep` makes of each.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(crate) fn dump<T>(
        &mut self,
        message: &RouteNetlinkMessage,
        mut keep: impl FnMut(RouteNetlinkMessage) -> Option<T>,
    ) -> Result<Vec<T>, Errno> {
        for _ in 0..DUMPS {
            let sequence = self.take_sequence(1);
            let mut bytes = Vec::new();
            append(
                &mut bytes,
                message.clone(),
                NLM_F_REQUEST | NLM_F_DUMP,
                sequence,
            );
            let (mut kept, mut disturbed) = (Vec::new(), false);
            self.exchange(&bytes, |header, payload| {
                if header.sequence_number != sequence {
                    return Ok(false);
                }
                disturbed |= header.flags & NLM_F_DUMP_INTR != 0;
                match payload {
                    NetlinkPayload::InnerMessage(inner) => {
                        kept.extend(keep(inner));
                        Ok(false)
                    }
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        Err(Errno::from_raw(done.code.saturating_neg()))
                    }
                    NetlinkPayload::Done(_) => Ok(true),
                    NetlinkPayload::Error(error) => match error.code {
                        Some(code) => Err(Errno::from_raw(code.get().saturating_neg())),
                        None => Ok(true),
                    },
                    NetlinkPayload::Noop | NetlinkPayload::Overrun(_) | _ => Ok(false),
                }
            })?;
            if !disturbed {
                return Ok(kept);
            }
        }
        Err(Errno::EINTR)
    }

    /// Asks for one object.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(crate) fn get(
        &mut self,
        message: RouteNetlinkMessage,
    ) -> Result<RouteNetlinkMessage, Errno> {
        let sequence = self.take_sequence(1);
        let mut bytes = Vec::new();
        append(&mut bytes, message, NLM_F_REQUEST, sequence);
        let mut found = None;
        self.exchange(&bytes, |header, payload| {
            if header.sequence_number != sequence {
                return Ok(false);
            }
            match payload {
                NetlinkPayload::InnerMessage(inner) => found = Some(inner),
                NetlinkPayload::Error(error) => {
                    if let Some(code) = error.code {
                        return Err(Errno::from_raw(code.get().saturating_neg()));
                    }
                }
                NetlinkPayload::Done(_) | NetlinkPayload::Noop | NetlinkPayload::Overrun(_) | _ => {
                }
            }
            Ok(true)
        })?;
        found.ok_or(Errno::ENODATA)
    }

    /// Sends `bytes` and hands each answer to `take` until it says that it has all, or why not.
    fn exchange(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(NetlinkHeader, NetlinkPayload<RouteNetlinkMessage>) -> Result<bool, Errno>,
    ) -> Result<(), Errno> {
        if let Err(error) = self.socket.send(bytes, 0) {
            return Err(self.reopen(&error));
        }
        let mut buffer = Vec::with_capacity(READ);
        loop {
            buffer.clear();
            match self.socket.recv_from(&mut buffer, 0) {
                // Only the kernel is answered to.
                Ok((_, sender)) if sender.port_number() != 0 => continue,
                Ok(_) => {}
                Err(error) => return Err(self.reopen(&error)),
            }
            let mut rest = buffer.as_slice();
            while let Ok(message) = NetlinkBuffer::new_checked(rest) {
                let length = usize::try_from(message.length()).unwrap_or(usize::MAX);
                let whole = rest.get(..length).unwrap_or(rest);
                match NetlinkMessage::deserialize(whole) {
                    Ok(message) => {
                        let (header, payload) = message.into_parts();
                        if take(header, payload)? {
                            return Ok(());
                        }
                    }
                    // Something of another program's that the parser does not know.
                    Err(error) => tracing::debug!(%error, "skipped a netlink message"),
                }
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }

    /// Leaves behind what the kernel may still say, and returns what went wrong.
    fn reopen(&mut self, error: &io::Error) -> Errno {
        match open() {
            Ok(socket) => self.socket = socket,
            Err(error) => tracing::warn!(%error, "cannot open another netlink socket"),
        }
        error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
    }

    fn take_sequence(&mut self, count: usize) -> u32 {
        let first = self.sequence;
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.sequence = first.wrapping_add(count);
        first
    }
}

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.set_cap_ack(true)?;
    socket.set_ext_ack(true)?;
    socket.set_netlink_get_strict_chk(true)?;
    let timeout = TimeVal::new(TIMEOUT, 0);
    setsockopt(&socket, sockopt::ReceiveTimeout, &timeout)?;
    setsockopt(&socket, sockopt::SendTimeout, &timeout)?;
    setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)?;
    setsockopt(&socket, sockopt::SndBufForce, &BUFFER)?;
    Ok(socket)
}

fn append(bytes: &mut Vec<u8>, message: RouteNetlinkMessage, flags: u16, sequence: u32) {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    header.sequence_number = sequence;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    let start = bytes.len();
    let end = start + message.buffer_len();
    bytes.resize(end.next_multiple_of(4), 0);
    if let Some(place) = bytes.get_mut(start..end) {
        message.serialize(place);
    }
}

/// Finds the kernel's words (`NLMSGERR_ATTR_MSG`) behind the header of the request that failed.
fn words(answer: &[u8]) -> String {
    /// Length of the echoed header in bytes, as `NETLINK_CAP_ACK` leaves nothing else.
    const ECHO: usize = 16;
    const MESSAGE: u16 = 1;
    let mut rest = answer.get(ECHO..).unwrap_or_default();
    while let Some((&[l0, l1, k0, k1], _)) = rest.split_first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        if u16::from_ne_bytes([k0, k1]) == MESSAGE {
            let text = rest.get(4..length).unwrap_or_default();
            let text = text.strip_suffix(&[0]).unwrap_or(text);
            return String::from_utf8_lossy(text).into_owned();
        }
        rest = rest
            .get(length.max(4).next_multiple_of(4)..)
            .unwrap_or_default();
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_found_behind_other_attributes() {
        let mut answer = vec![0; 16];
        // NLMSGERR_ATTR_OFFS, then NLMSGERR_ATTR_MSG.
        for (kind, value) in [(2_u16, &[1, 0, 0, 0][..]), (1, b"Invalid scope\0")] {
            let length = u16::try_from(value.len() + 4).unwrap();
            answer.extend(length.to_ne_bytes());
            answer.extend(kind.to_ne_bytes());
            answer.extend(value);
            answer.resize(answer.len().next_multiple_of(4), 0);
        }
        assert_eq!(words(&answer), "Invalid scope");
        for cut in 0..answer.len() {
            drop(words(&answer[..cut]));
        }
    }
}
