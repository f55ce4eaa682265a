//! The one place that knows how messages become bytes: bincode with fixed-size integers.
//!
//! bincode is unmaintained; whatever replaces it replaces this file. The serde front is used, not
//! bincode's own derive, so that one set of derives also serves `--json`; either costs far less
//! than the kernel's part (limits measured at about 20 ns an entry against 1,000).

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use serde::{Serialize, de::DeserializeOwned};

/// The largest message in bytes that either side reads or writes.
pub const MAX_LEN: usize = 1 << 20;

const CONFIG: Configuration<LittleEndian, Fixint, Limit<MAX_LEN>> = bincode::config::standard()
    .with_fixed_int_encoding()
    .with_limit::<MAX_LEN>();

/// The value is too large for a message.
#[derive(Debug, thiserror::Error)]
#[error("cannot encode: {0}")]
pub struct EncodeError(#[from] bincode::error::EncodeError);

/// The bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// They do not parse, or ask for more than [`MAX_LEN`].
    #[error("malformed message: {0}")]
    Malformed(#[from] bincode::error::DecodeError),
    /// A message ends before they do.
    #[error("{0} bytes after the message")]
    Trailing(usize),
}

/// Encodes a message.
///
/// # Errors
///
/// If it is larger than [`MAX_LEN`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, EncodeError> {
    let bytes = bincode::serde::encode_to_vec(message, CONFIG)?;
    if bytes.len() > MAX_LEN {
        return Err(EncodeError(bincode::error::EncodeError::Other(
            "larger than a message may be",
        )));
    }
    Ok(bytes)
}

/// Decodes a message that takes up all of `bytes`.
///
/// # Errors
///
/// If `bytes` are anything but one message.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let (message, used) = bincode::serde::decode_from_slice(bytes, CONFIG)?;
    match bytes.len().saturating_sub(used) {
        0 => Ok(message),
        rest => Err(DecodeError::Trailing(rest)),
    }
}
