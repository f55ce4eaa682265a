//! Which definition of each object holds, of those that files have and those that are kept.
//!
//! Of several definitions that of the first file holds. One that is kept holds where there is none.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ipnet::IpNet;

use super::{
    FileName,
    files::Files,
    packed::{Object, Record},
};
use crate::datastore::{
    convert::Value,
    document::{Kind, ObjectKey},
};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) files: Files,
    kept: Former,
    /// The pools and blocks that are kept, by their CIDR.
    kept_by_cidr: BTreeSet<(IpNet, ObjectKey)>,
    /// The objects with more than one definition.
    doubled: BTreeSet<ObjectKey>,
    /// The pools and blocks that hold and whose CIDR is that of another one with a smaller name.
    outdone: BTreeSet<ObjectKey>,
    /// The workloads that hold and use foreign source addresses.
    spoofers: BTreeSet<ObjectKey>,
    /// The objects that hold of the kinds that are asked for as a whole, of which blocks are none.
    listed: BTreeSet<ObjectKey>,
}

/// What held at some time.
pub(super) type Former = BTreeMap<ObjectKey, Held>;

/// A definition that holds.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) file: FileName,
    pub(super) object: Object,
}

impl Held {
    /// The same in another file.
    pub(super) fn moved_to(&self, file: &FileName) -> Self {
        Self {
            file: Arc::clone(file),
            object: self.object.clone(),
        }
    }
}

impl Objects {
    /// Whether a file defines an object.
    pub(super) fn defines(&self, key: &ObjectKey) -> bool {
        !self.files.definitions(key).is_empty()
    }

    /// The definition of an object that holds.
    pub(super) fn held(&self, key: &ObjectKey) -> Option<Held> {
        self.first_of(key, &self.files.definitions(key))
    }

    /// The definition of an object that holds, of all that files have of it.
    fn first_of(&self, key: &ObjectKey, definitions: &[(&FileName, Record<'_>)]) -> Option<Held> {
        let Some((file, record)) = definitions.first() else {
            return self.kept.get(key).cloned();
        };
        Some(Held {
            file: Arc::clone(file),
            object: record.object()?,
        })
    }

    /// What an object that holds means.
    pub(super) fn value(&self, key: &ObjectKey) -> Option<Value> {
        self.held(key)?.object.value
    }

    /// The objects that hold of a kind whose objects are [listed](Self::is_listed).
    pub(super) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&ObjectKey, Value)> {
        let keys = self.listed.range(ObjectKey::first(kind)..);
        let keys = keys.take_while(move |key| key.kind == kind);
        keys.filter_map(|key| Some((key, self.value(key)?)))
    }

    /// Whether objects of a kind are asked for as a whole.
    fn is_listed(kind: Kind) -> bool {
        match kind {
            Kind::BgpPeer
            | Kind::FelixConfiguration
            | Kind::LiveMigration
            | Kind::WorkloadEndpoint => true,
            Kind::BgpConfiguration | Kind::IpamBlock | Kind::IpPool | Kind::Node => false,
        }
    }

    /// The pools or blocks of a CIDR that hold.
    pub(super) fn with_cidr(&self, kind: Kind, cidr: IpNet) -> BTreeSet<ObjectKey> {
        let holds = |(file, key): (&FileName, ObjectKey)| {
            let definitions = self.files.definitions(&key);
            let (first, _) = definitions.first()?;
            (*first == file).then_some(key)
        };
        let defined = self.files.with_cidr(kind, cidr).filter_map(holds);
        let kept = self.kept_by_cidr.range((cidr, ObjectKey::first(kind))..);
        let kept = kept.take_while(|(other, key)| *other == cidr && key.kind == kind);
        defined.chain(kept.map(|(_, key)| key.clone())).collect()
    }

    /// The objects that are kept.
    pub(super) fn kept(&self) -> impl Iterator<Item = &ObjectKey> {
        self.kept.keys()
    }

    /// See [`Objects::doubled`](Objects#structfield.doubled).
    pub(super) fn doubled(&self) -> impl Iterator<Item = &ObjectKey> {
        self.doubled.iter()
    }

    /// See [`Objects::outdone`](Objects#structfield.outdone).
    pub(super) fn outdone(&self) -> impl Iterator<Item = &ObjectKey> {
        self.outdone.iter()
    }

    /// See [`Objects::spoofers`](Objects#structfield.spoofers).
    pub(super) fn spoofers(&self) -> impl Iterator<Item = &ObjectKey> {
        self.spoofers.iter()
    }

    /// What holds of some objects.
    pub(super) fn held_of(&self, keys: &BTreeSet<ObjectKey>) -> Former {
        let held = |key: &ObjectKey| Some((key.clone(), self.held(key)?));
        keys.iter().filter_map(held).collect()
    }

    /// Takes what is kept. What it changes is to be [settled](Self::settle).
    pub(super) fn keep(&mut self, kept: Former) {
        let by_cidr = |(key, held): (&ObjectKey, &Held)| Some((held.object.cidr()?, key.clone()));
        self.kept_by_cidr = kept.iter().filter_map(by_cidr).collect();
        self.kept = kept;
    }

    /// Takes in what holds of an object now, in place of what did.
    pub(super) fn settle(&mut self, key: &ObjectKey, former: Option<&Held>) {
        let definitions = self.files.definitions(key);
        let is_doubled = definitions.len() > 1;
        let object = self.first_of(key, &definitions).map(|held| held.object);
        let cidr = object.as_ref().and_then(Object::cidr);
        let value = object.and_then(|object| object.value);
        let spoofs = matches!(value, Some(Value::Workload { spoofs: true, .. }));
        let is_listed = value.is_some() && Self::is_listed(key.kind);
        mark(&mut self.doubled, key, is_doubled);
        mark(&mut self.spoofers, key, spoofs);
        mark(&mut self.listed, key, is_listed);
        let former = former.and_then(|held| held.object.cidr());
        if former == cidr {
            return;
        }
        self.outdone.remove(key);
        for cidr in [former, cidr].into_iter().flatten() {
            self.rank(key.kind, cidr);
        }
    }

    /// Finds which pools or blocks of a CIDR are outdone.
    fn rank(&mut self, kind: Kind, cidr: IpNet) {
        let mut others = self.with_cidr(kind, cidr);
        if let Some(first) = others.pop_first() {
            self.outdone.remove(&first);
        }
        self.outdone.append(&mut others);
    }
}

/// Adds a key to those of a sort, or removes it.
fn mark(keys: &mut BTreeSet<ObjectKey>, key: &ObjectKey, is_one: bool) {
    if is_one {
        keys.insert(key.clone());
    } else {
        keys.remove(key);
    }
}
