//! `make bench`: prints the figures and writes them to `target/bench.json`.
#![expect(clippy::print_stdout, reason = "it is there to be read")]
#![expect(
    clippy::expect_used,
    reason = "a bench that cannot go on says where it stopped"
)]

use std::{path::Path, process::ExitCode};

use tests::{
    bench::{self, bpf, flows},
    isolate,
};

fn main() -> ExitCode {
    if !isolate::inside() {
        return match isolate::rerun() {
            Ok(status) if status.success() => ExitCode::SUCCESS,
            Ok(status) => {
                println!("bench: failed inside its namespaces: {status}");
                ExitCode::FAILURE
            }
            Err(error) => {
                println!("bench: cannot make namespaces (as root?): {error}");
                ExitCode::FAILURE
            }
        };
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let metrics = runtime.expect("a runtime").block_on(async {
        let mut metrics = bpf::initial(10_000, 9, false).await;
        metrics.extend(bpf::initial(100_000, 5, false).await);
        metrics.extend(bpf::initial(250_000, 5, true).await);
        metrics.extend(flows::flushes(5).await);
        metrics
    });
    print!("{}", bench::table(&metrics));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench.json");
    bench::write(&path, &metrics).expect("target/ can be written");
    ExitCode::SUCCESS
}
