//! `cairn-supervisor`: reads its configuration and keeps the two processes alive until it is told
//! to stop.

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use supervisor::{config::Config, shell};
use tracing_subscriber::EnvFilter;

/// Starts cairn-privhelper and cairn-calc, keeps them alive, and stops them in order.
#[derive(Parser)]
#[command(name = "cairn-supervisor", version)]
struct Args {
    /// The configuration file; without one the defaults hold if /etc/cairn/supervisor.toml does
    /// not exist.
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Starts nothing: systemd keeps the two processes, and they are watched by their faces. Needs
    /// no privilege.
    #[arg(long)]
    watch: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            EnvFilter::try_from_env("CAIRN_LOG").unwrap_or_else(|_| EnvFilter::new("info")),
        )
        // Whoever reads the log may go away; that must not end what it is about.
        .log_internal_errors(false)
        .init();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::load(args.config.as_deref())?;
    // One thread: the children die with the thread that started them (PR_SET_PDEATHSIG).
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        if args.watch {
            shell::watch(&config).await
        } else {
            shell::run(&config).await
        }
    })?;
    Ok(())
}
