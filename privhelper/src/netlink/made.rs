//! What the helper has made of forwarding entries: the kernel tells that one has changed, but not by
//! whom. Others' changes are those that lead elsewhere. A hint, and nothing more: it decides what is
//! read, not what is written.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use ipc_proto::{FdbKey, Mac};

/// How many changes of an entry may be unheard: of more, those before count as others'.
const UNHEARD: usize = 8;

/// Where the entries lead, by the index of the interface; shared by who writes and who listens.
#[derive(Clone, Debug, Default)]
pub(super) struct Made(Arc<Mutex<BTreeMap<(u32, Mac), Entry>>>);

/// An entry as it was written, or read.
#[derive(Debug, Default)]
struct Entry {
    to: Option<IpAddr>,
    /// What was written and not heard of since, the last one last: who listens may be behind. What has
    /// changed nothing is never heard of, and is passed by.
    unheard: VecDeque<Option<IpAddr>>,
}

impl Made {
    /// Takes in what is about to be written: the kernel tells of it before it answers.
    pub(super) fn write(&self, changes: &[(&FdbKey, Option<IpAddr>)]) {
        self.with(|made| {
            for (key, to) in changes {
                let place = (key.link.index, key.mac);
                if to.is_none() && !made.contains_key(&place) {
                    continue;
                }
                let entry = made.entry(place).or_default();
                entry.to = *to;
                entry.unheard.push_back(*to);
                if entry.unheard.len() > UNHEARD {
                    entry.unheard.pop_front();
                }
            }
        });
    }

    /// Takes in all entries of an interface.
    pub(super) fn read(&self, index: u32, all: impl IntoIterator<Item = (Mac, IpAddr)>) {
        self.with(|made| {
            made.retain(|(other, _), _| *other != index);
            let entry = |to| Entry {
                to: Some(to),
                ..Entry::default()
            };
            made.extend(all.into_iter().map(|(mac, to)| ((index, mac), entry(to))));
        });
    }

    /// Takes in what is heard of an entry, and returns whether it is as it was written.
    pub(super) fn hear(&self, index: u32, mac: Mac, is: Option<IpAddr>) -> bool {
        self.with(|made| {
            let place = (index, mac);
            let Some(entry) = made.get_mut(&place) else {
                return is.is_none();
            };
            let written = entry.unheard.iter().position(|to| *to == is);
            if let Some(at) = written {
                entry.unheard.drain(..=at);
            }
            let as_made = written.is_some() || entry.to == is;
            if entry.to.is_none() && entry.unheard.is_empty() {
                made.remove(&place);
            }
            as_made
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<(u32, Mac), Entry>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use ipc_proto::Link;

    use super::*;

    #[test]
    fn who_listens_may_be_behind_and_others_changes_are_told_apart() {
        let made = Made::default();
        let mac = Mac([6; 6]);
        let key = FdbKey {
            link: Link {
                index: 3,
                name: "vxlan.calico".parse().unwrap(),
            },
            mac,
        };
        let [here, there] = ["192.0.2.1", "192.0.2.2"].map(|to| Some(to.parse().unwrap()));
        let hear = |is| made.hear(3, mac, is);
        made.write(&[(&key, None)]);
        assert!(made.0.lock().unwrap().is_empty(), "nothing to be heard of");
        for to in [here, None, here, None] {
            made.write(&[(&key, to)]);
        }
        assert!(hear(here) && hear(None));
        assert!(!hear(there), "another program's");
        assert!(hear(here) && hear(None));
        assert!(!hear(here), "what was ours, by another program");
        // What is there already is not heard of again.
        for to in [here, here, there] {
            made.write(&[(&key, to)]);
        }
        assert!(hear(here) && hear(there));
        assert!(!hear(None) && !hear(here));
        made.read(3, []);
        assert!(hear(None) && !hear(there));
        assert!(made.0.lock().unwrap().is_empty());
    }
}
