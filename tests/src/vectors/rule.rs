//! The ways in which Cairn differs from the recorded steps on purpose.

use std::fmt;

/// A deliberate difference. What it accepts must still satisfy a check of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// The recorded writer reads the map again in the apply after a write failed or a delete found
    /// its key missing (V22, V24). Cairn tries the failed key alone, after a back-off, and reads the
    /// map when asked and periodically, so that one stuck key does not cost a reading of the whole
    /// map each time. Where the vectors read, Cairn is asked to and must then do just the same; a
    /// second Cairn that is not asked must do all but the repair of what others changed.
    ReadWhenAsked,
    /// Writes of one group (updates, inserts, deletes) come by key bytes in the vectors, and in any
    /// order in V23; Cairn's is by address. The groups must be the same.
    OrderWithinGroup,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadWhenAsked => "read-when-asked",
            Self::OrderWithinGroup => "order-within-group",
        })
    }
}
