//! The unprivileged side: decides what the kernel should hold.

mod calculator;
pub mod datastore;
pub mod event;

pub use self::calculator::Calculator;
