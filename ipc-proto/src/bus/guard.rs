//! A stream that ends before a hostile message is allocated, and that waits for who does not read.
//!
//! zbus allocates and zeroes a message's whole length as soon as it has read the first 16 bytes, up
//! to 128 MiB, queues 64 of them, and starts a task for each call of a standard interface. These
//! halves watch the bytes go by, fail the read that completes a bad header, and count calls and
//! answers.

mod account;
mod framing;

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
    Message,
    connection::socket::{ReadHalf, Socket, Split, WriteHalf},
    fdo::ConnectionCredentials,
};

pub use self::account::Hangup;
use self::{account::Account, framing::Framing};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Guarded {
    stream: UnixStream,
    framing: Framing,
    hangup: Hangup,
    /// Whether the peer may say nothing but calls that want an answer.
    asks_only: bool,
}

impl Guarded {
    /// Guards the server's end of a connection, until it is hung up.
    pub(super) fn server(stream: UnixStream, hangup: &Hangup) -> Self {
        Self {
            stream,
            framing: Framing::of_client(),
            hangup: hangup.clone(),
            asks_only: true,
        }
    }

    /// Guards the end of a client of a bus, which passes on what other clients send.
    pub(super) fn client(stream: UnixStream) -> Self {
        Self {
            stream,
            framing: Framing::of_bus(),
            hangup: Hangup::default(),
            asks_only: false,
        }
    }
}

impl Socket for Guarded {
    type ReadHalf = Reader;
    type WriteHalf = Writer;

    fn split(self) -> Split<Reader, Writer> {
        let uid = self.stream.peer_cred().ok().map(|cred| cred.uid());
        let (read, write) = self.stream.into_split();
        Split::new(
            Reader {
                stream: read,
                uid,
                framing: self.framing,
                asks_only: self.asks_only,
                account: self.hangup.follow(),
            },
            Writer {
                stream: write,
                account: self.hangup.follow(),
            },
        )
    }
}

/// The half that is watched.
#[derive(Debug)]
pub(super) struct Reader {
    stream: OwnedReadHalf,
    uid: Option<u32>,
    framing: Framing,
    asks_only: bool,
    account: Account,
}

#[async_trait::async_trait]
impl ReadHalf for Reader {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        if self.framing.is_between_messages() {
            self.account.room().await?;
        }
        let read = self.account.unless_ended(self.stream.read(buffer)).await?;
        let bytes = buffer.get(..read).unwrap_or_default();
        let fed = self.framing.feed(bytes, |start| {
            if start.wants_answer() {
                if self.asks_only {
                    self.account.asked(start);
                }
                Ok(())
            } else if self.asks_only {
                Err("a client may only make calls that want an answer")
            } else {
                Ok(())
            }
        });
        fed.map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
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
pub(super) struct Writer {
    stream: OwnedWriteHalf,
    account: Account,
}

#[async_trait::async_trait]
impl WriteHalf for Writer {
    async fn send_message(&mut self, message: &Message) -> zbus::Result<()> {
        let bytes = message.data().bytes();
        self.account
            .unless_ended(self.stream.write_all(bytes))
            .await?;
        if let Some(serial) = message.header().reply_serial() {
            self.account.answered(serial.get());
        }
        Ok(())
    }

    async fn sendmsg(&mut self, buffer: &[u8], _fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        self.account.unless_ended(self.stream.write(buffer)).await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }
}
