//! From events to what should be. Pure: it knows the policy and no time.

use ipc_proto::Op;

use crate::event::Event;

/// See the [module](self).
#[derive(Debug)]
pub struct Calculator {}

impl Calculator {
    /// Starts with an empty datastore and no interfaces, for the node of this name.
    #[must_use]
    pub fn new(_node: String) -> Self {
        Self {}
    }

    /// Takes in a change. Nothing is computed before [`resolve`](Self::resolve).
    pub fn handle(&mut self, _event: Event) {}

    /// Computes what the changes since the last call touched, and returns what should be: one op
    /// for each key whose desired value has changed.
    pub fn resolve(&mut self) -> Vec<Op> {
        Vec::new()
    }
}
