//! Which definition of each object holds, of those that files have and those that are kept.
//!
//! Of several definitions that of the first file holds. One that is kept holds where there is none.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ipnet::IpNet;

use super::{FileName, contents::Object};
use crate::datastore::{
    convert::Value,
    document::{Kind, ObjectKey},
};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Objects {
    defined: BTreeMap<(ObjectKey, FileName), Arc<Object>>,
    kept: Former,
    /// The objects with more than one definition.
    doubled: BTreeSet<ObjectKey>,
    /// The pools and blocks that hold, by their CIDR.
    by_cidr: BTreeSet<(IpNet, ObjectKey)>,
    /// Those of them whose CIDR is that of another one with a smaller name.
    outdone: BTreeSet<ObjectKey>,
    /// The workloads that hold and use foreign source addresses.
    spoofers: BTreeSet<ObjectKey>,
}

/// What held at some time.
pub(super) type Former = BTreeMap<ObjectKey, Held>;

/// A definition that holds.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) file: FileName,
    object: Arc<Object>,
}

impl Held {
    /// The same in another file.
    pub(super) fn moved_to(&self, file: &FileName) -> Self {
        Self {
            file: Arc::clone(file),
            object: Arc::clone(&self.object),
        }
    }
}

impl Objects {
    /// The definitions of an object, in the order of their files.
    pub(super) fn definitions<'a>(
        &'a self,
        key: &'a ObjectKey,
    ) -> impl Iterator<Item = (&'a FileName, &'a Object)> {
        let range = self.defined.range((key.clone(), FileName::default())..);
        range
            .take_while(move |((other, _), _)| other == key)
            .map(|((_, file), object)| (file, &**object))
    }

    /// Whether a file defines an object.
    pub(super) fn defines(&self, key: &ObjectKey) -> bool {
        self.first(key).is_some()
    }

    /// The definition of an object that holds, and where it is.
    pub(super) fn holder(&self, key: &ObjectKey) -> Option<(&FileName, &Arc<Object>)> {
        let kept = || self.kept.get(key).map(|held| (&held.file, &held.object));
        self.first(key).or_else(kept)
    }

    /// What an object that holds means.
    pub(super) fn value(&self, key: &ObjectKey) -> Option<&Value> {
        self.holder(key)?.1.value.as_ref()
    }

    /// The objects of a kind that hold.
    pub(super) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&ObjectKey, &Value)> {
        let start = ObjectKey::first(kind);
        let kept = self.kept.range(start.clone()..);
        let kept = kept.map(|(key, held)| (key, &held.object));
        let defined = self.defined.range((start, FileName::default())..);
        let mut last = None;
        let defined = defined
            .map(|((key, _), object)| (key, object))
            .filter(move |(key, _)| last.replace(*key) != Some(*key));
        defined
            .take_while(move |(key, _)| key.kind == kind)
            .chain(kept.take_while(move |(key, _)| key.kind == kind))
            .filter_map(|(key, object)| Some((key, object.value.as_ref()?)))
    }

    fn first(&self, key: &ObjectKey) -> Option<(&FileName, &Arc<Object>)> {
        let mut range = self.defined.range((key.clone(), FileName::default())..);
        let ((other, file), object) = range.next()?;
        (other == key).then_some((file, object))
    }

    /// The pools or blocks of a CIDR that hold, in the order of their names.
    pub(super) fn with_cidr(&self, kind: Kind, cidr: IpNet) -> impl Iterator<Item = &ObjectKey> {
        let range = self.by_cidr.range((cidr, ObjectKey::first(kind))..);
        range
            .take_while(move |(other, key)| *other == cidr && key.kind == kind)
            .map(|(_, key)| key)
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
        let held = |key: &ObjectKey| {
            let (file, object) = self.holder(key)?;
            let held = Held {
                file: Arc::clone(file),
                object: Arc::clone(object),
            };
            Some((key.clone(), held))
        };
        keys.iter().filter_map(held).collect()
    }

    /// Takes in a definition. What it changes is to be [settled](Self::settle).
    pub(super) fn define(&mut self, key: &ObjectKey, file: &FileName, object: &Arc<Object>) {
        let place = (key.clone(), Arc::clone(file));
        self.defined.insert(place, Arc::clone(object));
    }

    /// Takes in that a definition is gone. What it changes is to be [settled](Self::settle).
    pub(super) fn forget(&mut self, key: &ObjectKey, file: &FileName) {
        self.defined.remove(&(key.clone(), Arc::clone(file)));
    }

    /// Takes what is kept. What it changes is to be [settled](Self::settle).
    pub(super) fn keep(&mut self, kept: Former) {
        self.kept = kept;
    }

    /// Takes in what holds of an object now, in place of what did.
    pub(super) fn settle(&mut self, key: &ObjectKey, former: Option<&Held>) {
        if self.definitions(key).nth(1).is_some() {
            self.doubled.insert(key.clone());
        } else {
            self.doubled.remove(key);
        }
        let cidr = |value: Option<&Value>| match value {
            Some(Value::Pool(cidr, _) | Value::Block(cidr, _)) => Some(*cidr),
            _ => None,
        };
        let spoofs =
            |value: Option<&Value>| matches!(value, Some(Value::Workload { spoofs: true, .. }));
        let former = cidr(former.and_then(|held| held.object.value.as_ref()));
        let value = self.value(key);
        let (now, does) = (cidr(value), spoofs(value));
        if does {
            self.spoofers.insert(key.clone());
        } else {
            self.spoofers.remove(key);
        }
        if former == now {
            return;
        }
        if let Some(former) = former {
            self.by_cidr.remove(&(former, key.clone()));
            self.outdone.remove(key);
            self.rank(key.kind, former);
        }
        if let Some(now) = now {
            self.by_cidr.insert((now, key.clone()));
            self.rank(key.kind, now);
        }
    }

    /// Finds which pools or blocks of a CIDR are outdone.
    fn rank(&mut self, kind: Kind, cidr: IpNet) {
        let mut keys = self.with_cidr(kind, cidr);
        let first = keys.next().cloned();
        let others: Vec<ObjectKey> = keys.cloned().collect();
        if let Some(first) = first {
            self.outdone.remove(&first);
        }
        self.outdone.extend(others);
    }
}
