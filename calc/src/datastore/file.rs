//! Watches a directory of documents and tells what changes in it.
//!
//! Watches before it reads, and reads a file only when its writer has closed it, so that neither a
//! change nor a half of one is ever taken for the whole. Losing the directory loses nothing else:
//! the last state stays in force until there is a directory with documents again.

mod scan;
mod watch;

use std::{io, mem, path::PathBuf, time::Duration};

use tokio::sync::{mpsc, watch::Receiver};

use self::{
    scan::scan,
    watch::{Batch, Links, Watch},
};
use super::{Store, Told, Update};

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
    /// Follows the directory `dir` for the node called `node`, until nobody listens to `told`.
    /// The first update comes at once, also if the directory cannot be read. `asked` is the number of
    /// the last request for what has been written until then, to be answered.
    ///
    /// # Errors
    /// If the kernel's notifications cannot be had. A directory that is not there is no error: it
    /// is waited for.
    pub async fn run(
        dir: PathBuf,
        node: String,
        asked: Receiver<u64>,
        told: mpsc::Sender<Told>,
    ) -> Result<(), Error> {
        let closed = told.clone();
        let mut follower = Follower {
            dir,
            store: Store::new(&node),
            links: Links::new(),
            asked,
            answered: 0,
            is_told: false,
            told,
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
    /// How often somebody has asked,
    asked: Receiver<u64>,
    /// and which of that is answered.
    answered: u64,
    /// Whether the first update is out.
    is_told: bool,
    told: mpsc::Sender<Told>,
}

impl Follower {
    async fn follow(&mut self) -> Result<(), Error> {
        loop {
            let mut watch = self.watch().await?;
            let first = Batch::first(*self.asked.borrow_and_update());
            let mut batch = watch.settle(first).await?;
            while !batch.lost {
                let asked = batch.asked;
                if !batch.is_empty() {
                    if self.is_told && (batch.first || self.store.is_in_trouble()) {
                        batch = watch.rest(batch).await?;
                        if batch.lost {
                            break;
                        }
                    }
                    self.read(batch).await?;
                }
                self.answer(asked).await;
                batch = watch.next(&self.links, &mut self.asked).await?;
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
            let asked = *self.asked.borrow_and_update();
            self.answer(asked).await;
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
        self.is_told = true;
        self.send(Told::Update(update)).await;
    }

    /// Answers the requests up to this number.
    async fn answer(&mut self, asked: u64) {
        if mem::replace(&mut self.answered, asked) != asked {
            self.send(Told::Answer(asked)).await;
        }
    }

    async fn send(&self, told: Told) {
        if self.told.send(told).await.is_err() {
            tracing::debug!("nobody listens to the datastore any more");
        }
    }
}
