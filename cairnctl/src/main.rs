//! `cairnctl`: shows what Cairn does on this node, and asks it to look again. It works without a
//! bus, through the sockets in the runtime directory, and changes nothing itself.

mod client;
mod command;
mod follow;
mod rows;
mod status;
mod table;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;

use self::command::Args;

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(command::Error::from)
        .and_then(|runtime| runtime.block_on(command::run(&args)))
        .and_then(|(text, good)| {
            print(&text)?;
            Ok(good)
        });
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // With stderr gone there is nobody left to tell.
            drop(writeln!(io::stderr(), "cairnctl: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes to standard output.
fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Writes to standard output. Whoever has read enough may go.
fn print(text: &str) -> io::Result<()> {
    match write(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
