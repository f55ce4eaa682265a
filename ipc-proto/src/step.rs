//! A step of a batch, and its form on the wire.
//!
//! The steps of a batch of thousands are BPF routes. These are written as a few numbers and read one by one: on
//! the way through enums within enums each result is copied as soon as it is made, which takes far longer
//! than to read it.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, SeqAccess, Unexpected, Visitor},
    ser::SerializeTuple,
};

use crate::{BpfRoute, BpfTarget, Flags, Op, net};

/// What a step begins with tells what follows: any op but those below,
const ANY: u8 = 0;
/// or the prefix of a BPF route that is cleared,
const CLEARED: u8 = 1;
/// or the prefix and the flags of one without a target,
const BARE: u8 = 2;
/// or the prefix, the flags and the next hop of one,
const NEXT_HOP: u8 = 3;
/// or the prefix, the flags and the link of one.
const LINK: u8 = 4;
/// The most parts that a step has.
const PARTS: usize = 7;

/// An op of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The change.
    pub op: Op,
    /// The index of an earlier step that must have succeeded.
    pub needs: Option<u32>,
}

impl Serialize for Step {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut parts = serializer.serialize_tuple(PARTS)?;
        if let Op::BpfRoute(prefix, route) = &self.op {
            let target = route.as_ref().map(|route| &route.target);
            parts.serialize_element(&match target {
                None => CLEARED,
                Some(BpfTarget::None) => BARE,
                Some(BpfTarget::NextHop(_)) => NEXT_HOP,
                Some(BpfTarget::Link(_)) => LINK,
            })?;
            net::write(prefix, &mut parts)?;
            if let Some(BpfRoute { flags, target }) = route {
                parts.serialize_element(flags)?;
                match target {
                    BpfTarget::None => {}
                    BpfTarget::NextHop(hop) => net::write(&(*hop).into(), &mut parts)?,
                    BpfTarget::Link(link) => parts.serialize_element(link)?,
                }
            }
        } else {
            parts.serialize_element(&ANY)?;
            parts.serialize_element(&self.op)?;
        }
        parts.serialize_element(&self.needs)?;
        parts.end()
    }
}

impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_tuple(PARTS, Parts)
    }
}

struct Parts;

impl<'de> Visitor<'de> for Parts {
    type Value = Step;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a step")
    }

    #[inline]
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Step, A::Error> {
        let kind: u8 = net::next(&mut seq)?;
        let op = if kind == ANY {
            let op = net::next(&mut seq)?;
            if matches!(op, Op::BpfRoute(..)) {
                return Err(A::Error::custom("a BPF route in another form"));
            }
            op
        } else {
            let prefix = net::read(&mut seq)?;
            let route = if kind == CLEARED {
                None
            } else {
                let flags = Flags(net::next(&mut seq)?);
                let target = match kind {
                    BARE => BpfTarget::None,
                    NEXT_HOP => BpfTarget::NextHop(net::read_address(&mut seq)?),
                    LINK => BpfTarget::Link(net::next(&mut seq)?),
                    _ => {
                        let kind = Unexpected::Unsigned(kind.into());
                        return Err(A::Error::invalid_value(kind, &self));
                    }
                };
                Some(BpfRoute { flags, target })
            };
            Op::BpfRoute(prefix, route)
        };
        let needs = net::next(&mut seq)?;
        Ok(Step { op, needs })
    }
}
