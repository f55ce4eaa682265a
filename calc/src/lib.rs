//! The unprivileged side: decides what the kernel should hold.

mod calculator;
mod config;
pub mod conflict;
mod consumers;
mod convergence;
mod dataplane;
pub mod datastore;
mod delta;
pub mod event;
mod face;
mod flows;
mod index;
mod kind;
mod load;
mod obstacles;
mod ordered;
mod prefix;
mod reading;
mod reconciler;
mod resolver;
pub mod route;
mod shell;
mod start;
mod table;

pub use self::{
    calculator::Calculator,
    config::{Config, ConfigError},
    dataplane::{
        Error as DataplaneError, Event as DataplaneEvent, FeedOrder, Gap, Request, Train, hello,
        run,
    },
    index::WorkloadTable,
    load::resolve,
    reading::Reading,
    reconciler::{Counts, Input, Load, Notice, Output, Page, Reconciler, Told, Unplaced},
    shell::{ShellError, Throttle},
    start::{StartError, start},
};
