//! Keeps the two processes alive and is their face to the operator and the service manager.
//!
//! [`machine`] decides, purely; all else carries out. Nothing here touches the kernel's network
//! state or knows what the two say to each other.

pub mod config;
mod face;
pub mod machine;
mod notify;
mod privileges;
mod runtime_dir;
pub mod shell;
mod spawn;
mod users;
mod watch;

pub use self::spawn::TUNABLES;
