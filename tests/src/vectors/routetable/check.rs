//! What Cairn must have made of a step, whatever the recorded program did. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;

use super::{
    event::{Config, Route},
    kernel::{Key, Neighbours, Routes},
    model::{Links, is_ours},
    owners::{Owners, Past},
};

/// What was seen of an apply.
#[derive(Debug)]
pub(super) struct Applied<'a> {
    pub(super) config: &'a Config,
    /// Whether the kernel was read.
    pub(super) read: bool,
    /// The kernel's routes.
    pub(super) before: Routes,
    pub(super) after: Routes,
    /// What was and is wanted.
    pub(super) formerly: Routes,
    pub(super) wanted: Routes,
    /// What nobody wants and is spared for a while.
    pub(super) spared: BTreeSet<Key>,
    /// The prefixes that others have changed routes of since the last reading.
    pub(super) disturbed: BTreeSet<IpNet>,
    /// What could not be made, and why.
    pub(super) failed: BTreeMap<Key, String>,
    /// What others undo again and again, so that it waits.
    pub(super) contested: BTreeSet<Key>,
    /// How many times a route was made, replaced or deleted.
    pub(super) writes: usize,
    /// The neighbours that there are, and those that are wanted.
    pub(super) neighbours: [Neighbours; 2],
    /// The addresses whose flows were forgotten, and those whose were to be.
    pub(super) flushed: [BTreeSet<IpAddr>; 2],
    /// Who had and who shall have addresses.
    pub(super) past: Past,
    pub(super) owners: Owners,
    pub(super) links: Links,
}

impl Applied<'_> {
    /// Checks that the kernel holds what is wanted and all that is not ours, and nothing else that
    /// Cairn can know of; and that just the flows of former owners were forgotten. Returns what is
    /// wrong.
    pub(super) fn check(&self) -> Vec<String> {
        let keys = [&self.before, &self.after, &self.wanted, &self.formerly];
        let keys: BTreeSet<&Key> = keys.into_iter().flat_map(BTreeMap::keys).collect();
        let routes = keys.into_iter().filter_map(|key| {
            let (after, may) = (self.after.get(key), self.may_be(key));
            let fits = may.contains(&after);
            let any: Vec<String> = may.iter().map(|route| text(*route)).collect();
            (!fits).then(|| format!("there is {}, should be {}", text(after), any.join(" or ")))
        });
        let mut wrong: Vec<String> = routes.collect();
        let [neighbours, wanted] = &self.neighbours;
        if neighbours != wanted {
            wrong.push(format!(
                "neighbours are {neighbours:?}, should be {wanted:?}"
            ));
        }
        let [flushed, owed] = &self.flushed;
        if flushed != owed {
            wrong.push(format!(
                "flows of {flushed:?} were forgotten, should be {owed:?}"
            ));
        }
        wrong
    }

    /// What a key may be.
    fn may_be(&self, key: &Key) -> Vec<Option<&Route>> {
        let (before, wanted) = (self.before.get(key), self.wanted.get(key));
        let formerly = self.formerly.get(key);
        match (wanted, before) {
            // Another program's stays.
            (Some(_) | None, Some(other)) if !is_ours(other, self.config) => vec![before],
            // One that led to a former owner goes in any case.
            (Some(_), _) if self.failed.contains_key(key) => vec![before, None],
            (Some(_), _) if self.contested.contains(key) => vec![before],
            // What hangs on an interface may be made once more for another reason.
            (Some(_), _) if self.unread(key) && wanted == formerly => vec![wanted, before],
            (Some(_), _) => vec![wanted],
            (None, Some(_)) if self.spared.contains(key) => vec![before],
            (None, Some(_)) if self.unread(key) && formerly.is_none() => vec![before],
            (None, _) => vec![None],
        }
    }

    /// Returns whether others may have changed a key since the last reading.
    pub(super) fn unread(&self, key: &Key) -> bool {
        !self.read && self.disturbed.contains(&key.0)
    }

    /// Returns why routes could not be made, but for those in whose place another program's is.
    pub(super) fn refused(&self) -> impl Iterator<Item = &String> {
        let failed = self.failed.values();
        failed.filter(|why| !why.contains("another program's route"))
    }
}

pub(super) fn text(route: Option<&Route>) -> String {
    route.map_or("none".to_owned(), ToString::to_string)
}
