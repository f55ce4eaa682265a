//! `cairn-calc`: see the crate. Only sets up what the shell runs in.

use std::{
    io::{self, IsTerminal},
    path::PathBuf,
    process::ExitCode,
};

use calc::start;
use clap::Parser;
use tracing_subscriber::EnvFilter;

/// Decides what the kernel of this node should hold for its pods, and has the helper see to it.
#[derive(Debug, Parser)]
#[command(name = "cairn-calc", version)]
struct Arguments {
    /// The configuration file.
    #[arg(long, default_value = "/etc/cairn/calc.toml")]
    config: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_env("CAIRN_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        // Whoever reads the log may go away; that must not end what it is about.
        .log_internal_errors(false)
        .init();
    match start(&arguments.config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}
