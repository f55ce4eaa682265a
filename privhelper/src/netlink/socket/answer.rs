//! What the kernel says: the end of a request, why it was refused, and what a dump holds.

use std::{io, iter};

use netlink_packet_core::{
    NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NetlinkDeserializable, NetlinkHeader,
};
use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;

/// A message of the kernel's.
pub(super) type Answer<'a> = NetlinkBuffer<&'a [u8]>;
/// Whether all was said that there is, or why not.
pub(super) type Taken = Result<bool, Errno>;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// What the kernel said.
    pub(crate) errno: Errno,
    /// What it said in words.
    pub(crate) text: String,
}

impl Refused {
    /// Returns whether the reason is that the object is absent, be it with its interface.
    pub(crate) fn is_absence(&self) -> bool {
        matches!(
            self.errno,
            Errno::ESRCH | Errno::ENOENT | Errno::EADDRNOTAVAIL | Errno::ENODEV
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
pub(super) struct Dump<T> {
    pub(super) sequence: u32,
    kept: Vec<T>,
    /// What is dumped has changed meanwhile: something may be missing, or twice.
    disturbed: bool,
}

impl<T> Dump<T> {
    pub(super) fn new(sequence: u32) -> Self {
        Self {
            sequence,
            kept: Vec::new(),
            disturbed: false,
        }
    }

    /// Takes in a message, and returns whether it was the last one.
    pub(super) fn take(
        &mut self,
        answer: &Answer<'_>,
        keep: impl FnOnce(u16, &[u8]) -> Option<T>,
    ) -> Taken {
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
    pub(super) fn end(self) -> Option<Vec<T>> {
        (!self.disturbed).then_some(self.kept)
    }
}

/// Hands each answer of a datagram to `take` until it says that it has all, or why not.
///
/// # Errors
///
/// If one is cut off: it may have told of a failure.
pub(super) fn each(
    datagram: &[u8],
    take: &mut impl FnMut(&Answer<'_>) -> Taken,
) -> io::Result<Taken> {
    for answer in answers(datagram) {
        match take(&answer?) {
            Ok(false) => {}
            end => return Ok(end),
        }
    }
    Ok(Ok(false))
}

/// Returns whether a datagram has the end of a dump with this number, or cannot be read.
pub(super) fn has_end(datagram: &[u8], sequence: u32) -> bool {
    let ends =
        |answer: &Answer<'_>| answer.sequence_number() == sequence && outcome_of(answer).is_some();
    answers(datagram).any(|answer| answer.is_err() || answer.is_ok_and(|answer| ends(&answer)))
}

/// Reads the answers of a datagram.
pub(super) fn answers(datagram: &[u8]) -> impl Iterator<Item = Result<Answer<'_>, Errno>> {
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

/// Returns what a message says of the end of a request, if it is of that sort.
pub(super) fn outcome_of(answer: &Answer<'_>) -> Option<Result<(), Errno>> {
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

pub(super) fn parse(kind: u16, body: &[u8]) -> Option<RouteNetlinkMessage> {
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
pub(super) fn words(answer: &[u8]) -> String {
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
    use libc::RTM_NEWROUTE;

    use super::{super::request::append, *};

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
}
