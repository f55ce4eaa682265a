//! Whatever bytes come as a batch: decoding and checking them does not panic, costs bounded memory,
//! and lets nothing through that the policy file forbids.
//!
//! What is forbidden is stated here again, from the kernel's point of view and by other means than
//! in `policy.rs`. `make test` runs a fixed number of cases, `make fuzz` many more
//! (`CAIRN_FUZZ_RUNS`); each failure is shrunk and printed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[path = "fuzz/batches.rs"]
mod batches;
#[path = "fuzz/oracle.rs"]
mod oracle;
#[path = "fuzz/weight.rs"]
mod weight;

use std::cell::RefCell;

use ipc_proto::{
    Batch, BatchId, Endpoint, Lane, Lease, Link, LinkState, Mac, Op, OpError, Step, codec,
};
use ipnet::IpNet;
use privhelper::{
    links::{Links, Unseen},
    policy::{Policy, Uplinks},
};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

use self::{batches::batch, weight::weight};

/// How many bytes of memory a byte of a batch may cost.
const DEAREST: usize = 4;
/// What any batch may cost besides.
const FLOOR: usize = 2 << 20;

/// Runs so many cases, or as many as `CAIRN_FUZZ_RUNS` says.
fn runner(cases: u32) -> TestRunner {
    let asked = std::env::var("CAIRN_FUZZ_RUNS").ok();
    TestRunner::new(Config {
        cases: asked.map_or(cases, |runs| runs.parse().unwrap()),
        failure_persistence: None,
        ..Config::default()
    })
}

/// The interfaces of the host: name, number, addresses.
const LINKS: [(&str, u32, &[&str]); 7] = [
    ("lo", 1, &["127.0.0.1/8", "::1/128"]),
    ("eth0", 2, &["192.0.2.1/24", "2001:db8::1/64"]),
    ("cali1", 3, &[]),
    ("vxlan.calico", 4, &["10.1.0.0/32"]),
    ("vxlan-v6.calico", 5, &["fd00:1::/128"]),
    ("br0", 6, &[]),
    ("tunl0", 7, &["10.9.0.1/32"]),
];

fn policy(kind: u8) -> Policy {
    let net = |text: &str| text.parse::<IpNet>().unwrap();
    let wide = Policy {
        workload_prefixes: vec!["cali".into()],
        tunnel_v4: "vxlan.calico".parse().unwrap(),
        tunnel_v6: "vxlan-v6.calico".parse().unwrap(),
        uplinks: Uplinks::Auto,
        excluded: Vec::new(),
        device_protocol: 3,
        safe_protocol: 80,
        former_protocols: Vec::new(),
        second_table: None,
        remove_external_routes: true,
        allow: Vec::new(),
    };
    match kind % 3 {
        0 => wide,
        1 => Policy {
            allow: vec![net("10.0.0.0/8"), net("fd00::/16"), net("127.0.0.0/8")],
            ..wide
        },
        _ => Policy {
            second_table: Some(77),
            uplinks: Uplinks::Listed(vec!["br0".parse().unwrap()]),
            ..wide
        },
    }
}

fn links(policy: &Policy) -> Links {
    let mut links = Links::default();
    let states = LINKS.map(|(name, index, addresses)| {
        let addresses: Vec<IpNet> = addresses.iter().map(|own| own.parse().unwrap()).collect();
        let name = name.parse().unwrap();
        LinkState {
            role: policy.role(&name, &addresses),
            link: Link { index, name },
            up: true,
            carrier: true,
            mac: None,
            mtu: 1500,
            addresses,
        }
    });
    links.update(states, &Unseen::default());
    links
}

/// How much of what was tried got how far.
#[derive(Clone, Copy, Debug, Default)]
struct Reached {
    decoded: usize,
    permitted: usize,
    denied: usize,
}

/// Does with bytes what the helper does, but for the kernel's part.
fn attempt(bytes: &[u8], kind: u8, reached: &mut Reached) -> Result<(), TestCaseError> {
    let batch = match codec::decode::<Batch>(bytes) {
        Ok(batch) => batch,
        Err(error) => {
            // It is told to the client.
            prop_assert!(error.to_string().len() < 500);
            return Ok(());
        }
    };
    reached.decoded += 1;
    prop_assert!(weight(&batch) <= FLOOR + DEAREST * bytes.len());
    prop_assert!(codec::encode(&batch).is_ok_and(|again| again == bytes));
    let policy = policy(kind);
    let links = links(&policy);
    for lane in [Lane::State, Lane::Flows] {
        for step in &batch.steps {
            match policy.check(lane, step.op.clone(), &links) {
                Ok(permitted) => {
                    prop_assert_eq!(permitted.op(), &step.op);
                    reached.permitted += 1;
                    let forbidden = oracle::forbidden(&policy, &links, lane, &step.op);
                    prop_assert_eq!(forbidden, None, "{:?}", step.op);
                }
                Err(OpError::Denied(why) | OpError::Unsupported(why)) => {
                    reached.denied += 1;
                    prop_assert!(why.len() < 500, "{why}");
                }
                Err(OpError::StaleLink(link)) => {
                    reached.denied += 1;
                    prop_assert!(links.get(&link).is_none());
                }
                Err(other @ (OpError::Kernel { .. } | OpError::NotTried(_))) => {
                    return Err(TestCaseError::fail(format!("{other:?}")));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn any_bytes_are_a_batch_or_an_error() {
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        // A lease, a lane, a number and a count that is plausible, or not.
        (any::<u32>(), prop::collection::vec(0_u8..20, 0..400)).prop_map(|(count, tail)| {
            let mut bytes = vec![0; 20];
            bytes.extend(u64::from(count >> (count % 32)).to_le_bytes());
            bytes.extend(tail);
            bytes
        }),
    ];
    let reached = RefCell::new(Reached::default());
    runner(5_000)
        .run(&(bytes, any::<u8>()), |(bytes, kind)| {
            attempt(&bytes, kind, &mut reached.borrow_mut())
        })
        .unwrap();
}

#[test]
fn nothing_that_is_let_through_is_outside_the_policy() {
    let reached = RefCell::new(Reached::default());
    let mangled = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    runner(10_000)
        .run(
            &(batch(), mangled, any::<u8>()),
            |(batch, mangled, kind)| {
                let mut bytes = codec::encode(&batch).unwrap();
                attempt(&bytes, kind, &mut reached.borrow_mut())?;
                for (at, byte) in mangled {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
                attempt(&bytes, kind, &mut reached.borrow_mut())
            },
        )
        .unwrap();
    // A run that lets nothing through proves nothing.
    let reached = reached.into_inner();
    let enough = reached.decoded > 0 && reached.permitted * 30 > reached.denied;
    assert!(enough, "{reached:?}");
}

/// The dearest batches that there are, as far as bytes of memory for each byte go.
#[test]
fn a_batch_of_many_small_steps_is_refused_before_they_have_places() {
    let of = |count: usize, step: &[u8]| {
        let mut bytes = vec![0; 20];
        bytes.extend(u64::try_from(count).unwrap().to_le_bytes());
        bytes.extend(step.repeat(count));
        bytes
    };
    // Masquerading without any, which needs nothing.
    let step = [&[0][..], &12_u32.to_le_bytes(), &[0, 0]].concat();
    let most = Batch::MAX_STEPS;
    let batch: Batch = codec::decode(&of(most, &step)).unwrap();
    assert!(weight(&batch) < FLOOR);
    for count in [most + 1, (codec::MAX_LEN - 28) / step.len()] {
        let error = codec::decode::<Batch>(&of(count, &step)).unwrap_err();
        assert!(error.to_string().contains("at most 4096"), "{error}");
    }
}

#[test]
fn a_batch_of_long_lists_has_no_more_places_than_elements() {
    let endpoint = Endpoint {
        host_mac: Mac([0; 6]),
        workload_mac: Mac([0; 6]),
        // More than there is room for at first.
        sources: vec!["10.0.0.0/8".parse().unwrap(); 60_000],
    };
    let (name, index) = ("cali1".parse().unwrap(), 3);
    let step = Step {
        op: Op::Endpoint(Link { index, name }, Some(Box::new(endpoint))),
        needs: None,
    };
    let batch = Batch {
        lease: Lease(1),
        lane: Lane::State,
        id: BatchId(1),
        steps: vec![step; 3],
    };
    let bytes = codec::encode(&batch).unwrap();
    let decoded: Batch = codec::decode(&bytes).unwrap();
    assert!(weight(&decoded) <= FLOOR + DEAREST * bytes.len());
}
