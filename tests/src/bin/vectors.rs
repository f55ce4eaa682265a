//! Compares what Cairn does with recorded behaviour of the reference implementation.
//!
//! Exits with 0 if nothing differs but by named rules, 1 if something does, and 2 if the vectors
//! cannot be run.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it is there to be read"
)]

use std::{env, path::PathBuf, process::ExitCode};

use tests::{
    isolate,
    vectors::{self, Error, Kind},
};

fn main() -> ExitCode {
    let mut args = env::args().skip(1);
    let kind = args.next();
    let places: Vec<PathBuf> = args.map(PathBuf::from).collect();
    let Some(kind) = kind.filter(|_| !places.is_empty()) else {
        eprintln!("vectors: say which: vectors bpf|calc|routetable DIR...");
        return ExitCode::from(2);
    };
    let kind: Result<Kind, Error> = kind.parse();
    if matches!(kind, Ok(Kind::Routetable)) && !isolate::inside() {
        return rerun();
    }
    match kind.and_then(|kind| vectors::run(kind, &places)) {
        Ok(report) => {
            print!("{report}");
            println!("{}", report.verdict());
            if report.mismatches.is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("vectors: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs this again where it may make network namespaces.
fn rerun() -> ExitCode {
    match isolate::rerun() {
        Ok(status) => {
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            code.map_or(ExitCode::from(2), ExitCode::from)
        }
        Err(error) => {
            eprintln!("vectors: cannot make namespaces, which takes root: {error}");
            ExitCode::from(2)
        }
    }
}
