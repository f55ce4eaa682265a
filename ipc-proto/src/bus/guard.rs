//! A stream that ends before a hostile message is allocated.
//!
//! zbus allocates and zeroes a message's whole length as soon as it has read the first 16 bytes,
//! up to 128 MiB. These halves watch the bytes go by and fail the read that completes such a
//! header.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};
use zbus::{
    connection::socket::{ReadHalf, Socket, Split, WriteHalf},
    fdo::ConnectionCredentials,
};

use super::MAX_BODY;

/// Length of a D-Bus message's fixed part: endianness, type, flags, version, body length, serial,
/// length of the header fields (D-Bus specification, "Message Format").
const FIXED: usize = 16;
/// What the client's half of the handshake ends with.
const BEGIN: &[u8] = b"BEGIN\r\n";
/// What a bus's half of the handshake ends with: it is one line, to a client that wants no file
/// descriptors.
const LINE: &[u8] = b"\r\n";
/// The longest handshake in bytes.
const MAX_HANDSHAKE: usize = 4096;
/// The longest header in bytes.
const MAX_HEADER: usize = 64 << 10;

/// Where in the stream we are.
#[derive(Debug)]
enum Phase {
    /// Looking for `end`; holds how many of its bytes just went by, how many in all, and the last.
    Handshake {
        end: &'static [u8],
        matched: usize,
        seen: usize,
        last: u8,
    },
    /// In a message's fixed part; holds what of it went by.
    Fixed { bytes: [u8; FIXED], len: usize },
    /// In the rest of a message; holds how much is left.
    Rest(usize),
}

/// Follows the framing of a stream of messages.
#[derive(Debug)]
struct Framing(Phase);

impl Framing {
    fn new(end: &'static [u8]) -> Self {
        Self(Phase::Handshake {
            end,
            matched: 0,
            seen: 0,
            last: 0,
        })
    }

    /// Takes in the next bytes, or says why the stream must end here.
    fn feed(&mut self, mut input: &[u8]) -> Result<(), &'static str> {
        while let Some((&byte, rest)) = input.split_first() {
            match &mut self.0 {
                Phase::Handshake {
                    end,
                    matched,
                    seen,
                    last,
                } => {
                    // zbus takes it for granted that something comes before the end of a line.
                    if byte == b'\n' && *last != b'\r' {
                        return Err("a line of the handshake does not end as it should");
                    }
                    *last = byte;
                    *seen += 1;
                    *matched = match end.get(*matched) {
                        Some(want) if *want == byte => *matched + 1,
                        // The first byte of either is the only one that can start over.
                        Some(_) | None => usize::from(end.first() == Some(&byte)),
                    };
                    if *matched == end.len() {
                        self.0 = Phase::Fixed {
                            bytes: [0; FIXED],
                            len: 0,
                        };
                    } else if *seen > MAX_HANDSHAKE {
                        return Err("the handshake does not end");
                    }
                    input = rest;
                }
                Phase::Fixed { bytes, len } => {
                    if let Some(slot) = bytes.get_mut(*len) {
                        *slot = byte;
                    }
                    *len += 1;
                    if *len == FIXED {
                        self.0 = Phase::Rest(rest_of_message(bytes)?);
                    }
                    input = rest;
                }
                Phase::Rest(0) => {
                    self.0 = Phase::Fixed {
                        bytes: [0; FIXED],
                        len: 0,
                    }
                }
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

/// Returns how many bytes follow a message's fixed part.
fn rest_of_message(fixed: &[u8; FIXED]) -> Result<usize, &'static str> {
    let [endian, _, _, _, b0, b1, b2, b3, _, _, _, _, f0, f1, f2, f3] = *fixed;
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
    // The body starts at a multiple of 8.
    Ok(fields.next_multiple_of(8) + body)
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Guarded {
    stream: UnixStream,
    framing: Framing,
}

impl Guarded {
    /// Guards the server's end of a connection.
    pub(super) fn server(stream: UnixStream) -> Self {
        let framing = Framing::new(BEGIN);
        Self { stream, framing }
    }

    /// Guards the end of a client of a bus, which passes on what other clients send.
    pub(super) fn client(stream: UnixStream) -> Self {
        let framing = Framing::new(LINE);
        Self { stream, framing }
    }
}

impl Socket for Guarded {
    type ReadHalf = Reader;
    type WriteHalf = Writer;

    fn split(self) -> Split<Reader, Writer> {
        let uid = self.stream.peer_cred().ok().map(|cred| cred.uid());
        let (stream, write) = self.stream.into_split();
        Split::new(
            Reader {
                stream,
                uid,
                framing: self.framing,
            },
            Writer(write),
        )
    }
}

/// The half that is watched.
#[derive(Debug)]
pub(super) struct Reader {
    stream: OwnedReadHalf,
    uid: Option<u32>,
    framing: Framing,
}

#[async_trait::async_trait]
impl ReadHalf for Reader {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let read = self.stream.read(buffer).await?;
        let bytes = buffer.get(..read).unwrap_or_default();
        self.framing
            .feed(bytes)
            .map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
        Ok((read, Vec::new()))
    }

    async fn peer_credentials(&mut self) -> io::Result<ConnectionCredentials> {
        let credentials = ConnectionCredentials::default();
        Ok(match self.uid {
            Some(uid) => credentials.set_unix_user_id(uid),
            None => credentials,
        })
    }
}

/// The other half.
#[derive(Debug)]
pub(super) struct Writer(pub(super) OwnedWriteHalf);

#[async_trait::async_trait]
impl WriteHalf for Writer {
    async fn sendmsg(&mut self, buffer: &[u8], _fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        self.0.write(buffer).await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.0.shutdown().await
    }
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

    #[test]
    fn a_message_over_the_limit_ends_the_stream_at_its_header() {
        let max = u32::try_from(MAX_BODY).unwrap();
        for (end, handshake) in [
            (BEGIN, "\0AUTH EXTERNAL 30\r\nBEGIN\r\n"),
            (LINE, "OK 9f4a1b2c\r\n"),
        ] {
            let mut framing = Framing::new(end);
            framing.feed(handshake.as_bytes()).unwrap();
            framing.feed(&message(max, 0)).unwrap();
            framing.feed(&vec![0; MAX_BODY]).unwrap();
            assert!(framing.feed(&message(max + 1, 0)).is_err());
        }
    }

    #[test]
    fn a_bare_line_feed_in_the_handshake_ends_the_stream() {
        for start in [&b"\n"[..], b"\0\n", b"\0AUTH EXTERNAL 30\r\n\n"] {
            assert!(Framing::new(BEGIN).feed(start).is_err(), "{start:?}");
        }
    }

    #[test]
    fn an_endless_handshake_ends_the_stream() {
        assert!(
            Framing::new(BEGIN)
                .feed(&[b'B'; MAX_HANDSHAKE + 1])
                .is_err()
        );
    }

    proptest! {
        /// However the stream is cut into reads, the same messages pass and the same one fails.
        #[test]
        fn cuts_do_not_matter(
            sizes in proptest::collection::vec((0_u32..64, 0_u32..40), 0..6),
            cut in 1_usize..40,
        ) {
            let mut stream = b"\0AUTH EXTERNAL 30\r\nBEBEGIN\r\n".to_vec();
            for (body, fields) in &sizes {
                stream.extend(message(*body, *fields));
                let rest = fields.next_multiple_of(8) + body;
                stream.extend(std::iter::repeat_n(b'l', usize::try_from(rest).unwrap()));
            }
            stream.extend(message(u32::MAX, 0));
            let (last, good) = stream.split_last().unwrap();
            let mut framing = Framing::new(BEGIN);
            for part in good.chunks(cut) {
                prop_assert_eq!(framing.feed(part), Ok(()));
            }
            prop_assert!(framing.feed(&[*last]).is_err());
        }
    }
}
