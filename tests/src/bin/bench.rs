//! `make bench`: prints the figures and writes them to `target/bench.json`, `docs/bench.md` and README. With
//! the beginnings of names, such as `e2e` or `e2e.storm`, it measures these alone and writes nothing.
#![expect(clippy::print_stdout, reason = "it is there to be read")]
#![expect(
    clippy::expect_used,
    reason = "a bench that cannot go on says where it stopped"
)]

use std::{fs, path::Path, process::ExitCode};

use tests::{
    bench::{self, Metric, bpf, calc, flows, flushing, kernel, processes},
    isolate, world,
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
    world::show_logs_on_panic(true);
    let metrics = runtime.block_on(measure(&groups));
    print!("{}", bench::table(&metrics));
    if groups.is_empty() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench.json");
        bench::write(&path, &metrics).expect("target/ can be written");
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/bench.md");
        fs::write(page, bench::markdown(&metrics)).expect("docs/ can be written");
        let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
        let text = fs::read_to_string(&readme).expect("README can be read");
        let text = bench::in_readme(&text, &metrics);
        fs::write(readme, text).expect("README can be written");
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

async fn measure(groups: &[String]) -> Vec<Metric> {
    let asked = |name: &str| {
        let asked = |group: &String| name.starts_with(group.as_str()) || group.starts_with(name);
        groups.is_empty() || groups.iter().any(asked)
    };
    let mut metrics = Vec::new();
    // First of all: it is what a process does that has done nothing else.
    if asked("e2e.bpf_initial") {
        metrics.push(bpf::initial(10_000, 9).await);
        metrics.push(bpf::initial(100_000, 9).await);
        metrics.push(bpf::initial(250_000, 9).await);
    }
    if asked("calc") {
        metrics.extend(calculation());
    }
    if asked("e2e.bpf_resync_noop") {
        metrics.push(bpf::resync_noop(100_000, 11).await);
        metrics.push(bpf::resync_noop(250_000, 7).await);
    }
    if asked("e2e.kernel_resync_noop") {
        metrics.push(kernel::resync_noop(7).await);
    }
    if asked("e2e.one_change.") {
        metrics.push(bpf::one_change("idle", 10_000, 0.05).await);
        metrics.push(bpf::one_change("at_250k", 250_000, 2.35).await);
    }
    if asked("e2e.one_change_during_flush") {
        metrics.push(flushing::one_change().await);
    }
    if asked("conntrack") {
        metrics.extend(flows::flushes(5).await);
    }
    if asked("e2e.rss") || asked("e2e.restart_full_map") {
        metrics.extend(processes::full_map().await);
    }
    if asked("e2e.storm") {
        metrics.extend(processes::storm().await);
    }
    if asked("idle.cpu") {
        metrics.push(processes::idle().await);
    }
    if asked("kernel") {
        metrics.extend(kernel::routes().await);
    }
    metrics
}
