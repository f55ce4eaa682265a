//! A client that says what it likes: raw bytes on a D-Bus socket, and none of zbus's manners.
//!
//! It waits for an answer or an end that must come, and not for long for one that may not, so that a
//! test of what the other end does not answer ends by itself.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on panics"
)]

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use crate::wait::PATIENCE;

/// How long a read or a write may stand still before it counts as one that never ends.
const STUCK: Duration = Duration::from_millis(300);
/// The flag of a call that wants no answer.
pub const NO_REPLY: u8 = 1;

/// See the [module](self).
#[derive(Debug)]
pub struct Raw {
    /// The socket.
    pub stream: UnixStream,
    serial: u32,
}

/// What a message is, before its bytes.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// 1 is a call, 2 and 3 are answers, 4 is a signal.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// The object.
    pub path: &'a str,
    /// The interface.
    pub interface: &'a str,
    /// The method.
    pub member: &'a str,
    /// What the body is made of; `ay` for bytes.
    pub signature: &'a str,
    /// The body.
    pub body: Vec<u8>,
    /// More header fields: code, signature and value, which starts at a multiple of 8 and of its own length.
    pub fields: Vec<u8>,
}

impl<'a> Call<'a> {
    /// A call without arguments.
    #[must_use]
    pub fn new(path: &'a str, interface: &'a str, member: &'a str) -> Self {
        Self {
            kind: 1,
            flags: 0,
            path,
            interface,
            member,
            signature: "",
            body: Vec::new(),
            fields: Vec::new(),
        }
    }

    /// Gives it one argument of bytes.
    ///
    /// # Panics
    ///
    /// If they are more than 4 GiB.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let mut body = u32::try_from(bytes.len()).unwrap().to_le_bytes().to_vec();
        body.extend(bytes);
        Self {
            signature: "ay",
            body,
            ..self
        }
    }

    /// Gives it arguments that are strings.
    ///
    /// # Panics
    ///
    /// If there are more than two.
    #[must_use]
    pub fn strings(self, strings: &[&str]) -> Self {
        let mut body = Vec::new();
        for string in strings {
            pad(&mut body, 4);
            put_string(&mut body, string);
        }
        Self {
            signature: ["", "s", "ss"].get(strings.len()).expect("two at most"),
            body,
            ..self
        }
    }

    /// Returns its bytes as a message of this number.
    ///
    /// # Panics
    ///
    /// If it is more than 4 GiB.
    #[must_use]
    pub fn encode(&self, serial: u32) -> Vec<u8> {
        let mut fields = Vec::new();
        for (code, kind, text) in [
            (1, b'o', self.path),
            (2, b's', self.interface),
            (3, b's', self.member),
            (8, b'g', self.signature),
        ] {
            if text.is_empty() {
                continue;
            }
            pad(&mut fields, 8);
            fields.extend([code, 1, kind, 0]);
            if kind == b'g' {
                fields.push(u8::try_from(text.len()).unwrap());
                fields.extend(text.bytes());
                fields.push(0);
            } else {
                put_string(&mut fields, text);
            }
        }
        if !self.fields.is_empty() {
            pad(&mut fields, 8);
            fields.extend(&self.fields);
        }
        let mut message = fixed(self.kind, self.flags, self.body.len(), serial, fields.len());
        message.extend(fields);
        pad(&mut message, 8);
        message.extend(&self.body);
        message
    }
}

/// Returns the fixed part of a message, whatever follows it.
///
/// # Panics
///
/// If a length is more than 4 GiB.
#[must_use]
pub fn fixed(kind: u8, flags: u8, body: usize, serial: u32, fields: usize) -> Vec<u8> {
    let mut bytes = vec![b'l', kind, flags, 1];
    bytes.extend(u32::try_from(body).unwrap().to_le_bytes());
    bytes.extend(serial.to_le_bytes());
    bytes.extend(u32::try_from(fields).unwrap().to_le_bytes());
    bytes
}

fn pad(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

fn put_string(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
    bytes.extend(text.bytes());
    bytes.push(0);
}

impl Raw {
    /// Connects, and says nothing.
    ///
    /// # Panics
    ///
    /// If nobody listens.
    #[must_use]
    pub fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(STUCK)).unwrap();
        stream.set_write_timeout(Some(STUCK)).unwrap();
        Self { stream, serial: 0 }
    }

    /// Connects and says all of the handshake, the last line of which is `begin`.
    ///
    /// # Panics
    ///
    /// If it is not taken.
    #[must_use]
    pub fn begin(path: &Path, begin: &str) -> Self {
        let mut raw = Self::connect(path);
        let uid = nix::unistd::geteuid().to_string();
        // Decimal digits are 0x30 and on.
        let hex: String = uid.chars().flat_map(|digit| ['3', digit]).collect();
        let auth = format!("\0AUTH EXTERNAL {hex}\r\n");
        raw.stream.write_all(auth.as_bytes()).unwrap();
        let mut answer = [0; 256];
        raw.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(raw.stream.read(&mut answer).unwrap() > 3);
        raw.stream.set_read_timeout(Some(STUCK)).unwrap();
        assert!(answer.starts_with(b"OK "), "{answer:?}");
        raw.stream.write_all(begin.as_bytes()).unwrap();
        raw
    }

    /// Connects properly.
    #[must_use]
    pub fn ready(path: &Path) -> Self {
        Self::begin(path, "BEGIN\r\n")
    }

    /// Sends a message as far as the other end takes it, and returns whether it took all.
    pub fn send(&mut self, call: &Call<'_>) -> bool {
        self.serial += 1;
        let bytes = call.encode(self.serial);
        self.stream.write_all(&bytes).is_ok()
    }

    /// Sends messages until the other end takes no more or ends the connection; at most `most`.
    pub fn flood(&mut self, call: &Call<'_>, most: u32) -> u32 {
        (0..most).find(|_| !self.send(call)).unwrap_or(most)
    }

    /// Returns whether the other end ends the connection, for which it may take its time.
    ///
    /// # Panics
    ///
    /// If the socket fails otherwise.
    pub fn ends(&mut self) -> bool {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let ends = self.is_ended();
        self.stream.set_read_timeout(Some(STUCK)).unwrap();
        ends
    }

    /// Returns whether the other end has ended the connection; what it says before is read away.
    ///
    /// # Panics
    ///
    /// If the socket fails otherwise.
    pub fn is_ended(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => {
                    let ends = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
                    let ended = ends.contains(&error.kind());
                    assert!(
                        ended || error.kind() == io::ErrorKind::WouldBlock,
                        "{error}"
                    );
                    return ended;
                }
            }
        }
    }
}
