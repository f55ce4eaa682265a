//! What the tests across processes and the demo share.

pub mod isolate;
pub mod netns;
