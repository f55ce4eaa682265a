//! The BPF object: the maps and the packet programs.
//!
//! It is verified without `CAP_PERFMON`, that is with the stricter rules: loads at computed offsets
//! go through `bpf_skb_load_bytes`, and no large value is built on the stack.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod packet;
#[cfg(target_arch = "bpf")]
mod programs;

#[cfg(not(target_arch = "bpf"))]
fn main() {}
