//! Lists whose length is looked at before a place is made for their elements.
//!
//! An element of a few bytes on the wire takes many times that in memory, so a limit on bytes alone
//! is none.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Visitor},
};

/// Reads a list of at most `MAX` elements.
pub(crate) fn at_most<'de, const MAX: usize, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_seq(AtMost::<MAX, T>(PhantomData))
}

struct AtMost<const MAX: usize, T>(PhantomData<T>);

impl<'de, const MAX: usize, T: Deserialize<'de>> Visitor<'de> for AtMost<MAX, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let claimed = seq.size_hint().unwrap_or(0);
        if claimed > MAX {
            return Err(Error::invalid_length(claimed, &self));
        }
        let mut list = Vec::with_capacity(claimed);
        while let Some(element) = seq.next_element()? {
            list.push(element);
            if list.len() > MAX {
                return Err(Error::invalid_length(list.len(), &self));
            }
        }
        Ok(list)
    }
}
