//! Prefixes and addresses: few bytes, one form of each, and text for people.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::net::IpAddr;

use ipc_proto::{
    BpfRoute, BpfTarget, FdbKey, Flags, Hop, KernelRoute, Link, Mac, Masquerade, Op, Protocol,
    RouteKey, RouteKind, Table, codec,
};
use ipnet::IpNet;
use proptest::prelude::*;
use serde_json::json;

fn any_prefix() -> impl Strategy<Value = IpNet> {
    (any::<IpAddr>(), 0_u8..=128).prop_map(|(address, len)| {
        let widest = if address.is_ipv4() { 32 } else { 128 };
        IpNet::new(address, len.min(widest)).unwrap()
    })
}

fn link() -> Link {
    Link {
        index: 7,
        name: "cali-a".parse().unwrap(),
    }
}

/// Returns ops that have them alone, in an option and in a list.
fn ops(prefix: IpNet, address: IpAddr, rest: Vec<IpNet>) -> [Op; 5] {
    let fdb = FdbKey {
        link: link(),
        mac: Mac([1; 6]),
    };
    let route = BpfRoute {
        flags: Flags(1),
        target: BpfTarget::NextHop(address),
    };
    let hop = Hop {
        link: link(),
        via: Some(address),
        onlink: true,
    };
    let kernel_route = KernelRoute {
        kind: RouteKind::Unicast(hop),
        protocol: Protocol::Safe,
        source: None,
        mtu: None,
    };
    [
        Op::BpfRoute(prefix, Some(route)),
        Op::KernelRoute(
            RouteKey::new(Table::Main, prefix, 5),
            Some(Box::new(kernel_route)),
        ),
        Op::Fdb(fdb, Some(address)),
        Op::FlowFlush(address),
        Op::Masquerade(Some(Box::new(Masquerade {
            sources: vec![prefix],
            exclusions: rest,
        }))),
    ]
}

/// Returns the bytes of an op that is a prefix, or an address, and nothing after it.
fn bytes(op: u32, head: u8, address: &[u8]) -> Vec<u8> {
    let mut bytes = op.to_le_bytes().to_vec();
    bytes.push(head);
    bytes.extend(address);
    bytes
}

const BPF_ROUTE: u32 = 5;
const FLOW_FLUSH: u32 = 13;

#[test]
fn a_length_that_no_prefix_has_is_refused() {
    for head in 0..=u8::MAX {
        let address = [[10, 1, 2, 3]; 4].concat();
        let (address, len, whole) = match head {
            64.. => (&address[..], head - 64, 128),
            _ => (&address[..4], head, 32),
        };
        // There is no route behind the prefix.
        let route = [bytes(BPF_ROUTE, head, address), vec![0]].concat();
        let flush = bytes(FLOW_FLUSH, head, address);
        for (bytes, valid) in [(route, len <= whole), (flush, len == whole)] {
            let op = codec::decode::<Op>(&bytes);
            assert_eq!(op.is_ok(), valid, "{head}: {op:?}");
            if let Ok(op) = op {
                assert_eq!(codec::encode(&op).unwrap(), bytes);
            }
            // It ends too early.
            for end in 0..bytes.len() {
                assert!(codec::decode::<Op>(&bytes[..end]).is_err());
            }
        }
    }
}

#[test]
fn people_read_text() {
    let (v4, v6) = ("10.1.2.3/24", "fd00::1/64");
    let [bpf, kernel, fdb, flush, masquerade] = ops(
        v4.parse().unwrap(),
        "fd00::2".parse().unwrap(),
        vec![v6.parse().unwrap()],
    );
    let link = json!({"index": 7, "name": "cali-a"});
    let key = json!({"table": "Main", "prefix": v4, "tos": 0, "metric": 5});
    let kind = json!({"Unicast": {"link": link, "via": "fd00::2", "onlink": true}});
    let route = json!({"kind": kind, "protocol": "Safe", "source": null, "mtu": null});
    let fdb_key = json!({"link": link, "mac": [1, 1, 1, 1, 1, 1]});
    for (op, text) in [
        (
            bpf,
            json!({"BpfRoute": [v4, {"flags": 1, "target": {"NextHop": "fd00::2"}}]}),
        ),
        (kernel, json!({"KernelRoute": [key, route]})),
        (fdb, json!({"Fdb": [fdb_key, "fd00::2"]})),
        (flush, json!({"FlowFlush": "fd00::2"})),
        (
            masquerade,
            json!({"Masquerade": {"sources": [v4], "exclusions": [v6]}}),
        ),
    ] {
        assert_eq!(serde_json::to_value(&op).unwrap(), text);
        assert_eq!(serde_json::from_value::<Op>(text).unwrap(), op);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn what_is_encoded_is_decoded_to_the_same(
        prefix in any_prefix(),
        address in any::<IpAddr>(),
        rest in prop::collection::vec(any_prefix(), 0..4),
    ) {
        for op in ops(prefix, address, rest) {
            let bytes = codec::encode(&op).unwrap();
            prop_assert_eq!(codec::decode::<Op>(&bytes).unwrap(), op);
        }
    }
}
