//! The command line, and what each command does: ask, then render.

use std::{io, path::PathBuf, time::Duration};

use clap::{Parser, Subcommand};
use ipc_proto::view::Kind;
use serde_json::{Value, json};

use crate::{
    client::{self, Face, Unreachable},
    follow::{self, FollowError},
    rows, status,
};

/// Shows what Cairn does on this node, and asks it to look again.
#[derive(Debug, Parser)]
#[command(name = "cairnctl", version)]
pub(crate) struct Args {
    /// Where Cairn's sockets are.
    #[arg(long, global = true, value_name = "PATH", default_value = "/run/cairn")]
    runtime_dir: PathBuf,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the state of the processes; fails unless all answer, the kernel is in sync and no other
    /// program's route counts in place of one of Cairn's, whatever else they tell of problems.
    Status,
    /// Show a table: what is, and where it differs from what should be.
    Routes {
        #[command(flatten)]
        tables: Tables,
        /// Print the BPF routes as consumers are told of them, and then each change as it comes.
        #[arg(long, conflicts_with = "Tables")]
        follow: bool,
    },
    /// Show what is not as it should be, and why; fails if there is anything.
    Diff,
    /// Have all that was written in the datastore read, and the kernel read back and repaired; fails
    /// unless both have been read in time.
    Resync {
        /// How long to wait for that, in seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 10)]
        wait: u16,
    },
}

/// Which table; the BPF routes if nothing else is asked for.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(multiple = false)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "options of a command line, of which one can be given"
)]
struct Tables {
    /// The kernel's routes.
    #[arg(long)]
    kernel: bool,
    /// The routing rules that lead to the second table.
    #[arg(long)]
    rules: bool,
    /// Neighbours and forwarding entries.
    #[arg(long)]
    neighbours: bool,
    /// Settings of interfaces, this host's addresses on workloads' links, and tunnel devices.
    #[arg(long)]
    links: bool,
    /// The packet programs and what they know of workloads' links.
    #[arg(long)]
    programs: bool,
}

impl Tables {
    fn kinds(self) -> &'static [Kind] {
        match self {
            Self { kernel: true, .. } => &[Kind::KernelRoutes],
            Self { rules: true, .. } => &[Kind::Rules],
            Self {
                neighbours: true, ..
            } => &[Kind::Neighbours, Kind::Fdb],
            Self { links: true, .. } => {
                &[Kind::LinkSettings, Kind::LinkAddresses, Kind::TunnelDevices]
            }
            Self { programs: true, .. } => &[Kind::Attachments, Kind::Endpoints],
            Self { .. } => &[Kind::BpfRoutes],
        }
    }
}

/// A command could not be carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("calc: {0}")]
    Unreachable(#[from] Unreachable),
    #[error("calc: {0}")]
    Rows(#[from] client::RowsError),
    #[error("calc: {0}")]
    Follow(#[from] FollowError),
    #[error("calc does not resync: {0}")]
    Resync(zbus::Error),
    #[error(
        "calc was asked, but has not read the datastore and the kernel back within {0} s: cairnctl \
         status may tell why; it will when it can"
    )]
    Unread(u16),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Carries the command out. Returns what to print, and whether all is well.
pub(crate) async fn run(args: &Args) -> Result<(String, bool), Error> {
    match args.command {
        Command::Status => {
            let ask = async |face| (face, client::properties(&args.runtime_dir, face).await);
            // At once: each may take its time to be given up.
            let faces = tokio::join!(
                ask(Face::Supervisor),
                ask(Face::PrivHelper),
                ask(Face::Calc)
            );
            let faces = <[_; 3]>::from(faces);
            let text = if args.json {
                document(&status::json(&faces))
            } else {
                status::text(&faces)
            };
            Ok((text, status::good(&faces)))
        }
        Command::Routes { follow: true, .. } => {
            match follow::follow(&args.runtime_dir, args.json, crate::write).await {
                Err(FollowError::Print(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                    Ok((String::new(), true))
                }
                Err(error) => Err(error.into()),
                Ok(never) => match never {},
            }
        }
        Command::Routes { tables, .. } => {
            let calc = open_calc(args).await?;
            let mut listings = Vec::new();
            for kind in tables.kinds() {
                let listed = client::rows(&calc, *kind, false).await?;
                listings.push((*kind, listed));
            }
            let text = if args.json {
                document(&rows::json(&listings))
            } else {
                rows::text(&listings)
            };
            Ok((text, true))
        }
        Command::Diff => {
            let calc = open_calc(args).await?;
            let mut listings = Vec::new();
            for kind in rows::KINDS {
                listings.push((kind, client::rows(&calc, kind, true).await?));
            }
            let good = listings.iter().all(|(_, rows)| rows.is_empty());
            Ok((rows::diff(listings, args.json), good))
        }
        Command::Resync { wait } => {
            let calc = open_calc(args).await?;
            let read = client::resync(&calc, Duration::from_secs(wait.into())).await;
            let took = read.map_err(Error::Resync)?.ok_or(Error::Unread(wait))?;
            let took = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            let text = if args.json {
                document(&json!({ "resync": "read", "ms": took }))
            } else {
                format!(
                    "calc has read the datastore and the kernel back in {took} ms, and repairs what \
                     differs\n"
                )
            };
            Ok((text, true))
        }
    }
}

async fn open_calc(args: &Args) -> Result<zbus::Connection, Error> {
    Ok(client::open(&args.runtime_dir, Face::Calc).await?)
}

fn document(value: &Value) -> String {
    format!("{value:#}\n")
}
