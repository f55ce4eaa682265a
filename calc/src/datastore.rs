//! Where the resources come from.
//!
//! A directory of documents in the shapes that `calicoctl` and `kubectl` print. `Store` is the pure
//! part, from the content of files to events; `FileDatastore` watches a real directory for it.

mod convert;
mod document;
mod file;
mod resource;
mod selector;
mod settings;
mod store;
mod tree;

pub use self::{
    file::{Error, FileDatastore},
    store::Store,
};

use crate::event::Event;

/// What is in force, beside what the directory holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Nothing: it could not be read yet.
    #[default]
    Unread,
    /// What it holds.
    Current,
    /// What it holds and, of what cannot be read there, what that was before.
    Partial,
    /// What it held when it could last be read.
    Lost,
}

impl Standing {
    /// Returns the word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unread => "unread",
            Self::Current => "current",
            Self::Partial => "partial",
            Self::Lost => "lost",
        }
    }
}

/// What is heard of a datastore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// What it holds, or what has changed.
    Update(Update),
    /// What was written before the request of this number is told, as far as it can be read; what is
    /// in the way of that is.
    Answer(u64),
}

/// What a datastore tells: the first one holds all that there is, the rest what changed since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// What changed; one event for each resource.
    pub events: Vec<Event>,
    /// Whether all documents could be decoded, or at least have a former value that is kept. While
    /// it is false, nothing may be swept from the kernel: what looks like a leftover may belong to
    /// a document that cannot be read.
    pub complete: bool,
    /// What is in force.
    pub standing: Standing,
    /// What is wrong at present, for the operator: file, line, field, and what to do.
    pub problems: Vec<String>,
}
