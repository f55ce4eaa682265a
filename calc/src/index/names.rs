//! The names of nodes, each kept once, and their numbers.
//!
//! Routes are many and nodes are few: what is kept for each prefix has the number, four bytes that
//! compare at once. A number means nothing by itself: what is ordered by name asks for the name.

#![expect(
    clippy::disallowed_types,
    reason = "looked up for every resource, and never iterated"
)]

use std::{collections::HashMap, num::NonZeroU32};

use foldhash::fast::RandomState;

use crate::route::NodeName;

/// How many names may come to be unused before they are looked for.
const SLACK: usize = 1024;

/// The number of a node's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(NonZeroU32);

impl NodeId {
    /// Its place in a list of all.
    pub(crate) fn place(self) -> usize {
        usize::try_from(self.0.get() - 1).unwrap_or(usize::MAX)
    }

    fn at(place: usize) -> Option<Self> {
        let number = u32::try_from(place).ok()?.checked_add(1)?;
        NonZeroU32::new(number).map(Self)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Names {
    ids: HashMap<NodeName, NodeId, RandomState>,
    by_place: Vec<Option<NodeName>>,
    free: Vec<NodeId>,
    /// With how many names those that are not in use are looked for.
    limit: usize,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            ids: HashMap::default(),
            by_place: Vec::new(),
            free: Vec::new(),
            limit: SLACK,
        }
    }
}

impl Names {
    /// Returns the number of a name, from now on if it had none.
    pub(crate) fn intern(&mut self, name: &str) -> NodeId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let shared = NodeName::from(name);
        let id = self.free.pop().unwrap_or_else(|| {
            self.by_place.push(None);
            NodeId::at(self.by_place.len() - 1).unwrap_or(NodeId(NonZeroU32::MAX))
        });
        if let Some(slot) = self.by_place.get_mut(id.place()) {
            *slot = Some(NodeName::clone(&shared));
        }
        self.ids.insert(shared, id);
        id
    }

    /// Returns the number of a name that has one.
    pub(crate) fn find(&self, name: &str) -> Option<NodeId> {
        self.ids.get(name).copied()
    }

    /// Returns the name with a number.
    pub(crate) fn name(&self, id: NodeId) -> NodeName {
        let name = self.by_place.get(id.place()).cloned().flatten();
        name.unwrap_or_default()
    }

    /// The numbers of all names.
    pub(crate) fn all(&self) -> impl Iterator<Item = NodeId> {
        let all = self.by_place.iter().enumerate();
        all.filter_map(|(place, name)| NodeId::at(place).filter(|_| name.is_some()))
    }

    /// Returns whether there may be many names that are not in use.
    pub(crate) fn are_many(&self) -> bool {
        self.ids.len() > self.limit
    }

    /// Forgets all names but those whose numbers are in use; the others' are given away again.
    pub(crate) fn keep(&mut self, used: impl IntoIterator<Item = NodeId>) {
        let mut keep = vec![false; self.by_place.len()];
        for id in used {
            if let Some(keep) = keep.get_mut(id.place()) {
                *keep = true;
            }
        }
        for (place, (slot, keep)) in self.by_place.iter_mut().zip(keep).enumerate() {
            if !keep
                && let Some(name) = slot.take()
                && let Some(id) = NodeId::at(place)
            {
                self.ids.remove(&name);
                self.free.push(id);
            }
        }
        self.limit = 2 * self.ids.len() + SLACK;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number_as_long_as_it_is_in_use() {
        let mut names = Names::default();
        let [a, b] = ["a", "b"].map(|name| names.intern(name));
        assert_ne!(a, b);
        assert_eq!(names.intern("a"), a);
        names.keep([b]);
        assert_eq!((names.find("a"), names.find("b")), (None, Some(b)));
        assert_eq!(names.intern("c"), a, "a number that is free again");
        assert_eq!((&*names.name(a), &*names.name(b)), ("c", "b"));
    }

    #[test]
    fn names_are_many_only_once_they_have_doubled() {
        let mut names = Names::default();
        let ids: Vec<_> = (0..2 * SLACK)
            .map(|number| names.intern(&number.to_string()))
            .collect();
        assert!(names.are_many());
        names.keep(ids);
        assert!(!names.are_many());
    }
}
