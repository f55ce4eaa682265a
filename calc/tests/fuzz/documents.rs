//! Resource documents with bytes of theirs changed, taken out, repeated and put elsewhere.

use std::{fs, path::Path};

use calc::datastore::Store;
use proptest::{collection::vec, prelude::*, sample::Index};

use super::{Cores, OWN, runner};

/// What a document may hold in the wrong place.
const TOKENS: [&str; 24] = [
    "null",
    "~",
    "[]",
    "{}",
    "-1",
    "4294967296",
    "1e400",
    "''",
    "\"",
    "\n---\n",
    "&a [*a, *a]",
    "0.0.0.0/0",
    "::/0",
    "::ffff:10.0.0.1",
    "10.0.0.1/33",
    "255.255.255.255",
    "fe80::1%eth0",
    "host:",
    "virtual:load-balancer",
    "all()",
    "!(a == 'b' && has(c))",
    "!!binary AA==",
    "\u{feff}",
    "\0",
];

/// Of a kind that the cluster has none of.
const MIGRATION: &str = "\
apiVersion: projectcalico.org/v3
kind: LiveMigration
metadata: {name: mig-1, namespace: shop}
spec:
  source: {workload: {orchestratorID: k8s, workloadID: shop/cache-0}}
  target: {selector: \"app == 'web' && !has(old) || name in {'a', 'b'}\"}
";

#[derive(Clone, Debug)]
enum Change {
    Byte(Index, u8),
    Cut(Index, u8),
    Repeat(Index, u8),
    Token(Index, Index),
    /// Part of another file.
    Graft(Index, Index, Index, u16),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        (at(), any::<u8>()).prop_map(|(at, len)| Change::Cut(at, len)),
        (at(), any::<u8>()).prop_map(|(at, len)| Change::Repeat(at, len)),
        (at(), at()).prop_map(|(at, token)| Change::Token(at, token)),
        (at(), at(), at(), any::<u16>())
            .prop_map(|(at, file, from, len)| Change::Graft(at, file, from, len)),
    ]
}

/// The part of `bytes` at a place, so many at most.
fn part(bytes: &[u8], at: Index, len: usize) -> std::ops::Range<usize> {
    let start = at.index(bytes.len() + 1);
    start..bytes.len().min(start + len)
}

fn apply(change: &Change, bytes: &mut Vec<u8>, corpus: &[(String, Vec<u8>)]) {
    match *change {
        Change::Byte(at, byte) => {
            let part = part(bytes, at, 1);
            bytes[part].fill(byte);
        }
        Change::Cut(at, len) => drop(bytes.drain(part(bytes, at, len.into()))),
        Change::Repeat(at, len) => {
            let part = part(bytes, at, len.into());
            let copy = bytes[part.clone()].to_vec();
            bytes.splice(part.end..part.end, copy);
        }
        Change::Token(at, token) => {
            let at = part(bytes, at, 0).start;
            bytes.splice(at..at, TOKENS[token.index(TOKENS.len())].bytes());
        }
        Change::Graft(at, file, from, len) => {
            let (_, other) = &corpus[file.index(corpus.len())];
            let graft = other[part(other, from, len.into())].to_vec();
            let at = part(bytes, at, 0).start;
            bytes.splice(at..at, graft);
        }
    }
}

/// The files of the recorded cluster.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/yaml");
    let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect();
    files.push((
        "livemigrations.yaml".to_owned(),
        MIGRATION.as_bytes().to_vec(),
    ));
    files.sort();
    files
}

#[test]
fn no_document_stops_the_core_or_outlives_its_repair() {
    let corpus = corpus();
    let mut right = Cores::default();
    let mut store = Store::new(OWN);
    for (name, bytes) in &corpus {
        store.set(name, bytes);
    }
    right.take(store.update().unwrap().events);
    assert!(right.desired.len() > 30, "the cluster leads to something");

    // A file, and what is done to it.
    let step = (any::<Index>(), vec(change(), 1..6));
    runner(400)
        .run(&(vec(step, 1..4), any::<bool>()), |(steps, fresh)| {
            let mut cores = Cores::default();
            let mut store = Store::new(OWN);
            if !fresh {
                for (name, bytes) in &corpus {
                    store.set(name, bytes);
                }
                cores.take(store.update().unwrap().events);
            }
            for (file, changes) in steps {
                let (name, bytes) = &corpus[file.index(corpus.len())];
                let mut bytes = bytes.clone();
                for change in &changes {
                    apply(change, &mut bytes, &corpus);
                }
                store.set(name, &bytes);
                if let Some(update) = store.update() {
                    cores.take(update.events);
                }
            }
            for (name, bytes) in &corpus {
                store.set(name, bytes);
            }
            if let Some(update) = store.update() {
                cores.take(update.events);
            }
            prop_assert_eq!(&cores.desired, &right.desired);
            Ok(())
        })
        .unwrap();
}
