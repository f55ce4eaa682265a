//! The privileged helper's process: gives up what it does not need, then serves.

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use privhelper::{
    config::{self, Config},
    run, sandbox,
};
use tracing_subscriber::EnvFilter;

/// Alone touches the BPF maps, netlink and sysctls, for cairn-calc.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// The administrator's file.
    #[arg(long, default_value = config::DEFAULT_PATH)]
    config: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_env("CAIRN_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        // Whoever reads the log may go away; that must not end what it is about.
        .log_internal_errors(false)
        .init();
    match start(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::load(&args.config)?;
    let pins = sandbox::enter(&config)?;
    Ok(run::run(config, &pins)?)
}
