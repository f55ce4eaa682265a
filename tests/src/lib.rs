//! What the tests across processes and the demo share.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::exit,
    reason = "a test or demo that cannot go on says where it stopped"
)]

pub mod agent;
pub mod bench;
pub mod claims;
pub mod flows;
pub mod helper;
pub mod isolate;
pub mod monitor;
pub mod netns;
pub mod packets;
pub mod ping;
pub mod raw;
pub mod systemd;
pub mod talk;
pub mod vectors;
pub mod wait;
pub mod world;
