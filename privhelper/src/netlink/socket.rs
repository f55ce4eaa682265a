//! A blocking netlink socket: many changes in one message, and filtered dumps.
//!
//! Every request gets its own outcome. Nothing waits for ever: a kernel that does not answer in
//! time costs the socket, and whoever asked is told so.

use std::{
    io, iter,
    sync::{
        atomic::{AtomicU16, Ordering},
        mpsc,
    },
    thread,
};

use libc::{RTM_DELROUTE, RTM_NEWROUTE};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST,
    NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NetlinkDeserializable, NetlinkHeader,
    NetlinkSerializable,
};
use netlink_packet_route::{RouteNetlinkMessage, neighbour::NeighbourMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::{
    errno::Errno,
    sys::{
        socket::{setsockopt, sockopt},
        time::TimeVal,
    },
};

/// How many messages go into one system call; more gain nothing.
const BATCH: usize = 512;
/// How many bytes go into one system call, unless one message is longer.
const BATCH_BYTES: usize = 1 << 20;
/// Room in the socket for a full batch, and for errors of all of it.
const BUFFER: usize = 8 << 20;
/// The kernel fills at most half of this per datagram.
const READ: usize = 64 << 10;
/// The length of a message's header in bytes.
const HEADER: usize = 16;
/// Seconds that the kernel has for an answer.
const TIMEOUT: i64 = 10;
/// How many datagrams are received before they are taken in.
const AHEAD: usize = 8;
/// How often a dump that was disturbed is started again.
const DUMPS: u32 = 4;

/// A message of the kernel's.
type Answer<'a> = NetlinkBuffer<&'a [u8]>;
/// Whether all was said that there is, or why not.
type Taken = Result<bool, Errno>;

/// The ports of these sockets are in a range of their own, which the kernel gives to nobody who does
/// not ask for it: by its writer's port a change is known as the helper's.
pub(super) const PORTS: u32 = 0x0ca1_0000;
/// The bits of a port that tell.
pub(super) const PORTS_MASK: u32 = 0xffff_0000;

/// A change to be made.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// `RTM_*`.
    kind: u16,
    /// `NLM_F_*` besides `REQUEST` and `ACK`.
    flags: u16,
    /// What follows the header.
    body: Vec<u8>,
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
    fn len(&self) -> usize {
        (HEADER + self.body.len()).next_multiple_of(4)
    }
}

/// Lays out what follows the header of a message.
pub(crate) fn body(message: &RouteNetlinkMessage) -> Vec<u8> {
    let mut body = vec![0; message.buffer_len()];
    message.serialize(&mut body);
    body
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
        matches!(
            self.errno,
            Errno::ESRCH | Errno::ENOENT | Errno::EADDRNOTAVAIL
        )
    }
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        let text = String::new();
        Self { errno, text }
    }
}

/// A dump as far as it has come.
#[derive(Debug)]
struct Dump<T> {
    sequence: u32,
    kept: Vec<T>,
    /// What is dumped has changed meanwhile: something may be missing, or twice.
    disturbed: bool,
}

impl<T> Dump<T> {
    fn new(sequence: u32) -> Self {
        Self {
            sequence,
            kept: Vec::new(),
            disturbed: false,
        }
    }

    /// Takes in a message, and returns whether it was the last one.
    fn take(&mut self, answer: &Answer<'_>, keep: impl FnOnce(u16, &[u8]) -> Option<T>) -> Taken {
        if answer.sequence_number() != self.sequence {
            return Ok(false);
        }
        self.disturbed |= answer.flags() & NLM_F_DUMP_INTR != 0;
        match outcome_of(answer) {
            None => {
                let item = keep(answer.message_type(), answer.payload());
                self.kept.extend(item);
                Ok(false)
            }
            Some(outcome) => outcome.map(|()| true),
        }
    }

    /// Returns what was kept, unless it counts for nothing.
    fn end(self) -> Option<Vec<T>> {
        (!self.disturbed).then_some(self.kept)
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
    pub(crate) fn send(&mut self, requests: &[Request]) -> Vec<Result<(), Refused>> {
        let mut outcomes = Vec::with_capacity(requests.len());
        let mut rest = requests;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |request: &&Request| {
                bytes += request.len();
                bytes <= BATCH_BYTES
            };
            let count = rest.iter().take(BATCH).take_while(fits).count().max(1);
            let (now, later) = rest.split_at(count.min(rest.len()));
            outcomes.extend(self.send_batch(now));
            rest = later;
        }
        outcomes
    }

    /// Sends a batch; in halves if the socket had no room for all that the kernel said to it.
    fn send_batch(&mut self, batch: &[Request]) -> Vec<Result<(), Refused>> {
        match self.try_batch(batch) {
            Ok(outcomes) => outcomes,
            // Some may have been carried out; asking again changes nothing for those.
            Err(Errno::ENOBUFS) if batch.len() > 1 => {
                let (first, second) = batch.split_at(batch.len() / 2);
                let mut outcomes = self.send_batch(first);
                outcomes.extend(self.send_batch(second));
                outcomes
            }
            Err(errno) => vec![Err(errno.into()); batch.len()],
        }
    }

    fn try_batch(&mut self, batch: &[Request]) -> Result<Vec<Result<(), Refused>>, Errno> {
        let count = batch.len();
        let first = self.take_sequence(count);
        let last = self.sequence.wrapping_sub(1);
        let mut bytes = Vec::with_capacity(batch.iter().map(Request::len).sum());
        for (nth, request) in batch.iter().enumerate() {
            // The others answer only if they fail.
            let ack = if nth + 1 == count { NLM_F_ACK } else { 0 };
            let sequence = first.wrapping_add(u32::try_from(nth).unwrap_or(u32::MAX));
            let flags = NLM_F_REQUEST | ack | request.flags;
            append(&mut bytes, request.kind, flags, sequence, &request.body);
        }
        let mut outcomes = vec![Ok(()); count];
        self.exchange(&bytes, |answer| {
            let nth = usize::try_from(answer.sequence_number().wrapping_sub(first));
            let outcome = nth.ok().and_then(|nth| outcomes.get_mut(nth));
            if let (Some(outcome), Some(Err(errno))) = (outcome, outcome_of(answer)) {
                let text = words(answer.payload().get(4..).unwrap_or_default());
                *outcome = Err(Refused { errno, text });
            }
            Ok(answer.sequence_number() == last)
        })?;
        Ok(outcomes)
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
        self.dump_bodies(message, |kind, body| keep(parse(kind, body)?))
    }

    /// Asks for all objects that match `message`, and keeps what `keep` makes of the type (`RTM_*`)
    /// and the body of each. What was read while it changed counts for nothing and is read again.
    ///
    /// # Errors
    ///
    /// What the kernel said; `EINTR` if it changes all the time.
    pub(crate) fn dump_bodies<T>(
        &mut self,
        message: &RouteNetlinkMessage,
        mut keep: impl FnMut(u16, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Errno> {
        for _ in 0..DUMPS {
            let mut dump = Dump::new(self.take_sequence(1));
            let mut bytes = Vec::new();
            let flags = NLM_F_REQUEST | NLM_F_DUMP;
            let (kind, body) = (message.message_type(), body(message));
            append(&mut bytes, kind, flags, dump.sequence, &body);
            let sequence = dump.sequence;
            self.exchange_ahead(&bytes, sequence, |answer| dump.take(answer, &mut keep))?;
            if let Some(kept) = dump.end() {
                return Ok(kept);
            }
            tracing::debug!(kind, "it has changed while it was read, and is read again");
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
        message: &RouteNetlinkMessage,
    ) -> Result<RouteNetlinkMessage, Errno> {
        let sequence = self.take_sequence(1);
        let mut bytes = Vec::new();
        let (kind, body) = (message.message_type(), body(message));
        append(&mut bytes, kind, NLM_F_REQUEST, sequence, &body);
        let mut found = None;
        self.exchange(&bytes, |answer| {
            if answer.sequence_number() != sequence {
                return Ok(false);
            }
            match outcome_of(answer) {
                None => found = parse(answer.message_type(), answer.payload()),
                Some(outcome) => outcome?,
            }
            Ok(true)
        })?;
        found.ok_or(Errno::ENODATA)
    }

    /// Sends `bytes` and hands each answer to `take` until it says that it has all, or why not.
    fn exchange(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(&Answer<'_>) -> Taken,
    ) -> Result<(), Errno> {
        if let Err(error) = self.socket.send(bytes, 0) {
            return Err(self.reopen(&error));
        }
        let mut buffer = Vec::with_capacity(READ);
        loop {
            let taken = receive(&self.socket, &mut buffer).and_then(|()| each(&buffer, &mut take));
            match taken {
                Ok(taken) if taken? => return Ok(()),
                Ok(_) => {}
                Err(error) => return Err(self.reopen(&error)),
            }
        }
    }

    /// The same for a dump with this number: a thread of its own receives, so that the kernel goes on
    /// while what it has told is taken in.
    fn exchange_ahead(
        &mut self,
        bytes: &[u8],
        sequence: u32,
        mut take: impl FnMut(&Answer<'_>) -> Taken,
    ) -> Result<(), Errno> {
        if let Err(error) = self.socket.send(bytes, 0) {
            return Err(self.reopen(&error));
        }
        let socket = &self.socket;
        let taken = thread::scope(|scope| {
            let (sender, received) = mpsc::sync_channel::<io::Result<Vec<u8>>>(AHEAD);
            let (emptied, empty) = mpsc::channel();
            scope.spawn(move || {
                loop {
                    let empty = empty.try_recv();
                    let mut buffer = empty.unwrap_or_else(|_| Vec::with_capacity(READ));
                    let result = receive(socket, &mut buffer);
                    let is_last = result.is_err() || has_end(&buffer, sequence);
                    // Whoever has heard enough listens no more.
                    if sender.send(result.map(|()| buffer)).is_err() || is_last {
                        return;
                    }
                }
            });
            for buffer in received {
                let buffer = buffer?;
                match each(&buffer, &mut take)? {
                    Ok(false) => {}
                    end => return Ok(end),
                }
                // All may have been received.
                drop(emptied.send(buffer));
            }
            Err(Errno::EBADMSG.into())
        });
        match taken {
            Ok(taken) => taken.map(|_| ()),
            Err(error) => Err(self.reopen(&error)),
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

/// Receives the kernel's next datagram; only the kernel is answered to.
fn receive(socket: &Socket, buffer: &mut Vec<u8>) -> io::Result<()> {
    loop {
        buffer.clear();
        let (_, sender) = socket.recv_from(buffer, 0)?;
        if sender.port_number() == 0 {
            return Ok(());
        }
    }
}

/// Hands each answer of a datagram to `take` until it says that it has all, or why not.
///
/// # Errors
///
/// If one is cut off: it may have told of a failure.
fn each(datagram: &[u8], take: &mut impl FnMut(&Answer<'_>) -> Taken) -> io::Result<Taken> {
    for answer in answers(datagram) {
        match take(&answer?) {
            Ok(false) => {}
            end => return Ok(end),
        }
    }
    Ok(Ok(false))
}

/// Returns whether a datagram has the end of a dump with this number, or cannot be read.
fn has_end(datagram: &[u8], sequence: u32) -> bool {
    let ends =
        |answer: &Answer<'_>| answer.sequence_number() == sequence && outcome_of(answer).is_some();
    answers(datagram).any(|answer| answer.is_err() || answer.is_ok_and(|answer| ends(&answer)))
}

/// Reads the answers of a datagram.
fn answers(datagram: &[u8]) -> impl Iterator<Item = Result<Answer<'_>, Errno>> {
    let mut rest = datagram;
    iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Ok(answer) = NetlinkBuffer::new_checked(rest) else {
            rest = &[];
            return Some(Err(Errno::EBADMSG));
        };
        let length = usize::try_from(answer.length()).unwrap_or(usize::MAX);
        let whole = rest.get(..length).unwrap_or(rest);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok(NetlinkBuffer::new(whole)))
    })
}

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    bind(&mut socket)?;
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

/// Takes the next port that is free.
fn bind(socket: &mut Socket) -> io::Result<()> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    for _ in 0..=u16::MAX {
        let port = PORTS | u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        match socket.bind(&SocketAddr::new(port, 0)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            other => return other,
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Adds a message, and fills up to where the next one may start.
fn append(bytes: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, body: &[u8]) {
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

/// Returns what a message says of the end of a request, if it is of that sort.
fn outcome_of(answer: &Answer<'_>) -> Option<Result<(), Errno>> {
    if ![NLMSG_ERROR, NLMSG_DONE].contains(&answer.message_type()) {
        return None;
    }
    let code = answer
        .payload()
        .first_chunk()
        .copied()
        .map(i32::from_ne_bytes);
    Some(match code {
        // A positive one is how many there were.
        Some(0..) => Ok(()),
        Some(code) => Err(Errno::from_raw(code.saturating_neg())),
        None => Err(Errno::EBADMSG),
    })
}

fn parse(kind: u16, body: &[u8]) -> Option<RouteNetlinkMessage> {
    let mut header = NetlinkHeader::default();
    header.message_type = kind;
    match RouteNetlinkMessage::deserialize(&header, body) {
        Ok(message) => Some(message),
        // Something of another program's that the parser does not know.
        Err(error) => {
            tracing::debug!(%error, "skipped a netlink message");
            None
        }
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

    /// Takes in messages of a dump, each with its type, flags, sequence number and body.
    fn dumped(messages: &[(u16, u16, u32, &[u8])]) -> (Result<bool, Errno>, Option<Vec<u8>>) {
        let mut dump = Dump::new(7);
        let mut end = Ok(false);
        for (kind, flags, sequence, body) in messages {
            assert_eq!(end, Ok(false), "nothing follows the end");
            let mut bytes = Vec::new();
            append(&mut bytes, *kind, *flags, *sequence, body);
            let answer = NetlinkBuffer::new(bytes.as_slice());
            end = dump.take(&answer, |_, body| body.first().copied());
        }
        (end, dump.end())
    }

    #[test]
    fn a_dump_counts_only_if_nothing_has_changed_meanwhile() {
        const ROUTE: u16 = RTM_NEWROUTE;
        const MULTI: u16 = 2;
        const INTR: u16 = MULTI | NLM_F_DUMP_INTR;
        let done = |flags| (NLMSG_DONE, flags, 7, &[0; 4][..]);
        let whole = [
            (ROUTE, MULTI, 7, &[1; 4][..]),
            (ROUTE, INTR, 6, &[9; 4]), // of one that was given up
            (ROUTE, MULTI, 7, &[2; 4]),
            done(MULTI),
        ];
        assert_eq!(dumped(&whole), (Ok(true), Some(vec![1, 2])));
        for disturbed in 0..4 {
            let mut messages = whole;
            if let Some((_, flags, 7, _)) = messages.get_mut(disturbed) {
                *flags = INTR;
                assert_eq!(dumped(&messages), (Ok(true), None), "{disturbed}");
            }
        }
        // The kernel gives up in the middle.
        let code = (-libc::ENOMEM).to_ne_bytes();
        let failed = [whole[0], (NLMSG_DONE, MULTI, 7, &code[..])];
        assert_eq!(dumped(&failed).0, Err(Errno::ENOMEM));
    }

    #[test]
    fn a_batch_whose_answers_do_not_fit_is_sent_again_in_parts() {
        let mut requests = Requests::open().unwrap();
        // The kernel makes it as small as it lets it be.
        setsockopt(&requests.socket, sockopt::RcvBuf, &1).unwrap();
        // A forwarding entry of no interface: nothing to change, and a failure each.
        let mut message = NeighbourMessage::default();
        message.header.ifindex = u32::from(u16::MAX) << 12;
        let batch = vec![Request::entry(message, false); BATCH];
        let outcomes = requests.send(&batch);
        let refused = |outcome: &Result<(), Refused>| {
            outcome
                .as_ref()
                .is_err_and(|refused| refused.errno != Errno::ENOBUFS)
        };
        assert_eq!(outcomes.len(), BATCH);
        assert!(outcomes.iter().all(refused), "{outcomes:?}");
    }
}
