//! How serde reads a tree.
//!
//! As Calico's decoder does: a field that is null is an absent one, and a plain number or boolean
//! will do where text is wanted. Each fault names the innermost field that it is about.

use serde::{
    Deserializer,
    de::{self, DeserializeSeed, Unexpected, Visitor, value::StrDeserializer},
    forward_to_deserialize_any,
};

use super::{Fault, Tree, Value};

impl<'de> Deserializer<'de> for &'de Tree {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Int(value) => match (u64::try_from(*value), i64::try_from(*value)) {
                (Ok(value), _) => visitor.visit_u64(value),
                (_, Ok(value)) => visitor.visit_i64(value),
                _ => visitor.visit_i128(*value),
            },
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(value) => visitor.visit_borrowed_str(value),
            Value::List(items) => visitor.visit_seq(Items {
                items: items.iter().enumerate(),
            }),
            Value::Map(fields) => visitor.visit_map(Fields {
                fields: fields.iter(),
                current: None,
            }),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.value {
            Value::Bool(value) => visitor.visit_string(value.to_string()),
            Value::Int(value) => visitor.visit_string(value.to_string()),
            Value::Null => visitor.visit_str(""),
            Value::Float(_) | Value::Text(_) | Value::List(_) | Value::Map(_) => {
                self.deserialize_any(visitor)
            }
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_string(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let Value::Text(text) = &self.value else {
            return self.deserialize_any(visitor);
        };
        match text.to_ascii_lowercase().as_str() {
            "yes" | "on" | "y" => visitor.visit_bool(true),
            "no" | "off" | "n" => visitor.visit_bool(false),
            _ => Err(de::Error::invalid_type(Unexpected::Str(text), &visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if self.value == Value::Null {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if self.value == Value::Null {
            visitor.visit_seq(Items {
                items: [].iter().enumerate(),
            })
        } else {
            self.deserialize_any(visitor)
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if self.value == Value::Null {
            visitor.visit_map(Fields {
                fields: [].iter(),
                current: None,
            })
        } else if let Value::List(_) = self.value {
            // serde would also take the fields of a struct from a list, in their order.
            Err(de::Error::invalid_type(Unexpected::Seq, &visitor))
        } else {
            self.deserialize_any(visitor)
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_map(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple
        tuple_struct enum identifier
    }
}

struct Items<I> {
    items: I,
}

impl<'de, I: Iterator<Item = (usize, &'de Tree)>> de::SeqAccess<'de> for Items<I> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        self.items
            .next()
            .map(|(place, item)| {
                seed.deserialize(item)
                    .map_err(|fault| fault.below(&format!("[{place}]"), item.line))
            })
            .transpose()
    }
}

struct Fields<'de, I> {
    fields: I,
    current: Option<&'de (String, Tree)>,
}

impl<'de, I: Iterator<Item = &'de (String, Tree)>> de::MapAccess<'de> for Fields<'de, I> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        self.current = self
            .fields
            .by_ref()
            .find(|(_, field)| field.value != Value::Null);
        self.current
            .map(|(key, _)| seed.deserialize(StrDeserializer::new(key)))
            .transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let (key, field) = self
            .current
            .ok_or_else(|| de::Error::custom("a value without a key"))?;
        seed.deserialize(field)
            .map_err(|fault| fault.below(key, field.line))
    }
}
