//! `routes --follow`: all BPF routes, and then each change as consumers are told of it.
//!
//! It does what `docs/consumers.md` says: signals are kept while pages are read, and whatever is not the
//! next one has all read again. The end of `calc` is waited out; it ends with whoever reads what it
//! prints.

use std::{
    convert::Infallible,
    future::Future,
    io::{self, Write},
    mem,
    path::Path,
    pin::pin,
    time::Duration,
};

use futures_util::StreamExt;
use ipc_proto::{
    Flags,
    bus::{Calc1Proxy, RouteRow, SnapshotPage},
};
use serde_json::{Value, json};
use tokio::time::sleep;
use zbus::{Connection, Message, MessageStream, message};

use crate::client::{self, Face, Unreachable};

/// How long until it is tried to connect again, at first and at most; it doubles in between.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// What `calc` says before it has anything to tell.
const NOT_READY: &str = "io.cairn.Error.NotReady";

/// The routes cannot be followed any further.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FollowError {
    #[error("{0}")]
    Unreachable(#[from] Unreachable),
    #[error("{0}")]
    Call(#[from] zbus::Error),
    #[error("it hung up")]
    Ended,
    #[error("{0}")]
    Print(#[from] io::Error),
}

/// A signal of the numbering that all of them share.
#[derive(Clone, Debug)]
enum Signal {
    Routes(u64, Vec<RouteRow>, Vec<String>),
    /// Something else, which takes a number.
    Other(u64),
    Reset,
}

/// What to do about a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The pages have it.
    Skip,
    Apply,
    /// Something was lost: all is to be read.
    Read,
}

impl Signal {
    /// Returns the signal that a message is, if it is one of these.
    fn of(message: &Message) -> Option<Self> {
        let header = message.header();
        let is_signal = header.message_type() == message::Type::Signal;
        let member = header.member().filter(|_| is_signal)?;
        let body = message.body();
        match member.as_str() {
            "RoutesChanged" => {
                let (seq, updates, deletes) = body.deserialize().ok()?;
                Some(Self::Routes(seq, updates, deletes))
            }
            "HostIpsChanged" | "AddressClean" => {
                let (seq, _): (u64, Vec<String>) = body.deserialize().ok()?;
                Some(Self::Other(seq))
            }
            "Reset" => Some(Self::Reset),
            _ => None,
        }
    }

    /// Returns what to do about it where all up to `last` is known.
    fn fate(&self, last: u64) -> Fate {
        match self {
            Self::Routes(seq, ..) | Self::Other(seq) if *seq <= last => Fate::Skip,
            Self::Routes(seq, ..) | Self::Other(seq) if seq - 1 == last => Fate::Apply,
            Self::Routes(..) | Self::Other(_) | Self::Reset => Fate::Read,
        }
    }
}

/// Prints all routes and then what becomes of them, over the deaths of `calc`.
///
/// # Errors
///
/// If `calc` cannot be reached to begin with, or nobody reads what is printed.
pub(crate) async fn follow(
    runtime_dir: &Path,
    as_json: bool,
    print: impl Fn(&str) -> io::Result<()>,
) -> Result<Infallible, FollowError> {
    let put = |lines: Vec<Line<'_>>| {
        let text: String = lines.iter().map(|line| line.render(as_json)).collect();
        print(&text)
    };
    let mut calc = client::open(runtime_dir, Face::Calc).await?;
    let mut again = false;
    loop {
        let why = match session(&calc, again, &put).await {
            Err(error @ FollowError::Print(_)) => return Err(error),
            Err(error) => error,
            Ok(never) => match never {},
        };
        calc = connect_again(runtime_dir, &why).await;
        again = true;
    }
}

/// Connects as soon as that is possible, and says on standard error why not.
async fn connect_again(runtime_dir: &Path, why: &FollowError) -> Connection {
    let mut said = String::new();
    let mut say = |why: &dyn std::error::Error| {
        let line = format!("cairnctl: calc: {why}; trying again");
        if said != line {
            // With stderr gone there is nobody left to tell.
            drop(writeln!(io::stderr(), "{line}"));
            said = line;
        }
    };
    say(why);
    let (mut wait, longest) = RETRY;
    loop {
        sleep(wait).await;
        wait = longest.min(wait * 2);
        match client::open(runtime_dir, Face::Calc).await {
            Ok(calc) => return calc,
            Err(error) => say(&error),
        }
    }
}

/// Does it as long as one connection lasts. What comes after a former one is marked as read `again`.
async fn session(
    calc: &Connection,
    mut again: bool,
    put: &impl Fn(Vec<Line<'_>>) -> io::Result<()>,
) -> Result<Infallible, FollowError> {
    // Before the first page, so that no change is lost.
    let mut signals = MessageStream::from(calc);
    let proxy = client::calc_proxy(calc).await?;
    loop {
        if mem::take(&mut again) {
            put(vec![Line::Reset])?;
        }
        let mut heard = Vec::new();
        let Some(mut last) = read(&proxy, &mut signals, &mut heard, put).await? else {
            put(vec![Line::NotReady])?;
            while !matches!(next(&mut signals).await?, Signal::Reset) {}
            continue;
        };
        let mut heard = heard.into_iter();
        loop {
            let signal = match heard.next() {
                Some(signal) => signal,
                None => next(&mut signals).await?,
            };
            match signal.fate(last) {
                Fate::Skip => continue,
                Fate::Apply => last += 1,
                Fate::Read => break,
            }
            if let Signal::Routes(_, updates, deletes) = &signal {
                let set = updates.iter().map(Line::Set);
                let clear = deletes.iter().map(|prefix| Line::Clear(prefix));
                put(set.chain(clear).collect())?;
            }
        }
        again = true;
    }
}

/// Reads and prints all pages, and keeps what is `heard` meanwhile. Returns the number of the first
/// page; none if there is nothing to read yet.
async fn read(
    calc: &Calc1Proxy<'_>,
    signals: &mut MessageStream,
    heard: &mut Vec<Signal>,
    put: &impl Fn(Vec<Line<'_>>) -> io::Result<()>,
) -> Result<Option<u64>, FollowError> {
    let (mut first, mut after) = (None, String::new());
    loop {
        let page = beside(calc.snapshot(&after), signals, heard).await?;
        let SnapshotPage {
            seq, routes, next, ..
        } = match page {
            Ok(page) => page,
            Err(zbus::Error::MethodError(name, ..)) if name.as_str() == NOT_READY => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let first = *first.get_or_insert(seq);
        put(routes.iter().map(Line::Is).collect())?;
        if next.is_empty() {
            return Ok(Some(first));
        }
        after = next;
    }
}

/// Waits for an answer, and keeps what is heard meanwhile: unread signals would hold up the answer.
async fn beside<T>(
    answer: impl Future<Output = T>,
    signals: &mut MessageStream,
    heard: &mut Vec<Signal>,
) -> Result<T, FollowError> {
    let mut answer = pin!(answer);
    loop {
        tokio::select! {
            answer = &mut answer => return Ok(answer),
            signal = next(signals) => heard.push(signal?),
        }
    }
}

async fn next(signals: &mut MessageStream) -> Result<Signal, FollowError> {
    loop {
        let message = signals.next().await.ok_or(FollowError::Ended)?;
        if let Some(signal) = Signal::of(&message?) {
            return Ok(signal);
        }
    }
}

/// What is printed.
#[derive(Clone, Copy, Debug)]
enum Line<'a> {
    Is(&'a RouteRow),
    Set(&'a RouteRow),
    Clear(&'a str),
    Reset,
    NotReady,
}

impl Line<'_> {
    fn render(self, as_json: bool) -> String {
        match (self, as_json) {
            (Self::Is(row), false) => format!("  {}\n", words(row)),
            (Self::Set(row), false) => format!("+ {}\n", words(row)),
            (Self::Clear(prefix), false) => format!("- {prefix}\n"),
            (Self::Reset, false) => "# reset: all is read again\n".to_owned(),
            (Self::NotReady, false) => "# calc has nothing to tell yet\n".to_owned(),
            (Self::Is(row), true) => format!("{}\n", object("is", row)),
            (Self::Set(row), true) => format!("{}\n", object("set", row)),
            (Self::Clear(prefix), true) => {
                format!("{}\n", json!({ "event": "clear", "prefix": prefix }))
            }
            (Self::Reset, true) => format!("{}\n", json!({ "event": "reset" })),
            (Self::NotReady, true) => format!("{}\n", json!({ "event": "not-ready" })),
        }
    }
}

fn words(row: &RouteRow) -> String {
    let target = match (row.next_hop.as_str(), row.interface.as_str()) {
        ("", "") => "-".to_owned(),
        ("", interface) => format!("{interface}#{}", row.ifindex),
        (next_hop, _) => next_hop.to_owned(),
    };
    format!("{} {} {target}", row.prefix, Flags(row.flags))
}

fn object(event: &str, row: &RouteRow) -> Value {
    json!({
        "event": event,
        "prefix": row.prefix,
        "flags": Flags(row.flags).to_string(),
        "next_hop": row.next_hop,
        "interface": row.interface,
        "ifindex": row.ifindex,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_the_next_signal_is_skipped_or_has_all_read() {
        let routes = |seq| Signal::Routes(seq, Vec::new(), Vec::new());
        for (signal, fate) in [
            (routes(0), Fate::Skip),
            (routes(7), Fate::Skip),
            (routes(8), Fate::Apply),
            (Signal::Other(8), Fate::Apply),
            (routes(9), Fate::Read),
            (Signal::Other(9), Fate::Read),
            (Signal::Reset, Fate::Read),
        ] {
            assert_eq!(signal.fate(7), fate, "{signal:?}");
        }
    }
}
