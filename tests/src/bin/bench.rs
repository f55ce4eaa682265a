//! `make bench`: prints the figures and writes them to `target/bench.json`. With names of groups, it
//! measures these alone and writes nothing.
#![expect(clippy::print_stdout, reason = "it is there to be read")]
#![expect(
    clippy::expect_used,
    reason = "a bench that cannot go on says where it stopped"
)]

use std::{path::Path, process::ExitCode};

use tests::{
    bench::{self, Metric, bpf, calc, flows, kernel},
    isolate,
};

fn main() -> ExitCode {
    let groups: Vec<String> = std::env::args().skip(1).collect();
    if groups.first().is_some_and(|first| first == calc::MEMORY) {
        println!("{}", calc::own_memory());
        return ExitCode::SUCCESS;
    }
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
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let asked = |group: &str| groups.is_empty() || groups.iter().any(|asked| asked == group);
    let mut metrics = Vec::new();
    if asked("calc") {
        metrics.extend(calculation());
    }
    if asked("e2e") {
        metrics.extend(runtime.block_on(end_to_end()));
    }
    if asked("conntrack") {
        metrics.extend(runtime.block_on(flows::flushes(5)));
    }
    if asked("kernel") {
        metrics.extend(runtime.block_on(kernel::routes()));
    }
    print!("{}", bench::table(&metrics));
    if groups.is_empty() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench.json");
        bench::write(&path, &metrics).expect("target/ can be written");
    }
    ExitCode::SUCCESS
}

fn calculation() -> Vec<Metric> {
    vec![
        calc::feed_and_calculate(10_000, 21),
        calc::feed_and_calculate(100_000, 11),
        calc::feed_and_calculate(250_000, 7),
        calc::resolver(10_000, 21),
        calc::resolver(100_000, 11),
        calc::one_change(),
        calc::memory(),
    ]
}

async fn end_to_end() -> Vec<Metric> {
    let mut metrics = bpf::initial(10_000, 9, false).await;
    metrics.extend(bpf::initial(100_000, 5, false).await);
    metrics.extend(bpf::initial(250_000, 5, true).await);
    metrics
}
