//! The frame of `make bench`: what is measured, beside the raw kernel's floor of the same run and
//! the reference implementation's figure, which is scaled to this machine by that floor.

pub mod bpf;
pub mod calc;
mod cluster;
pub mod floor;
pub mod flows;
pub mod flushing;
pub mod kernel;
mod metric;
pub mod processes;
mod report;

pub use self::{
    metric::{Figure, Metric, median, ms},
    report::{in_readme, markdown, table, write},
};

/// Returns the resident memory of a process (or of `self`), in bytes.
fn resident(process: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("/proc");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("VmRSS");
    let kib: f64 = line
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number");
    kib * 1024.0
}
