//! The unprivileged side: decides what the kernel should hold.

pub mod event;
