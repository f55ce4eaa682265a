//! What goes straight from pod to pod, how it arrives, and what is left to the stack.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use ipc_proto::Op;
use tests::{
    netns::{Netns, shell},
    packets::{PORT, Pod, WORKLOAD},
    ping, talk,
    wait::PATIENCE,
};

use super::test;

/// How long to wait for an answer that is not to come.
const A_SECOND: Duration = Duration::from_secs(1);

const FORWARD: &str = "sysctl -qw net.ipv4.ip_forward";
const FORWARD_V6: &str = "sysctl -qw net.ipv6.conf.all.forwarding";

/// Returns what `ping` prints, with these options, of an answer or the lack of one.
fn ping_with(from: &Netns, to: IpAddr, options: &str) -> String {
    let patience = PATIENCE.as_secs().to_string();
    let mut ping = from.command("ping");
    ping.args(["-n", "-c", "1", "-W", &patience])
        .args(options.split_whitespace());
    String::from_utf8(ping.arg(to.to_string()).output().unwrap().stdout).unwrap()
}

fn count(counts: &BTreeMap<String, u64>, verdict: &str) -> u64 {
    counts.get(verdict).copied().unwrap_or(0)
}

#[test]
fn packets_between_pods_of_the_node_do_not_need_the_stack() {
    test(
        "straight::packets_between_pods_of_the_node_do_not_need_the_stack",
        |mut node| async move {
            shell(&format!("{FORWARD}=0 && {FORWARD_V6}=0"));
            for address in node.pods[1].addresses {
                assert!(
                    !ping::once(&node.pods[0].netns, address, A_SECOND),
                    "the stack forwards"
                );
            }
            node.attach([WORKLOAD; 2]).await;
            let counts = node
                .counts(|[one, two]| {
                    for address in two.addresses {
                        assert!(ping::once(&one.netns, address, PATIENCE), "{address}");
                        let answer = talk::ask(&one.netns, address, PORT, PATIENCE);
                        assert_eq!(answer.as_deref(), Some("two"), "TCP {address}");
                        let answer = talk::ask_udp(&one.netns, address, PORT, PATIENCE);
                        assert_eq!(answer.unwrap(), "two", "UDP {address}");
                    }
                })
                .await;
            assert!(
                count(&counts, "redirected") >= 2 * (2 + 2 + 6),
                "{counts:?}"
            );
        },
    );
}

/// The sum of 16-bit words of a header with a right checksum.
fn sum(header: &[u8]) -> u32 {
    let words = header
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    (sum & 0xffff) + (sum >> 16)
}

#[test]
fn a_packet_arrives_with_one_hop_less_and_as_from_the_host() {
    test(
        "straight::a_packet_arrives_with_one_hop_less_and_as_from_the_host",
        |mut node| async move {
            node.attach([WORKLOAD; 2]).await;
            let [one, two] = &node.pods;
            let frames = two.listen();
            for hops in [2_u8, 64, 255] {
                for address in two.addresses {
                    // -t is for both families.
                    let said = ping_with(&one.netns, address, &format!("-t {hops}"));
                    assert!(said.contains("1 received"), "{said}");
                    let (left, macs) = frames.find(|frame| {
                        let (macs, packet) = (&frame[..12], frame.get(14..)?);
                        let (left, echo) = match packet[0] >> 4 {
                            4 => {
                                assert_eq!(sum(&packet[..20]), 0xffff, "checksum of {packet:?}");
                                (packet[8], packet[9] == 1 && packet[20] == 8)
                            }
                            6 => (packet[7], packet[6] == 58 && packet[40] == 128),
                            _ => return None,
                        };
                        echo.then(|| (left, macs.to_vec()))
                    });
                    assert_eq!(left, hops - 1, "{address}");
                    let wanted = [[0x0a, 0, 0, 0, 0, 3], [0xee; 6]].concat();
                    assert_eq!(macs, wanted, "{address}");
                }
            }
        },
    );
}

/// A packet that the programs leave to the stack: what is done first, what is sent, what must be
/// heard of it, and the verdict.
struct Case {
    prepare: &'static str,
    send: fn(&[Pod; 2]) -> String,
    heard: &'static str,
    verdict: &'static str,
}

const fn case(
    prepare: &'static str,
    send: fn(&[Pod; 2]) -> String,
    heard: &'static str,
    verdict: &'static str,
) -> Case {
    Case {
        prepare,
        send,
        heard,
        verdict,
    }
}

/// Sends from the first pod to the second: with this much more than IPv4, IPv6, or both.
fn to_two(pods: &[Pod; 2], family: usize, options: &str) -> String {
    ping_with(&pods[0].netns, pods[1].addresses[family], options)
}

const CASES: [Case; 13] = [
    case(
        "",
        |pods| to_two(pods, 0, "-t 1"),
        "Time to live exceeded",
        "expired",
    ),
    case("", |pods| to_two(pods, 1, "-t 1"), "Hop limit", "expired"),
    case(
        "",
        |pods| to_two(pods, 0, "-s 4000"),
        "1 received",
        "fragment",
    ),
    case(
        "",
        |pods| to_two(pods, 1, "-s 4000"),
        "1 received",
        "fragment",
    ),
    // The stack adds its address to the list of hops.
    case(
        "ip address add 192.0.2.7/32 dev lo",
        |pods| to_two(pods, 0, "-R"),
        "RR:",
        "options",
    ),
    case(
        "ip address add 192.0.2.8/32 dev lo",
        |[one, _]| ping_with(&one.netns, [192, 0, 2, 8].into(), ""),
        "1 received",
        "elsewhere",
    ),
    case(
        "",
        |[one, _]| ping_with(&one.netns, [192, 0, 2, 99].into(), "-W 1"),
        "0 received",
        "elsewhere",
    ),
    // A way out of the pod's own that the node does not know to be the pod's.
    case(
        "ip -n one address add 10.9.9.9/32 dev lo",
        |pods| to_two(pods, 0, "-W 1 -I 10.9.9.9"),
        "0 received",
        "foreign-source",
    ),
    case(
        "ip -n one address add fd00:9::9/128 dev lo",
        |pods| to_two(pods, 1, "-W 1 -I fd00:9::9"),
        "0 received",
        "foreign-source",
    ),
    case(
        "ip link set cali-two mtu 1300",
        |pods| to_two(pods, 0, "-s 1300 -M do"),
        "mtu = 1300",
        "too-large",
    ),
    case(
        "ip link set cali-two mtu 1300",
        |pods| to_two(pods, 1, "-s 1300 -M do"),
        "mtu=1300",
        "too-large",
    ),
    // An ICMP error may tell of a flow that the stack translates.
    case(
        "",
        |[one, two]| {
            format!(
                "{:?}",
                talk::ask_udp(&one.netns, two.addresses[0], 9, PATIENCE)
                    .unwrap_err()
                    .kind()
            )
        },
        "ConnectionRefused",
        "protocol",
    ),
    case(
        "ip -n one neigh flush dev eth0 nud permanent && ip -n one neigh add 169.254.1.1 lladdr 02:00:00:00:00:99 nud permanent dev eth0",
        |pods| to_two(pods, 0, "-W 1"),
        "0 received",
        "frame",
    ),
];

#[test]
fn everything_else_is_the_stacks_and_works_as_without_programs() {
    test(
        "straight::everything_else_is_the_stacks_and_works_as_without_programs",
        |mut node| async move {
            node.attach([WORKLOAD; 2]).await;
            for Case {
                prepare,
                send,
                heard,
                verdict,
            } in CASES
            {
                shell(prepare);
                let mut said = String::new();
                let counts = node.counts(|pods| said = send(pods)).await;
                assert!(said.contains(heard), "{verdict}: {said}");
                assert!(count(&counts, verdict) > 0, "{verdict}: {counts:?}");
            }
        },
    );
}

#[test]
fn a_pod_that_opted_out_gets_and_sends_nothing_straight() {
    test(
        "straight::a_pod_that_opted_out_gets_and_sends_nothing_straight",
        |mut node| async move {
            node.attach([WORKLOAD, WORKLOAD | ebpf::flags::SKIP_INGRESS_REDIRECT])
                .await;
            let counts = node.counts(both_ways).await;
            assert_eq!(count(&counts, "redirected"), 0, "{counts:?}");
            assert!(count(&counts, "opted-out") > 0, "{counts:?}");
        },
    );
}

#[test]
fn a_pod_of_unknown_hardware_address_is_served_by_the_stack() {
    test(
        "straight::a_pod_of_unknown_hardware_address_is_served_by_the_stack",
        |mut node| async move {
            node.attach([WORKLOAD; 2]).await;
            let unknown = Op::Endpoint(node.pods[1].link.clone(), None);
            node.calc.must_apply([unknown]).await;
            let counts = node.counts(both_ways).await;
            assert_eq!(count(&counts, "redirected"), 0, "{counts:?}");
            assert!(count(&counts, "no-endpoint") > 0, "{counts:?}");
        },
    );
}

fn both_ways([one, two]: &[Pod; 2]) {
    for (from, to) in [(one, two), (two, one)] {
        for address in to.addresses {
            assert!(ping::once(&from.netns, address, PATIENCE), "{address}");
        }
    }
}
