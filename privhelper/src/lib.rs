//! The privileged side: checks each request, then makes it so.
//!
//! Pure: [`policy`], [`links`], [`order`], [`pages`], and the parts of [`bpf`] and [`netlink`] that lay
//! out and read what the kernel takes and gives. The rest is thin shells. It keeps no desired
//! state: the kernel is the state.

pub mod bpf;
pub mod config;
pub mod conntrack;
pub mod dataplane;
pub mod face;
pub mod links;
pub mod netlink;
pub mod order;
pub mod pages;
pub mod policy;
pub mod run;
pub mod sandbox;
pub mod service;
pub mod session;
pub mod sysctl;
pub mod tc;
pub mod watch;
