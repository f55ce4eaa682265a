//! The unprivileged side: decides what the kernel should hold.

mod calculator;
pub mod datastore;
mod delta;
pub mod event;
mod reconciler;
mod table;

pub use self::{
    calculator::Calculator,
    reconciler::{Counts, Input, Notice, Output, Reconciler, Unplaced},
};
