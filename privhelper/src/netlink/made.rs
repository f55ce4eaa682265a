//! What the helper has made of forwarding entries: the kernel tells that one has changed, but not by
//! whom. Others' changes are those that lead elsewhere. A hint, and nothing more: it decides what is
//! read, not what is written.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use ipc_proto::{FdbKey, Mac};

/// Where the entries lead, by the index of the interface; shared by who writes and who listens.
#[derive(Clone, Debug, Default)]
pub(super) struct Made(Arc<Mutex<BTreeMap<(u32, Mac), IpAddr>>>);

impl Made {
    /// Takes in what is about to be written: the kernel tells of it before it answers.
    pub(super) fn write(&self, changes: &[(&FdbKey, Option<IpAddr>)]) {
        self.with(|made| {
            for (key, to) in changes {
                let place = (key.link.index, key.mac);
                match to {
                    Some(to) => made.insert(place, *to),
                    None => made.remove(&place),
                };
            }
        });
    }

    /// Takes in all entries of an interface.
    pub(super) fn read(&self, index: u32, all: impl IntoIterator<Item = (Mac, IpAddr)>) {
        self.with(|made| {
            made.retain(|(other, _), _| *other != index);
            made.extend(all.into_iter().map(|(mac, to)| ((index, mac), to)));
        });
    }

    /// Returns where an entry should lead.
    pub(super) fn get(&self, index: u32, mac: Mac) -> Option<IpAddr> {
        self.with(|made| made.get(&(index, mac)).copied())
    }

    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<(u32, Mac), IpAddr>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
