//! What a child says to its service manager (`sd_notify(3)`).
//!
//! The text comes from less privileged processes: it decides nothing beyond their own life, and is
//! shown in a form that a terminal may see. Only the child's own process is heard, by what the
//! kernel says of the sender.

use std::{
    io::{self, IoSliceMut},
    os::{fd::AsRawFd, unix},
};

use nix::{
    cmsg_space,
    sys::socket::{
        ControlMessageOwned, MsgFlags, UnixCredentials, recvmsg, setsockopt, sockopt::PassCred,
    },
};
use tokio::{io::Interest, net::UnixDatagram};

/// The longest message in bytes that is read; the rest of a longer one is lost.
const MAX_MESSAGE: usize = 4096;
/// The longest status in characters that is kept.
const MAX_STATUS: usize = 256;
/// The most messages that are taken at once, so that no child keeps us from all else.
const MAX_AT_ONCE: usize = 64;

/// Something that a child said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// `READY=1`
    Ready,
    /// `WATCHDOG=1`
    Alive,
    /// `STATUS=`
    Status(String),
}

/// The receiving end of a child's `NOTIFY_SOCKET`.
#[derive(Debug)]
pub(crate) struct Notifications {
    socket: UnixDatagram,
    /// The process that is heard.
    child: Option<i32>,
}

impl Notifications {
    /// Starts with nobody to hear.
    pub(crate) fn new(socket: unix::net::UnixDatagram) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        setsockopt(&socket, PassCred, &true)?;
        Ok(Self {
            socket: UnixDatagram::from_std(socket)?,
            child: None,
        })
    }

    /// Hears the process with this pid from now on, and no other.
    pub(crate) fn follow(&mut self, child: Option<i32>) {
        self.child = child;
    }

    /// Waits until there is something to [take](Self::take).
    pub(crate) async fn ready(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Returns what the child has said since, up to a limit.
    pub(crate) fn take(&self) -> Vec<Note> {
        let mut notes = Vec::new();
        let mut buffer = [0; MAX_MESSAGE];
        for _ in 0..MAX_AT_ONCE {
            // Any error but "nothing there" shows again in `ready`.
            let Ok((len, sender)) = self.receive(&mut buffer) else {
                break;
            };
            if sender.is_none() || sender != self.child {
                tracing::debug!(?sender, child = ?self.child, "not said by the child: ignored");
                continue;
            }
            let message = buffer.get(..len).unwrap_or_default();
            notes.extend(parse(&String::from_utf8_lossy(message)));
        }
        notes
    }

    /// Returns the length of the next message, and the pid of who sent it.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Option<i32>)> {
        self.socket.try_io(Interest::READABLE, || {
            let mut parts = [IoSliceMut::new(buffer)];
            let mut space = cmsg_space!(UnixCredentials);
            let flags = MsgFlags::empty();
            let socket = self.socket.as_raw_fd();
            let message = recvmsg::<()>(socket, &mut parts, Some(&mut space), flags)?;
            let sender = message.cmsgs()?.find_map(|part| {
                if let ControlMessageOwned::ScmCredentials(sender) = part {
                    Some(sender.pid())
                } else {
                    None
                }
            });
            Ok((message.bytes, sender))
        })
    }
}

fn parse(message: &str) -> impl Iterator<Item = Note> {
    message
        .lines()
        .filter_map(|line| match line.split_once('=')? {
            ("READY", "1") => Some(Note::Ready),
            ("WATCHDOG", "1") => Some(Note::Alive),
            ("STATUS", status) => Some(Note::Status(
                status
                    .chars()
                    .filter(|c| !c.is_control())
                    .take(MAX_STATUS)
                    .collect(),
            )),
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_lines_are_notes_and_others_are_nothing() {
        let notes: Vec<_> =
            parse("READY=1\nSTATUS=in sync\u{1b}[2J\nWATCHDOG=1\nSTOPPING=1\n").collect();
        assert_eq!(
            notes,
            [
                Note::Ready,
                Note::Status("in sync[2J".to_owned()),
                Note::Alive,
            ]
        );
        assert_eq!(
            parse("READY=2\nREADY\nMAINPID=1\n\n=\nWATCHDOG=trigger").count(),
            0
        );
    }

    #[test]
    fn a_status_is_cut_between_characters() {
        let notes: Vec<_> = parse(&format!("STATUS={}", "\u{e9}".repeat(300))).collect();
        assert_eq!(notes, [Note::Status("\u{e9}".repeat(MAX_STATUS))]);
    }

    #[tokio::test]
    async fn what_another_process_says_is_ignored() {
        let own = i32::try_from(std::process::id()).unwrap();
        let (to, from) = unix::net::UnixDatagram::pair().unwrap();
        let mut from = Notifications::new(from).unwrap();
        for child in [None, Some(own + 1)] {
            from.follow(child);
            to.send(b"READY=1").unwrap();
            from.ready().await.unwrap();
            assert_eq!(from.take(), [], "{child:?}");
        }
        from.follow(Some(own));
        to.send(b"WATCHDOG=1\nX=1").unwrap();
        from.ready().await.unwrap();
        assert_eq!(from.take(), [Note::Alive]);
    }
}
