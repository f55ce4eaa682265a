//! The kernel's notifications about one directory, gathered into batches.
//!
//! A file counts as changed when its writer closes it or it is moved into place. One that is
//! written and never closed counts when it has been at rest for a while.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::StreamExt;
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchMask};
use tokio::{
    sync::watch::Receiver,
    time::{Instant, timeout, timeout_at},
};

use super::Error;

/// A batch ends when nothing has happened for so long,
const QUIET: Duration = Duration::from_millis(20);
/// and at the latest after so long.
const LONGEST: Duration = Duration::from_millis(200);
/// Whoever asks for what has been written waits so long for a notification of it, which is already there.
const HEARD: Duration = Duration::from_millis(2);
/// A directory that was not there, or empty, is read when nothing has happened in it for so long,
const REST: Duration = Duration::from_secs(2);
/// and at the latest after so long.
const LONGEST_REST: Duration = Duration::from_mins(1);
/// How often it is looked whether the path, and each link in it, still leads to what was read.
const LOOK: Duration = Duration::from_secs(5);
/// When a file that is still open counts as changed.
const UNCLOSED: Duration = Duration::from_secs(2);

/// What happened in a directory.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Whether the watch is new.
    pub(super) first: bool,
    /// Whether any file may have changed.
    pub(super) all: bool,
    /// Documents that changed, came or went.
    pub(super) names: BTreeSet<String>,
    /// Documents that are being written, not to be read yet.
    pub(super) unclosed: BTreeSet<String>,
    /// Whether the directory itself is gone. What seems to have happened in it before is part of
    /// its removal.
    pub(super) lost: bool,
    /// How often somebody had asked for what has been written when this began: it has all of that.
    pub(super) asked: u64,
}

impl Batch {
    /// What is to be read when a watch begins.
    pub(super) fn first(asked: u64) -> Self {
        Self {
            first: true,
            all: true,
            asked,
            ..Self::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.all && !self.lost && self.names.is_empty()
    }
}

/// What a path leads to, and as of when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    place: (u64, u64),
    changed: (i64, i64),
    len: u64,
}

impl Stamp {
    /// Looks at what is there, if anything is.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Self {
            place: (found.dev(), found.ino()),
            changed: (found.mtime(), found.mtime_nsec()),
            len: found.len(),
        })
    }
}

/// Documents that are links, and what each led to when it was read. What they lead to changes without a
/// notification.
pub(super) type Links = BTreeMap<String, Option<Stamp>>;

/// A watch on a directory.
pub(super) struct Watch {
    dir: PathBuf,
    events: EventStream<Vec<u8>>,
    unclosed: BTreeMap<String, Instant>,
    /// Device and number of what is watched.
    place: Option<(u64, u64)>,
    look: Instant,
}

impl Watch {
    /// Prepares to watch.
    pub(super) fn new(dir: &Path) -> Result<Self, Error> {
        let events = Inotify::init()
            .and_then(|inotify| inotify.into_event_stream(vec![0; 16 << 10]))
            .map_err(Error::Init)?;
        Ok(Self {
            dir: dir.to_owned(),
            events,
            unclosed: BTreeMap::new(),
            place: None,
            look: Instant::now() + LOOK,
        })
    }

    /// Begins to watch.
    pub(super) fn start(&mut self) -> io::Result<()> {
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::MODIFY
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        // Should it be another one by now, that is seen at the next look.
        self.place = Stamp::of(&self.dir).map(|stamp| stamp.place);
        self.events.watches().add(&self.dir, mask)?;
        Ok(())
    }

    /// Waits for something to happen, also to what `links` lead to, or until somebody has `asked`.
    pub(super) async fn next(
        &mut self,
        links: &Links,
        asked: &mut Receiver<u64>,
    ) -> Result<Batch, Error> {
        loop {
            let mut batch = Batch {
                // Not seen by that: what comes of this is nothing, maybe.
                asked: *asked.borrow(),
                ..Batch::default()
            };
            let due = self.unclosed.values().min().copied();
            let due = due.map_or(self.look, |due| due.min(self.look));
            let mut is_asked = false;
            let event = tokio::select! {
                event = timeout_at(due, self.events.next()) => event.ok(),
                Ok(()) = asked.changed() => {
                    is_asked = true;
                    batch.asked = *asked.borrow_and_update();
                    self.look = Instant::now();
                    timeout(HEARD, self.events.next()).await.ok()
                }
            };
            let is_quiet = event.is_none();
            if let Some(event) = event {
                self.note(event, &mut batch)?;
            }
            // Also where something happens all the time.
            self.look(links, &mut batch);
            if is_asked && is_quiet && batch.is_empty() {
                return Ok(batch);
            }
            let batch = self.settle(batch).await?;
            if is_asked || !batch.is_empty() {
                return Ok(batch);
            }
        }
    }

    /// Adds to `batch` what has changed without a notification, if it is time to look.
    fn look(&mut self, links: &Links, batch: &mut Batch) {
        if Instant::now() < self.look {
            return;
        }
        self.look = Instant::now() + LOOK;
        batch.lost |= Stamp::of(&self.dir).map(|stamp| stamp.place) != self.place;
        let changed =
            |(name, was): &(&String, &Option<Stamp>)| Stamp::of(&self.dir.join(name)) != **was;
        let changed = links.iter().filter(changed);
        batch.names.extend(changed.map(|(name, _)| name.clone()));
    }

    /// Adds to `batch` what happens until it is quiet.
    pub(super) async fn settle(&mut self, batch: Batch) -> Result<Batch, Error> {
        self.gather(batch, QUIET, LONGEST).await
    }

    /// Adds to `batch` what happens until it is at rest: whoever fills a directory takes a while, and what
    /// is not there yet is not gone.
    pub(super) async fn rest(&mut self, batch: Batch) -> Result<Batch, Error> {
        self.gather(batch, REST, LONGEST_REST).await
    }

    async fn gather(
        &mut self,
        mut batch: Batch,
        quiet: Duration,
        longest: Duration,
    ) -> Result<Batch, Error> {
        let end = Instant::now() + longest;
        let quiet = || end.min(Instant::now() + quiet);
        while let Ok(event) = timeout_at(quiet(), self.events.next()).await {
            self.note(event, &mut batch)?;
            if Instant::now() >= end {
                break;
            }
        }
        let now = Instant::now();
        let due = self.unclosed.extract_if(.., |_, due| *due <= now);
        batch.names.extend(due.map(|(name, _)| name));
        batch.unclosed = self.unclosed.keys().cloned().collect();
        Ok(batch)
    }

    fn note(
        &mut self,
        event: Option<io::Result<EventOwned>>,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        let event = event
            .unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))
            .map_err(Error::Events)?;
        let has = |mask: EventMask| event.mask.intersects(mask);
        if has(EventMask::DELETE_SELF
            | EventMask::MOVE_SELF
            | EventMask::UNMOUNT
            | EventMask::IGNORED)
        {
            batch.lost = true;
            return Ok(());
        }
        let name = event.name.as_deref().and_then(|name| name.to_str());
        let Some(name) = name.filter(|name| is_document(name)) else {
            // Documents may be links to it; an overflow has no name either.
            batch.all |= !has(EventMask::MODIFY);
            return Ok(());
        };
        let name = name.to_owned();
        let written = has(EventMask::MODIFY)
            // A file is closed after it is created; a link is there at once.
            || has(EventMask::CREATE)
                && fs::symlink_metadata(self.dir.join(&name)).is_ok_and(|file| file.is_file());
        if written {
            self.unclosed.insert(name, Instant::now() + UNCLOSED);
        } else {
            if !has(EventMask::ATTRIB) {
                self.unclosed.remove(&name);
            }
            batch.names.insert(name);
        }
        Ok(())
    }
}

/// Whether a file of that name is to be read.
pub(super) fn is_document(name: &str) -> bool {
    let extension = Path::new(name)
        .extension()
        .and_then(|extension| extension.to_str());
    !name.starts_with('.')
        && extension.is_some_and(|extension| {
            ["yaml", "yml", "json"]
                .iter()
                .any(|known| extension.eq_ignore_ascii_case(known))
        })
}
