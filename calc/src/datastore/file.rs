//! Watches a directory of documents and tells what changes in it.
//!
//! Watches before it reads, and reads a file only when its writer has closed it, so that neither a
//! change nor a half of one is ever taken for the whole. Losing the directory loses nothing else:
//! the last state stays in force until there is a directory with documents again.

mod scan;
mod watch;

use std::{io, mem, path::PathBuf, time::Duration};

use tokio::sync::mpsc;

use self::{
    scan::scan,
    watch::{Batch, Links, Watch},
};
use super::{Store, Update};

/// How long to wait before another try to watch a directory that cannot be watched.
const RETRY: Duration = Duration::from_secs(1);

/// Why the datastore can no longer be followed at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel gives no notifications.
    #[error("inotify_init1: {0}; if there are too many, raise fs.inotify.max_user_instances")]
    Init(#[source] io::Error),
    /// Reading the notifications fails.
    #[error("cannot read inotify events: {0}")]
    Events(#[source] io::Error),
    /// The runtime is going down.
    #[error("the task that reads the files was stopped: {0}")]
    Stopped(#[from] tokio::task::JoinError),
}

/// A directory of YAML and JSON documents as a datastore.
///
/// Counts the files `*.yaml`, `*.yml` and `*.json`, in any letter case, whose names do not begin
/// with a dot; none in subdirectories.
#[derive(Debug)]
pub struct FileDatastore;

impl FileDatastore {
    /// Follows the directory `dir` for the node called `node`, until nobody listens to `updates`.
    /// The first update comes at once, also if the directory cannot be read.
    ///
    /// # Errors
    /// If the kernel's notifications cannot be had. A directory that is not there is no error: it
    /// is waited for.
    pub async fn run(
        dir: PathBuf,
        node: String,
        updates: mpsc::Sender<Update>,
    ) -> Result<(), Error> {
        let closed = updates.clone();
        let mut follower = Follower {
            dir,
            store: Store::new(&node),
            links: Links::new(),
            told: false,
            updates,
        };
        tokio::select! {
            () = closed.closed() => Ok(()),
            end = follower.follow() => end,
        }
    }
}

struct Follower {
    dir: PathBuf,
    store: Store,
    links: Links,
    /// Whether the first update is out.
    told: bool,
    updates: mpsc::Sender<Update>,
}

impl Follower {
    async fn follow(&mut self) -> Result<(), Error> {
        loop {
            let mut watch = self.watch().await?;
            let mut batch = watch.settle(Batch::first()).await?;
            while !batch.lost {
                if self.told && (batch.first || self.store.is_in_trouble()) {
                    batch = watch.rest(batch).await?;
                    if batch.lost {
                        break;
                    }
                }
                self.read(batch).await?;
                batch = watch.next(&self.links).await?;
            }
        }
    }

    /// Watches the directory, as soon as that is possible.
    async fn watch(&mut self) -> Result<Watch, Error> {
        loop {
            let mut watch = Watch::new(&self.dir)?;
            let Err(error) = watch.start() else {
                return Ok(watch);
            };
            let cure = if error.kind() == io::ErrorKind::PermissionDenied {
                "let this process's user read the directory"
            } else {
                "create the directory or correct its path"
            };
            let trouble = format!("{}: cannot be watched: {error}; {cure}", self.dir.display());
            self.store.set_trouble(Some(trouble));
            if let Some(update) = self.store.update() {
                self.tell(update).await;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Reads what changed and tells what it means. Files may be many and large, so another thread
    /// does it.
    async fn read(&mut self, batch: Batch) -> Result<(), Error> {
        let mut store = mem::replace(&mut self.store, Store::new(""));
        let mut links = mem::take(&mut self.links);
        let dir = self.dir.clone();
        let (store, links, update) = tokio::task::spawn_blocking(move || {
            scan(&dir, &batch, &mut store, &mut links);
            let update = store.update();
            (store, links, update)
        })
        .await?;
        (self.store, self.links) = (store, links);
        if let Some(update) = update {
            self.tell(update).await;
        }
        Ok(())
    }

    async fn tell(&mut self, update: Update) {
        self.told = true;
        if self.updates.send(update).await.is_err() {
            tracing::debug!("nobody listens to the datastore any more");
        }
    }
}
