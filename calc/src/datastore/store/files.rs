//! The files as of the last update, and where in them each object is.
//!
//! Beside its bytes, no more is kept of an object than hashes of what it is looked up by, each with its
//! place: a hash tells where to look, and what is found there is compared. Decides nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use foldhash::quality::FixedState;
use ipnet::IpNet;

use super::{FileName, contents::File, packed::Record};
use crate::datastore::document::{Kind, ObjectKey};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Files {
    numbers: BTreeMap<FileName, u32>,
    /// By number.
    slots: Vec<Slot>,
    free: Vec<u32>,
    places: BTreeSet<(u32, Place)>,
}

/// A file and its name; none where a number is free.
type Slot = Option<(FileName, File)>;

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// The number of its file.
    file: u32,
    /// How many objects come before it there.
    before: u32,
}

/// What objects are looked up by.
#[derive(Debug, Hash)]
enum Sought<'a> {
    Key(&'a ObjectKey),
    Cidr(Kind, IpNet),
}

impl Files {
    /// The names of all, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = &FileName> {
        self.numbers.keys()
    }

    pub(super) fn get(&self, name: &str) -> Option<&File> {
        let number = self.numbers.get(name)?;
        self.by_number(*number).map(|(_, file)| file)
    }

    fn by_number(&self, number: u32) -> Option<&(FileName, File)> {
        let place = usize::try_from(number).ok()?;
        self.slots.get(place)?.as_ref()
    }

    /// Takes in what was read; none for a file that is gone.
    pub(super) fn take(&mut self, news: BTreeMap<FileName, Option<File>>) {
        let mut fresh = Vec::new();
        for (name, new) in news {
            self.remove(&name);
            let Some(new) = new else { continue };
            let number = self.free.pop().unwrap_or_else(|| {
                self.slots.push(None);
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            });
            fresh.extend(places(number, &new));
            if let Some(slot) = slot(&mut self.slots, number) {
                *slot = Some((Arc::clone(&name), new));
            }
            self.numbers.insert(name, number);
        }
        if fresh.len() < self.places.len() / 8 {
            self.places.extend(fresh);
        } else {
            // Made anew, which is faster and leaves no gaps.
            self.places.append(&mut fresh.into_iter().collect());
        }
    }

    fn remove(&mut self, name: &FileName) {
        let Some(number) = self.numbers.remove(name) else {
            return;
        };
        if let Some((_, file)) = slot(&mut self.slots, number).and_then(Option::take) {
            for place in places(number, &file) {
                self.places.remove(&place);
            }
        }
        self.free.push(number);
    }

    /// The definitions of an object, in the order of their files.
    pub(super) fn definitions(&self, key: &ObjectKey) -> Vec<(&FileName, Record<'_>)> {
        let mut found: Vec<_> = self
            .look(hash(&Sought::Key(key)))
            .filter(|(_, record)| record.has(key))
            .collect();
        found.sort_unstable_by_key(|(name, _)| *name);
        found
    }

    /// The pools or blocks that a file defines with this CIDR, and that file.
    pub(super) fn with_cidr(
        &self,
        kind: Kind,
        cidr: IpNet,
    ) -> impl Iterator<Item = (&FileName, ObjectKey)> {
        self.look(hash(&Sought::Cidr(kind, cidr)))
            .filter(move |(_, record)| {
                record.object().and_then(|object| object.cidr()) == Some(cidr)
            })
            .filter_map(move |(name, record)| Some((name, record.key()?)))
            .filter(move |(_, key)| key.kind == kind)
    }

    /// What may be what is sought, by its hash.
    fn look(&self, hash: u32) -> impl Iterator<Item = (&FileName, Record<'_>)> {
        let [first, last] = [0, u32::MAX].map(|all| Place {
            file: all,
            before: all,
        });
        let range = self.places.range((hash, first)..=(hash, last));
        range.filter_map(|(_, place)| {
            let (name, file) = self.by_number(place.file)?;
            Some((name, file.objects.at(place.before)?))
        })
    }
}

fn slot(slots: &mut [Slot], number: u32) -> Option<&mut Slot> {
    slots.get_mut(usize::try_from(number).ok()?)
}

/// Where all objects of a file are, by what they are looked up by.
fn places(number: u32, file: &File) -> impl Iterator<Item = (u32, Place)> {
    let records = (0..).zip(file.objects.iter());
    records.flat_map(move |(before, record)| {
        let place = Place {
            file: number,
            before,
        };
        let key = record.key();
        let cidr = record.object().and_then(|object| object.cidr());
        let cidr = key.as_ref().zip(cidr);
        let cidr = cidr.map(|(key, cidr)| hash(&Sought::Cidr(key.kind, cidr)));
        let key = key.map(|key| hash(&Sought::Key(&key)));
        [key, cidr]
            .into_iter()
            .flatten()
            .map(move |hash| (hash, place))
    })
}

fn hash(sought: &Sought<'_>) -> u32 {
    u32::try_from(FixedState::default().hash_one(sought) >> 32).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> ObjectKey {
        ObjectKey {
            name: format!("block-{number}").into(),
            ..ObjectKey::first(Kind::IpamBlock)
        }
    }

    fn block(key: &ObjectKey) -> String {
        format!(
            "{{apiVersion: projectcalico.org/v3, kind: IPAMBlock, metadata: {{name: {}}}, spec: \
             {{cidr: 10.0.0.0/26}}}}",
            key.name
        )
    }

    fn files(all: &[(&str, &[&ObjectKey])]) -> Files {
        let mut files = Files::default();
        let read = |keys: &[&ObjectKey]| {
            let documents: Vec<String> = keys.iter().map(|key| block(key)).collect();
            File::read(documents.join("\n---\n").as_bytes())
        };
        let news = all.iter();
        files.take(
            news.map(|(name, keys)| ((*name).into(), Some(read(keys))))
                .collect(),
        );
        files
    }

    fn names(definitions: &[(&FileName, Record<'_>)]) -> Vec<String> {
        definitions
            .iter()
            .map(|(name, _)| name.to_string())
            .collect()
    }

    #[test]
    fn objects_whose_hashes_are_the_same_are_told_apart() {
        let mut seen = BTreeMap::new();
        let (one, other) = (0..)
            .find_map(|number| {
                let former = seen.insert(hash(&Sought::Key(&key(number))), number);
                former.map(|former| (key(former), key(number)))
            })
            .unwrap();
        let files = files(&[("a.yaml", &[&one, &other]), ("b.yaml", &[&other])]);
        assert_eq!(names(&files.definitions(&one)), ["a.yaml"]);
        assert_eq!(names(&files.definitions(&other)), ["a.yaml", "b.yaml"]);
    }

    #[test]
    fn a_file_that_is_gone_leaves_nothing_and_gives_its_number_to_another() {
        let [one, other] = [0, 1].map(key);
        let mut files = files(&[("a.yaml", &[&one]), ("b.yaml", &[&one])]);
        let news = |name: &str, file| BTreeMap::from([(FileName::from(name), file)]);
        files.take(news("a.yaml", None));
        assert_eq!(names(&files.definitions(&one)), ["b.yaml"]);
        files.take(news("c.yaml", Some(File::read(block(&other).as_bytes()))));
        assert_eq!(names(&files.definitions(&other)), ["c.yaml"]);
        assert_eq!((files.slots.len(), files.places.len()), (2, 4));
    }
}
