//! The kernel's notifications about one directory, gathered into batches.
//!
//! A file counts as changed when its writer closes it or it is moved into place. One that is
//! written and never closed counts when it has been at rest for a while.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::StreamExt;
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchMask};
use tokio::time::{Instant, timeout_at};

use super::Error;

/// A batch ends when nothing has happened for so long,
const QUIET: Duration = Duration::from_millis(20);
/// and at the latest after so long.
const LONGEST: Duration = Duration::from_millis(200);
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
}

impl Batch {
    /// What is to be read when a watch begins.
    pub(super) fn first() -> Self {
        Self {
            first: true,
            all: true,
            ..Self::default()
        }
    }

    fn is_empty(&self) -> bool {
        !self.all && !self.lost && self.names.is_empty()
    }
}

/// A watch on a directory.
pub(super) struct Watch {
    dir: PathBuf,
    events: EventStream<Vec<u8>>,
    unclosed: BTreeMap<String, Instant>,
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
        self.events.watches().add(&self.dir, mask)?;
        Ok(())
    }

    /// Waits for something to happen.
    pub(super) async fn next(&mut self) -> Result<Batch, Error> {
        loop {
            let mut batch = Batch::default();
            let due = self.unclosed.values().min().copied();
            let event = match due {
                Some(due) => timeout_at(due, self.events.next()).await.ok(),
                None => Some(self.events.next().await),
            };
            if let Some(event) = event {
                self.note(event, &mut batch)?;
            }
            let batch = self.settle(batch).await?;
            if !batch.is_empty() {
                return Ok(batch);
            }
        }
    }

    /// Adds to `batch` what happens until it is quiet.
    pub(super) async fn settle(&mut self, mut batch: Batch) -> Result<Batch, Error> {
        let end = Instant::now() + LONGEST;
        let quiet = || end.min(Instant::now() + QUIET);
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
