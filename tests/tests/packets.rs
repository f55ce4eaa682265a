//! The packet programs with real packets: which go straight, which go through the stack, and that
//! neither a translation nor a packet is lost.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on panics"
)]

#[path = "packets/attachments.rs"]
mod attachments;
#[path = "packets/moved.rs"]
mod moved;
#[path = "packets/straight.rs"]
mod straight;
#[path = "packets/translated.rs"]
mod translated;

use tests::{isolate, packets::Node};

/// Runs `body` with a node of its own.
fn test<F: Future<Output = ()>>(name: &str, body: impl FnOnce(Node) -> F) {
    isolate::test(name, || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(async { body(Node::new().await).await });
    });
}
