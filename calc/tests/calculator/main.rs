//! The calculator from outside: resources and interfaces in, ops out.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on panics"
)]

mod changes;
mod cluster;
mod families;
mod generate;
mod order;
mod states;
mod world;
