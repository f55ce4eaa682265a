//! A blocking netlink socket: many changes in one message, and filtered dumps.
//!
//! Every request gets its own outcome. Nothing waits for ever: a kernel that does not answer in
//! time costs the socket, and whoever asked is told so.

mod answer;
mod request;

use std::{
    io,
    sync::{
        atomic::{AtomicU16, Ordering},
        mpsc,
    },
    thread,
};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::{
    errno::Errno,
    sys::{
        socket::{setsockopt, sockopt},
        time::TimeVal,
    },
};

pub(crate) use self::{
    answer::Refused,
    request::{Request, body},
};
use self::{
    answer::{Answer, Dump, Taken, each, has_end, outcome_of, parse, words},
    request::append,
};

/// How many messages go into one system call; more gain nothing.
const BATCH: usize = 512;
/// How many bytes go into one system call, unless one message is longer.
const BATCH_BYTES: usize = 1 << 20;
/// Room in the socket for a full batch, and for errors of all of it.
const BUFFER: usize = 8 << 20;
/// The kernel fills at most half of this per datagram.
const READ: usize = 64 << 10;
/// Seconds that the kernel has for an answer.
const TIMEOUT: i64 = 10;
/// How many datagrams are received before they are taken in.
const AHEAD: usize = 8;
/// How often a dump that was disturbed is started again.
const DUMPS: u32 = 4;

/// The ports of these sockets are in a range of their own, which the kernel gives to nobody who does
/// not ask for it: by its writer's port a change is known as the helper's.
pub(super) const PORTS: u32 = 0x0ca1_0000;
/// The bits of a port that tell.
pub(super) const PORTS_MASK: u32 = 0xffff_0000;

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
        self.dump_bodies(message, |_, kind, body| keep(parse(kind, body)?))
    }

    /// Asks for all objects that match `message`, and keeps what `keep` makes of the type (`RTM_*`)
    /// and the body of each. What was read while it changed counts for nothing and is read again: `keep`
    /// is told how often.
    ///
    /// # Errors
    ///
    /// What the kernel said; `EINTR` if it changes all the time, `EBADMSG` if what it says makes no sense.
    pub(crate) fn dump_bodies<T>(
        &mut self,
        message: &RouteNetlinkMessage,
        mut keep: impl FnMut(u32, u16, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Errno> {
        until_undisturbed(|again| {
            let mut dump = Dump::new(self.take_sequence(1));
            let mut bytes = Vec::new();
            let flags = NLM_F_REQUEST | NLM_F_DUMP;
            let (kind, body) = (message.message_type(), body(message));
            append(&mut bytes, kind, flags, dump.sequence, &body);
            let sequence = dump.sequence;
            self.exchange_ahead(&bytes, sequence, |answer| {
                dump.take(answer, |kind, body| keep(again, kind, body))
            })?;
            dump.end().ok_or(Errno::EINTR)
        })
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

    /// The same for a dump with this number, received ahead.
    fn exchange_ahead(
        &mut self,
        bytes: &[u8],
        sequence: u32,
        take: impl FnMut(&Answer<'_>) -> Taken,
    ) -> Result<(), Errno> {
        if let Err(error) = self.socket.send(bytes, 0) {
            return Err(self.reopen(&error));
        }
        let socket = &self.socket;
        match receive_ahead(|buffer| receive(socket, buffer), sequence, take) {
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

/// Reads until nothing has come in between, a few times at most; `read` is told how often it has read
/// before.
///
/// # Errors
///
/// What `read` said, at last: `EINTR` and `EBADMSG` are of what comes in between.
fn until_undisturbed<T>(mut read: impl FnMut(u32) -> Result<T, Errno>) -> Result<T, Errno> {
    let mut again = 0;
    loop {
        let result = read(again);
        again += 1;
        match result {
            Err(errno @ (Errno::EINTR | Errno::EBADMSG)) if again < DUMPS => {
                tracing::debug!(%errno, "a dump counts for nothing, and is asked for again");
            }
            result => return result,
        }
    }
}

/// Receives a dump with this number: a thread of its own does, so that the kernel goes on while what it
/// has told is taken in. It ends with the dump, and with what makes no sense.
fn receive_ahead(
    mut receive: impl FnMut(&mut Vec<u8>) -> io::Result<()> + Send,
    sequence: u32,
    mut take: impl FnMut(&Answer<'_>) -> Taken,
) -> io::Result<Taken> {
    thread::scope(|scope| {
        let (sender, received) = mpsc::sync_channel::<io::Result<Vec<u8>>>(AHEAD);
        let (emptied, empty) = mpsc::channel();
        scope.spawn(move || {
            loop {
                let empty = empty.try_recv();
                let mut buffer = empty.unwrap_or_else(|_| Vec::with_capacity(READ));
                let result = receive(&mut buffer);
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
    })
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

#[cfg(test)]
mod tests {
    use netlink_packet_route::neighbour::NeighbourMessage;

    use super::*;

    #[test]
    fn a_datagram_that_makes_no_sense_ends_a_dump_at_once() {
        let mut whole = Vec::new();
        append(&mut whole, libc::RTM_NEWROUTE, 2, 7, &[1; 4]);
        let mut longer = whole.clone();
        longer[0] += 4;
        for bad in [&whole[..17], &longer, &whole[..3]] {
            let mut datagrams = [whole.as_slice(), bad].into_iter();
            let receive = |buffer: &mut Vec<u8>| {
                // Whoever asks for more would wait for the kernel in vain.
                let datagram = datagrams.next().expect("nothing is left to be received");
                buffer.clear();
                buffer.extend(datagram);
                Ok(())
            };
            let mut taken = 0;
            let end = receive_ahead(receive, 7, |_| {
                taken += 1;
                Ok(false)
            });
            let errno = end.map_err(|error| error.raw_os_error());
            assert_eq!(errno, Err(Some(libc::EBADMSG)));
            assert_eq!(taken, 1);
        }
    }

    #[test]
    fn a_dump_in_which_something_came_between_is_asked_for_again_a_few_times() {
        for between in [Errno::EINTR, Errno::EBADMSG] {
            let once = until_undisturbed(|again| if again < 1 { Err(between) } else { Ok(again) });
            assert_eq!(once, Ok(1));
            let mut reads = 0;
            let always = until_undisturbed(|again| {
                assert_eq!(again, reads);
                reads += 1;
                Err::<(), _>(between)
            });
            assert_eq!((always, reads), (Err(between), DUMPS));
        }
        let mut reads = 0;
        let other = until_undisturbed(|_| {
            reads += 1;
            Err::<(), _>(Errno::ENOMEM)
        });
        assert_eq!((other, reads), (Err(Errno::ENOMEM), 1));
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
