//! The objects of one file as bytes: there may be very many, and few of them are looked at again.
//!
//! What was put in comes out again, in the order of the keys. Bytes are compared as bytes; what they
//! say is nobody's business here. They never leave the process, so their form is no promise.

use std::collections::{BTreeMap, BTreeSet};

use bincode::{
    config::{self, Configuration},
    error::EncodeError,
    serde::{borrow_decode_from_slice, decode_from_slice, encode_to_vec},
};
use ipnet::IpNet;

use crate::datastore::{
    convert::Value,
    document::{Kind, ObjectKey},
};

const CONFIG: Configuration = config::standard();

/// An object that could be decoded.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) line: u64,
    /// None if it counts as absent.
    pub(super) value: Option<Value>,
}

impl Object {
    /// The CIDR that a pool or a block is told by.
    pub(super) fn cidr(&self) -> Option<IpNet> {
        match self.value {
            Some(Value::Pool(cidr, _) | Value::Block(cidr, _)) => Some(cidr),
            _ => None,
        }
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Packed {
    bytes: Box<[u8]>,
    /// Where each object ends.
    ends: Box<[u32]>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Record<'a>(&'a [u8]);

impl Packed {
    /// Packs objects.
    ///
    /// # Errors
    /// If there is more of them than any file that is read can hold.
    pub(super) fn new(objects: &BTreeMap<ObjectKey, Object>) -> Result<Self, EncodeError> {
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(objects.len()));
        for (key, object) in objects {
            bytes.extend(encode_to_vec(
                (names(key), object.line, &object.value),
                CONFIG,
            )?);
            let end = u32::try_from(bytes.len());
            ends.push(end.ok().ok_or(EncodeError::Other("it holds too much"))?);
        }
        Ok(Self {
            bytes: bytes.into(),
            ends: ends.into(),
        })
    }

    /// All objects, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Record<'_>> {
        (0..)
            .zip(&self.ends)
            .filter_map(|(place, _)| self.at(place))
    }

    /// The object that so many come before.
    pub(super) fn at(&self, place: u32) -> Option<Record<'_>> {
        let place = usize::try_from(place).ok()?;
        let end = |place: usize| usize::try_from(*self.ends.get(place)?).ok();
        let start = match place.checked_sub(1) {
            Some(former) => end(former)?,
            None => 0,
        };
        self.bytes.get(start..end(place)?).map(Record)
    }

    /// The keys of the objects that only one of two files has, or that differ.
    pub(super) fn differing(one: Option<&Self>, other: Option<&Self>) -> Vec<ObjectKey> {
        let [one, other] = [one, other].map(|packed| {
            let records = packed.into_iter().flat_map(Self::iter);
            records.collect::<BTreeSet<Record<'_>>>()
        });
        let differing = one.symmetric_difference(&other);
        differing.filter_map(Record::key).collect()
    }
}

impl<'a> Record<'a> {
    pub(super) fn key(&self) -> Option<ObjectKey> {
        let ((kind, namespace, name), _) = self.split()?;
        Some(ObjectKey {
            kind,
            namespace: namespace.into(),
            name: name.into(),
        })
    }

    /// Whether it is the object with this key.
    pub(super) fn has(&self, key: &ObjectKey) -> bool {
        self.split().is_some_and(|(found, _)| found == names(key))
    }

    pub(super) fn object(&self) -> Option<Object> {
        let ((line, value), _) = decode_from_slice(self.split()?.1, CONFIG).ok()?;
        Some(Object { line, value })
    }

    fn split(&self) -> Option<(Names<'a>, &'a [u8])> {
        let (names, used) = borrow_decode_from_slice(self.0, CONFIG).ok()?;
        Some((names, self.0.get(used..)?))
    }
}

/// What tells objects apart: kind, namespace and name.
type Names<'a> = (Kind, &'a str, &'a str);

fn names(key: &ObjectKey) -> Names<'_> {
    (key.kind, &key.namespace, &key.name)
}
