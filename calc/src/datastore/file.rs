//! Placeholder until the datastore is merged: an empty datastore.

use std::{convert::Infallible, future::pending, path::PathBuf};

use tokio::sync::mpsc;

use super::Update;

/// Nothing goes wrong with nothing.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(#[from] Infallible);

/// Holds nothing.
#[derive(Debug)]
pub struct FileDatastore;

impl FileDatastore {
    /// Says that there is nothing.
    ///
    /// # Errors
    ///
    /// None.
    pub async fn run(
        _dir: PathBuf,
        _node: String,
        updates: mpsc::Sender<Update>,
    ) -> Result<(), Error> {
        let complete = true;
        drop(
            updates
                .send(Update {
                    complete,
                    ..Update::default()
                })
                .await,
        );
        pending().await
    }
}
