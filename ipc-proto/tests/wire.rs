//! The bytes of every message: golden files, a round trip, and no panic on any input.
//!
//! `CAIRN_UPDATE_GOLDEN=1 cargo test -p ipc-proto` rewrites the golden files. Changed bytes need a
//! new [`VERSION`].
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::{collections::BTreeSet, env, fmt::Write, fs, path::Path};

use ebpf::flags;
use ipc_proto::{
    Ack, AttachmentKey, Batch, BatchId, BpfRoute, BpfTarget, Endpoint, FdbKey, Feed, Flags,
    FlowsDone, Hello, Hook, Hop, Incarnation, KernelRoute, Known, Lane, Lease, Link,
    LinkAddressKey, LinkEvent, LinkProfile, LinkRole, LinkState, Mac, Many, Masquerade,
    NeighbourKey, Observed, Op, OpError, Page, PageRequest, ProgramSettings, Protocol, Rival,
    Rivals, RouteKey, RouteKind, Rule, Step, Sum, Table, Tunnel, TunnelDevice, VERSION, Welcome,
    codec,
    view::{Kind, Reason, Row, Rows, RowsRequest},
};
use proptest::prelude::*;
use serde::{Serialize, de::DeserializeOwned};

fn link() -> Link {
    Link {
        index: 7,
        name: "cali-a".parse().unwrap(),
    }
}

fn mac() -> Mac {
    Mac([0x66, 1, 2, 3, 4, 5])
}

fn kernel_route(kind: RouteKind) -> KernelRoute {
    KernelRoute {
        kind,
        protocol: Protocol::Safe,
        source: None,
        mtu: None,
    }
}

/// Every op kind at least once, both ways where there are two, with both families.
fn ops() -> Vec<Op> {
    let v4 = "10.1.2.0/24".parse().unwrap();
    let v6 = "fd00:1::/64".parse().unwrap();
    let next_hop = "192.0.2.1".parse().unwrap();
    let hop = Hop {
        link: link(),
        via: Some(next_hop),
        onlink: true,
    };
    let key = |prefix| RouteKey::new(Table::Main, prefix, 0);
    let route = |kind| Some(Box::new(kernel_route(kind)));
    let neighbour = NeighbourKey {
        link: link(),
        address: next_hop,
    };
    let fdb = FdbKey {
        link: link(),
        mac: mac(),
    };
    let device = TunnelDevice {
        vni: 4096,
        port: 4789,
        local: "fd00::1".parse().unwrap(),
        parent: link(),
        mac: mac(),
        mtu: 1430,
        address: "fd00:1::2".parse().unwrap(),
    };
    let remote = BpfRoute {
        flags: Flags(flags::IN_POOL | flags::WORKLOAD | flags::TUNNELED | flags::VXLAN),
        target: BpfTarget::NextHop(next_hop),
    };
    let local = BpfRoute {
        flags: Flags(flags::LOCAL | flags::WORKLOAD),
        target: BpfTarget::Link(link()),
    };
    let endpoint = Endpoint {
        host_mac: mac(),
        workload_mac: mac(),
        sources: vec![v4, v6],
    };
    vec![
        Op::LinkSettings(link(), Some(LinkProfile::Workload)),
        Op::LinkSettings(link(), None),
        Op::TunnelDevice(Tunnel::VxlanV6, Some(Box::new(device))),
        Op::TunnelDevice(Tunnel::VxlanV4, None),
        Op::Neighbour(neighbour.clone(), Some(mac())),
        Op::Neighbour(neighbour, None),
        Op::Fdb(fdb.clone(), Some(next_hop)),
        Op::Fdb(fdb, None),
        Op::LinkAddress(link_address(), true),
        Op::LinkAddress(link_address(), false),
        Op::BpfRoute(v4, Some(remote)),
        Op::BpfRoute(v6, Some(local)),
        Op::BpfRoute(v4, None),
        Op::KernelRoute(key(v4), route(RouteKind::Unicast(hop.clone()))),
        Op::KernelRoute(key(v6), route(RouteKind::Multipath(vec![hop]))),
        Op::KernelRoute(key(v4), route(RouteKind::Local(link()))),
        Op::KernelRoute(key(v4), route(RouteKind::Blackhole)),
        Op::KernelRoute(key(v6), None),
        Op::Rule(
            Rule {
                ipv6: true,
                priority: 99,
                mark: Some((1, 3)),
                invert: true,
            },
            true,
        ),
        Op::Attachment(
            AttachmentKey {
                link: link(),
                hook: Hook::Ingress,
            },
            true,
        ),
        Op::Endpoint(link(), Some(Box::new(endpoint))),
        Op::Vtep(next_hop, Some(mac())),
        Op::ProgramSettings(ProgramSettings {
            tunnel: Some(link()),
            vni: 4096,
            port: 4789,
        }),
        Op::Masquerade(Some(Box::new(Masquerade {
            sources: vec![v4],
            exclusions: vec![v6],
        }))),
        Op::FlowFlush(next_hop),
    ]
}

fn link_address() -> LinkAddressKey {
    LinkAddressKey {
        link: link(),
        address: "169.254.1.1".parse().unwrap(),
    }
}

fn link_state() -> LinkState {
    LinkState {
        link: link(),
        role: LinkRole::Tunnel(Tunnel::VxlanV4),
        up: true,
        carrier: true,
        mac: Some(mac()),
        mtu: 1450,
        addresses: vec!["192.0.2.1/24".parse().unwrap()],
    }
}

/// Every kind of observation.
fn observed() -> Vec<Observed> {
    let neighbour = NeighbourKey {
        link: link(),
        address: "fd00::2".parse().unwrap(),
    };
    let throw = Some(kernel_route(RouteKind::Throw));
    vec![
        Observed::Link(link_state()),
        Observed::LinkSettings(link(), LinkProfile::Tunnel),
        Observed::TunnelDevice(Tunnel::VxlanV4, None),
        Observed::Neighbour(neighbour, mac()),
        Observed::Fdb(
            FdbKey {
                link: link(),
                mac: mac(),
            },
            Some("fd00::2".parse().unwrap()),
        ),
        Observed::LinkAddress(link_address(), true),
        Observed::BpfRoute("10.0.0.0/8".parse().unwrap(), Some(BpfRoute::default())),
        Observed::KernelRoute(
            RouteKey::new(Table::Second, "fd00::/16".parse().unwrap(), 0),
            throw,
        ),
        Observed::Endpoint(
            link(),
            Some(Endpoint {
                host_mac: mac(),
                workload_mac: mac(),
                sources: Vec::new(),
            }),
        ),
        Observed::Attachment(AttachmentKey {
            link: link(),
            hook: Hook::Egress,
        }),
        Observed::Rule(Rule {
            ipv6: true,
            priority: 99,
            mark: Some((0x10_0000, 0x10_0000)),
            invert: true,
        }),
        Observed::AsKnown(Many::KernelRoutes),
        Observed::Rivals(Rivals {
            told: vec![Rival {
                key: RouteKey::new(Table::Main, "10.0.0.9/32".parse().unwrap(), 7),
                ours: "10.0.0.0/26".parse().unwrap(),
                way: "protocol static dev eth0".into(),
            }],
            more: 300,
        }),
    ]
}

fn hello() -> Hello {
    let mut sum = Sum::default();
    sum.add(1, &7_u32, Some(&8_u32));
    Hello {
        version: VERSION,
        known: Known {
            seed: 1,
            bpf_v4: None,
            bpf_v6: Some(Sum::default()),
            kernel_routes: Some(sum),
        },
    }
}

/// Every kind of failure.
fn failed() -> Vec<(u32, OpError)> {
    vec![
        (0, OpError::Denied("why".into())),
        (1, OpError::StaleLink(link())),
        (
            2,
            OpError::Kernel {
                call: "RTM_NEWROUTE".into(),
                errno: 101,
            },
        ),
        (3, OpError::NotTried(2)),
        (4, OpError::Unsupported("rule".into())),
    ]
}

/// Compares the encoding with the golden file of this name, and decodes it again.
fn golden<T>(name: &str, message: &T)
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let bytes = codec::encode(message).unwrap();
    let mut hex = String::new();
    for row in bytes.chunks(16) {
        for byte in row {
            write!(hex, "{byte:02x}").unwrap();
        }
        hex.push('\n');
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if env::var_os("CAIRN_UPDATE_GOLDEN").is_some() {
        fs::write(&path, &hex).unwrap();
    }
    let want = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        hex, want,
        "the bytes of {name} have changed: that needs a new VERSION"
    );
    assert_eq!(&codec::decode::<T>(&bytes).unwrap(), message);
}

#[test]
fn the_bytes_of_each_message_are_as_recorded() {
    let (lease, id) = (Lease(0x1122), BatchId(3));
    let mut steps: Vec<Step> = ops()
        .into_iter()
        .map(|op| Step { op, needs: None })
        .collect();
    steps.push(Step {
        op: Op::BpfRoute("::/0".parse().unwrap(), None),
        needs: Some(2),
    });
    let welcome = Welcome {
        version: VERSION,
        incarnation: Incarnation(5),
        lease,
        max_steps: 2048,
        bpf_max_entries: 262_144,
        feed: 17,
    };
    golden("hello", &hello());
    golden("welcome", &welcome);
    golden("page_request", &PageRequest { lease, page: 1 });
    let items = observed();
    golden("page", &Page { items });
    golden(
        "batch",
        &Batch {
            lease,
            lane: Lane::State,
            id,
            steps,
        },
    );
    golden(
        "ack",
        &Ack {
            id,
            failed: failed(),
        },
    );
    golden(
        "flows_done",
        &FlowsDone {
            lease,
            id,
            failed: failed(),
        },
    );
    let events = vec![LinkEvent::Set(link_state()), LinkEvent::Gone(link())];
    let drift = BTreeSet::from([Kind::Fdb, Kind::KernelRoutes]);
    let seq = 18;
    golden("feed", &Feed { seq, events, drift });
    golden(
        "rows_request",
        &RowsRequest {
            kind: Kind::BpfRoutes,
            skip: 4096,
            differing: true,
        },
    );
    let rows = ops().into_iter().zip(observed()).zip(failed());
    let rows = rows.map(|((op, item), (_, why))| Row {
        desired: Some(op),
        actual: Some(item),
        reason: Some(Reason::Failed(why)),
    });
    golden(
        "rows",
        &Rows {
            rows: rows.collect(),
        },
    );
}

#[test]
fn a_bpf_route_is_a_step_of_few_bytes_and_has_one_form() {
    let prefix = "10.1.0.64/26".parse().unwrap();
    let target = |target| {
        let flags = Flags(0x47);
        Some(BpfRoute { flags, target })
    };
    let hop = "172.16.0.1".parse().unwrap();
    for (route, len) in [
        (None, 7),
        (target(BpfTarget::None), 11),
        (target(BpfTarget::NextHop(hop)), 16),
    ] {
        let op = Op::BpfRoute(prefix, route);
        let step = Step {
            op: op.clone(),
            needs: None,
        };
        let bytes = codec::encode(&step).unwrap();
        assert_eq!(bytes.len(), len, "{step:?}");
        assert_eq!(codec::decode::<Step>(&bytes).unwrap(), step);
        let mut unknown = bytes;
        unknown[0] = 5;
        assert!(codec::decode::<Step>(&unknown).is_err());
        let derived = codec::encode(&(0_u8, op, None::<u32>)).unwrap();
        assert!(codec::decode::<Step>(&derived).is_err());
    }
}

#[test]
fn a_message_with_bytes_behind_it_is_refused() {
    let mut bytes = codec::encode(&hello()).unwrap();
    bytes.push(0);
    assert!(matches!(
        codec::decode::<Hello>(&bytes),
        Err(codec::DecodeError::Trailing(1))
    ));
}

#[test]
fn a_length_that_memory_does_not_hold_is_refused() {
    let batch = Batch {
        lease: Lease(1),
        lane: Lane::State,
        id: BatchId(1),
        steps: Vec::new(),
    };
    let mut bytes = codec::encode(&batch).unwrap();
    // The last field is the list of steps, and its length comes first.
    bytes.truncate(bytes.len() - 8);
    bytes.extend((1_u64 << 58).to_le_bytes());
    assert!(matches!(
        codec::decode::<Batch>(&bytes),
        Err(codec::DecodeError::Malformed(_))
    ));
}

#[test]
fn what_is_too_long_is_not_encoded() {
    let long = OpError::Denied("x".repeat(codec::MAX_LEN));
    assert!(
        codec::encode(&Ack {
            id: BatchId(1),
            failed: vec![(0, long)]
        })
        .is_err()
    );
}

#[test]
fn an_ipv6_metric_of_zero_is_what_the_kernel_makes_of_it() {
    let metric =
        |prefix: &str, metric| RouteKey::new(Table::Main, prefix.parse().unwrap(), metric).metric;
    let metrics = [
        metric("fd00::/8", 0),
        metric("fd00::/8", 7),
        metric("10.0.0.0/8", 0),
    ];
    assert_eq!(metrics, [1024, 7, 0]);
}

#[test]
fn flags_are_shown_by_name() {
    let show = |bits| Flags(bits).to_string();
    assert_eq!(show(0), "-");
    assert_eq!(show(0x447), "in-pool,nat-out,workload,tunneled,vxlan");
    assert_eq!(show(0x8000_0001), "in-pool,0x80000000");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever a valid message is turned into, decoding ends in a message or an error.
    #[test]
    fn no_input_panics(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in prop::option::weighted(0.3, any::<prop::sample::Index>()),
    ) {
        let steps = ops().into_iter().map(|op| Step { op, needs: Some(0) }).collect();
        let batch = Batch { lease: Lease(1), lane: Lane::Flows, id: BatchId(2), steps };
        let mut bytes = codec::encode(&batch).unwrap();
        for (place, byte) in flips {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(decoded) = codec::decode::<Batch>(&bytes) {
            // What decodes also encodes, to the same bytes: there is one form of each message.
            prop_assert_eq!(codec::encode(&decoded).unwrap(), bytes);
        }
    }
}
