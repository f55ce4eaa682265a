//! Follows the framing of what a peer says, one step ahead of zbus.
//!
//! Invariant: what zbus takes for the start of a message is one here as well, so that no message is
//! allocated whose length was not looked at. Where the two could differ, the stream ends.

use crate::bus::MAX_BODY;

/// Length of a D-Bus message's fixed part: endianness, type, flags, version, body length, serial,
/// length of the header fields (D-Bus specification, "Message Format").
const FIXED: usize = 16;
/// What the client's half of the handshake ends with.
const BEGIN: &[u8] = b"BEGIN";
/// The longest handshake in bytes.
const MAX_HANDSHAKE: usize = 4096;
/// The longest header in bytes.
const MAX_HEADER: usize = 64 << 10;
/// The message type of a method call.
const METHOD_CALL: u8 = 1;
/// The flag of a call that wants no answer.
const NO_REPLY_EXPECTED: u8 = 1;

/// What a message says of itself in its fixed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    kind: u8,
    flags: u8,
    /// Its number, which the answer names.
    pub(super) serial: u32,
    /// Its length in bytes.
    pub(super) length: usize,
}

impl Start {
    /// Returns whether it is a call that will be answered.
    pub(super) fn wants_answer(&self) -> bool {
        self.kind == METHOD_CALL && self.flags & NO_REPLY_EXPECTED == 0
    }

    fn read(fixed: &[u8; FIXED]) -> Result<Self, &'static str> {
        let [
            endian,
            kind,
            flags,
            _,
            b0,
            b1,
            b2,
            b3,
            s0,
            s1,
            s2,
            s3,
            f0,
            f1,
            f2,
            f3,
        ] = *fixed;
        let number = match endian {
            b'l' => u32::from_le_bytes,
            b'B' => u32::from_be_bytes,
            _ => return Err("not a D-Bus message"),
        };
        let too_long = |_| "a message is too long";
        let body = usize::try_from(number([b0, b1, b2, b3])).map_err(too_long)?;
        let fields = usize::try_from(number([f0, f1, f2, f3])).map_err(too_long)?;
        if body > MAX_BODY || fields > MAX_HEADER {
            return Err("a message is too long");
        }
        Ok(Self {
            kind,
            flags,
            serial: number([s0, s1, s2, s3]),
            // The body starts at a multiple of 8.
            length: FIXED + fields.next_multiple_of(8) + body,
        })
    }
}

/// Where in the stream we are.
#[derive(Debug)]
enum Phase {
    /// In a line of the handshake; holds what of it went by, and how many bytes in all.
    Handshake { line: Vec<u8>, seen: usize },
    /// In a message's fixed part; holds what of it went by.
    Fixed { bytes: [u8; FIXED], len: usize },
    /// In the rest of a message; holds how much is left.
    Rest(usize),
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Framing {
    phase: Phase,
    /// Whether the peer's half of the handshake ends with `BEGIN`, or else with its first line.
    begins: bool,
}

impl Framing {
    /// Follows what the client says.
    pub(super) fn of_client() -> Self {
        Self::new(true)
    }

    /// Follows what a bus says to a client that wants no file descriptors.
    pub(super) fn of_bus() -> Self {
        Self::new(false)
    }

    fn new(begins: bool) -> Self {
        let phase = Phase::Handshake {
            line: Vec::new(),
            seen: 0,
        };
        Self { phase, begins }
    }

    /// Returns whether the next byte is the first of a message.
    pub(super) fn is_between_messages(&self) -> bool {
        matches!(self.phase, Phase::Rest(0) | Phase::Fixed { len: 0, .. })
    }

    /// Takes in the next bytes and gives each message that starts to `start`; or says why the stream
    /// must end here.
    pub(super) fn feed(
        &mut self,
        mut input: &[u8],
        mut start: impl FnMut(Start) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        const FRESH: Phase = Phase::Fixed {
            bytes: [0; FIXED],
            len: 0,
        };
        while let Some((&byte, rest)) = input.split_first() {
            match &mut self.phase {
                Phase::Handshake { line, seen } => {
                    *seen += 1;
                    if *seen > MAX_HANDSHAKE {
                        return Err("the handshake does not end");
                    }
                    line.push(byte);
                    if byte == b'\n' {
                        // zbus takes it for granted that something comes before the end of a line.
                        let Some(said) = line.strip_suffix(b"\r\n") else {
                            return Err("a line of the handshake does not end as it should");
                        };
                        if !self.begins || said == BEGIN {
                            self.phase = FRESH;
                        } else if first_word(said) == BEGIN {
                            // zbus would begin, whatever comes after the word.
                            return Err("BEGIN is not all of its line");
                        } else {
                            line.clear();
                        }
                    }
                    input = rest;
                }
                Phase::Fixed { bytes, len } => {
                    if let Some(slot) = bytes.get_mut(*len) {
                        *slot = byte;
                    }
                    *len += 1;
                    if *len == FIXED {
                        let read = Start::read(bytes)?;
                        start(read)?;
                        self.phase = Phase::Rest(read.length.saturating_sub(FIXED));
                    }
                    input = rest;
                }
                Phase::Rest(0) => self.phase = FRESH,
                Phase::Rest(left) => {
                    let step = (*left).min(input.len());
                    *left -= step;
                    input = input.get(step..).unwrap_or_default();
                }
            }
        }
        Ok(())
    }
}

/// Returns what zbus takes for the command of a line.
fn first_word(line: &[u8]) -> &[u8] {
    let mut words = line.split(u8::is_ascii_whitespace);
    words.find(|word| !word.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(body: u32, fields: u32) -> Vec<u8> {
        let mut bytes = vec![b'l', 1, 0, 1];
        bytes.extend(body.to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend(fields.to_le_bytes());
        bytes
    }

    fn feed(framing: &mut Framing, bytes: &[u8]) -> Result<(), &'static str> {
        framing.feed(bytes, |_| Ok(()))
    }

    #[test]
    fn a_message_over_the_limit_ends_the_stream_at_its_header() {
        let max = u32::try_from(MAX_BODY).unwrap();
        for (mut framing, handshake) in [
            (Framing::of_client(), "\0AUTH EXTERNAL 30\r\nBEGIN\r\n"),
            (Framing::of_bus(), "OK 9f4a1b2c\r\n"),
        ] {
            feed(&mut framing, handshake.as_bytes()).unwrap();
            feed(&mut framing, &message(max, 0)).unwrap();
            feed(&mut framing, &vec![0; MAX_BODY]).unwrap();
            assert!(framing.is_between_messages());
            assert!(feed(&mut framing, &message(max + 1, 0)).is_err());
        }
    }

    #[test]
    fn a_bare_line_feed_in_the_handshake_ends_the_stream() {
        for start in [&b"\n"[..], b"\0\n", b"\0AUTH EXTERNAL 30\r\n\n"] {
            assert!(feed(&mut Framing::of_client(), start).is_err(), "{start:?}");
        }
    }

    #[test]
    fn the_word_begin_is_the_end_of_the_handshake_or_of_the_stream() {
        for (said, begins) in [
            ("BEGIN", Some(true)),
            ("ERROR BEGIN", Some(false)),
            ("BBEGIN", Some(false)),
            ("BEGIN ", None),
            ("BEGIN now", None),
            ("\tBEGIN", None),
            ("BEGIN\r", None),
            (" BEGIN\u{c}", None),
        ] {
            let mut framing = Framing::of_client();
            feed(&mut framing, b"\0AUTH EXTERNAL 30\r\n").unwrap();
            let ended = feed(&mut framing, format!("{said}\r\n").as_bytes()).is_err();
            let found = (!ended).then(|| framing.is_between_messages());
            assert_eq!(found, begins, "{said:?}");
        }
    }

    #[test]
    fn an_endless_handshake_ends_the_stream() {
        let endless = [b'B'; MAX_HANDSHAKE + 1];
        assert!(feed(&mut Framing::of_client(), &endless).is_err());
    }

    proptest! {
        /// However the stream is cut into reads, the same messages pass and the same one fails.
        #[test]
        fn cuts_do_not_matter(
            sizes in proptest::collection::vec((0_u32..64, 0_u32..40), 0..6),
            cut in 1_usize..40,
        ) {
            let mut stream = b"\0AUTH EXTERNAL 30\r\nERROR BEGIN\r\nBEGIN\r\n".to_vec();
            for (body, fields) in &sizes {
                stream.extend(message(*body, *fields));
                let rest = fields.next_multiple_of(8) + body;
                stream.extend(std::iter::repeat_n(b'l', usize::try_from(rest).unwrap()));
            }
            stream.extend(message(u32::MAX, 0));
            let (last, good) = stream.split_last().unwrap();
            let mut framing = Framing::of_client();
            let mut starts = 0;
            for part in good.chunks(cut) {
                let fed = framing.feed(part, |start| {
                    starts += usize::from(start.wants_answer());
                    Ok(())
                });
                prop_assert_eq!(fed, Ok(()));
            }
            prop_assert_eq!(starts, sizes.len());
            prop_assert!(feed(&mut framing, &[*last]).is_err());
        }
    }
}
