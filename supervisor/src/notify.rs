//! What a child says to its service manager (`sd_notify(3)`).
//!
//! The text comes from less privileged processes: it decides nothing beyond their own life, and is
//! shown in a form that a terminal may see.

use std::{io, os::unix};

use tokio::net::UnixDatagram;

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
pub(crate) struct Notifications(UnixDatagram);

impl Notifications {
    pub(crate) fn new(socket: unix::net::UnixDatagram) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        UnixDatagram::from_std(socket).map(Self)
    }

    /// Waits until there is something to [take](Self::take).
    pub(crate) async fn ready(&self) -> io::Result<()> {
        self.0.readable().await
    }

    /// Returns what has been said since, up to a limit.
    pub(crate) fn take(&self) -> Vec<Note> {
        let mut notes = Vec::new();
        let mut buffer = [0; MAX_MESSAGE];
        for _ in 0..MAX_AT_ONCE {
            // Any error but "nothing there" shows again in `ready`.
            let Ok(len) = self.0.try_recv(&mut buffer) else {
                break;
            };
            let message = buffer.get(..len).unwrap_or_default();
            notes.extend(parse(&String::from_utf8_lossy(message)));
        }
        notes
    }

    /// Forgets what a former child said.
    pub(crate) fn discard(&self) {
        let mut buffer = [0; MAX_MESSAGE];
        while self.0.try_recv(&mut buffer).is_ok() {}
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
    async fn what_a_former_child_said_is_forgotten() {
        let (to, from) = unix::net::UnixDatagram::pair().unwrap();
        let from = Notifications::new(from).unwrap();
        for _ in 0..3 {
            to.send(b"READY=1").unwrap();
        }
        from.ready().await.unwrap();
        from.discard();
        assert_eq!(from.take(), []);
        to.send(b"WATCHDOG=1\nX=1").unwrap();
        from.ready().await.unwrap();
        assert_eq!(from.take(), [Note::Alive]);
    }
}
