//! Whatever comes in, the core goes on: no panic, and no trace of what is no longer there.
//!
//! `make test` runs a fixed number of cases, `make fuzz` many more (`CAIRN_FUZZ_RUNS`); each failure
//! is shrunk and printed.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on panics"
)]

#[path = "fuzz/documents.rs"]
mod documents;
#[path = "fuzz/scripts.rs"]
mod scripts;

use std::collections::BTreeMap;

use calc::{Calculator, Reconciler, event::Event};
use proptest::test_runner::{Config, TestRunner};

/// The node that all is computed for: one of the recorded cluster.
const OWN: &str = "node-1";

/// Runs so many cases, or as many as `CAIRN_FUZZ_RUNS` says.
fn runner(cases: u32) -> TestRunner {
    let asked = std::env::var("CAIRN_FUZZ_RUNS").ok();
    TestRunner::new(Config {
        cases: asked.map_or(cases, |runs| runs.parse().unwrap()),
        failure_persistence: None,
        ..Config::default()
    })
}

/// The cores, fed with events.
#[derive(Debug)]
struct Cores {
    calculator: Calculator,
    reconciler: Reconciler,
    /// What the ops add up to, by key, as text.
    desired: BTreeMap<String, String>,
}

impl Default for Cores {
    fn default() -> Self {
        Self {
            calculator: Calculator::new(OWN.to_owned()),
            reconciler: Reconciler::default(),
            desired: BTreeMap::new(),
        }
    }
}

impl Cores {
    fn take(&mut self, events: Vec<Event>) {
        self.calculator.handle_all(events);
        for op in self.calculator.resolve() {
            let (key, value) = op.parts();
            match value {
                Some(value) => self.desired.insert(key, value),
                None => self.desired.remove(&key),
            };
            self.reconciler.want(op).unwrap();
        }
        // What operators see of it must not fail either.
        let _seen = (
            self.calculator.obstacles(),
            self.calculator.tunnels().count(),
            self.calculator.host_addresses().count(),
        );
    }
}

/// An op as text.
trait Parts {
    fn parts(&self) -> (String, Option<String>);
}

impl Parts for ipc_proto::Op {
    fn parts(&self) -> (String, Option<String>) {
        fn parts(
            kind: &str,
            key: impl std::fmt::Debug,
            value: Option<impl std::fmt::Debug>,
        ) -> (String, Option<String>) {
            (
                format!("{kind} {key:?}"),
                value.map(|value| format!("{value:?}")),
            )
        }
        match self {
            Self::LinkSettings(key, value) => parts("link", key, *value),
            Self::TunnelDevice(key, value) => parts("device", key, value.as_ref()),
            Self::Neighbour(key, value) => parts("neighbour", key, *value),
            Self::Fdb(key, value) => parts("fdb", key, *value),
            Self::LinkAddress(key, value) => parts("address", key, value.then_some(())),
            Self::BpfRoute(key, value) => parts("bpf", key, value.as_ref()),
            Self::KernelRoute(key, value) => parts("route", key, value.as_ref()),
            Self::Rule(key, value) => parts("rule", key, value.then_some(())),
            Self::Attachment(key, value) => parts("program", key, value.then_some(())),
            Self::Endpoint(key, value) => parts("endpoint", key, value.as_ref()),
            Self::Vtep(key, value) => parts("vtep", key, *value),
            Self::ProgramSettings(value) => parts("settings", (), Some(value)),
            Self::Masquerade(value) => parts("masquerade", (), value.as_ref()),
            Self::FlowFlush(key) => parts("flush", key, Some(())),
        }
    }
}
