//! The unprivileged side: decides what the kernel should hold.

mod calculator;
mod conflict;
pub mod datastore;
pub mod event;
mod index;
mod kind;
mod prefix;
mod resolver;
pub mod route;

pub use self::calculator::Calculator;
