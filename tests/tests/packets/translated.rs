//! Flows that the stack translates, here by nftables: a service's address to a pod of the node.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv6Addr, TcpListener, TcpStream, UdpSocket},
};

use ipc_proto::Hook;
use tests::{
    netns::shell,
    packets::{PORT, Pod, WORKLOAD},
    ping, talk,
    wait::PATIENCE,
};

use super::test;

/// The addresses of a service whose only backend is the second pod.
const SERVICE: [&str; 2] = ["10.96.0.10", "fd00:96::10"];

pub(super) fn service() -> [IpAddr; 2] {
    SERVICE.map(|address| address.parse().unwrap())
}

pub(super) fn translate([_, two]: &[Pod; 2]) {
    for ((family, service), pod) in ["ip", "ip6"].into_iter().zip(SERVICE).zip(two.addresses) {
        shell(&format!(
            "nft 'add table {family} service; \
             add chain {family} service dnat_in {{ type nat hook prerouting priority -100; }}; \
             add rule {family} service dnat_in {family} daddr {service} dnat to {pod}'"
        ));
    }
}

#[test]
fn a_service_leads_to_a_pod_of_the_same_node_and_back() {
    test(
        "translated::a_service_leads_to_a_pod_of_the_same_node_and_back",
        |mut node| async move {
            translate(&node.pods);
            node.attach([WORKLOAD; 2]).await;
            let counts = node
                .counts(|[one, two]| {
                    for address in service() {
                        let answer = talk::ask(&one.netns, address, PORT, PATIENCE);
                        assert_eq!(answer.as_deref(), Some("two"), "TCP {address}");
                        let answer = talk::ask_udp(&one.netns, address, PORT, PATIENCE);
                        assert_eq!(answer.unwrap(), "two", "UDP {address}");
                        assert!(ping::once(&one.netns, address, PATIENCE), "ping {address}");
                    }
                    // What is not to the service goes straight all the same.
                    for address in two.addresses {
                        let answer = talk::ask(&one.netns, address, PORT, PATIENCE);
                        assert_eq!(answer.as_deref(), Some("two"), "{address}");
                    }
                })
                .await;
            assert!(counts["stack-flow"] >= 2 * (3 + 1 + 1), "{counts:?}");
            assert!(counts["redirected"] >= 2 * 6, "{counts:?}");
        },
    );
}

/// Only the stack can tell the answers of the two apart.
#[test]
fn a_port_may_speak_to_a_pod_by_its_address_and_by_a_service() {
    test(
        "translated::a_port_may_speak_to_a_pod_by_its_address_and_by_a_service",
        |mut node| async move {
            translate(&node.pods);
            node.attach([WORKLOAD; 2]).await;
            let [one, two] = &node.pods;
            for (pod, service) in two.addresses.into_iter().zip(service()) {
                let talk = move || {
                    let own = if pod.is_ipv4() {
                        "0.0.0.0:5555"
                    } else {
                        "[::]:5555"
                    };
                    let socket = UdpSocket::bind(own).unwrap();
                    socket.set_read_timeout(Some(PATIENCE)).unwrap();
                    [pod, service, pod, service].map(|to| {
                        socket.send_to(b"?", (to, PORT)).unwrap();
                        let answer = socket.recv_from(&mut [0; 64]);
                        (to, answer.map(|(_, from)| from.ip()).ok())
                    })
                };
                for (to, from) in one.netns.within(talk).join().unwrap() {
                    assert_eq!(from, Some(to), "the answer to what went to {to}");
                }
            }
        },
    );
}

/// So many of them make nobody forget what is translated.
#[test]
fn connections_that_go_straight_are_not_among_the_flows_of_the_stack() {
    test(
        "translated::connections_that_go_straight_are_not_among_the_flows_of_the_stack",
        |mut node| async move {
            node.attach([WORKLOAD; 2]).await;
            let [one, two] = &node.pods;
            for address in two.addresses {
                let answer = talk::ask(&one.netns, address, PORT, PATIENCE);
                assert_eq!(answer.as_deref(), Some("two"), "{address}");
            }
            let entries = |map: &str| {
                let pin = format!("/sys/fs/bpf/cairn/{map}");
                let dump = shell(&format!("bpftool -j map dump pinned {pin}"));
                serde_json::from_str::<Vec<serde_json::Value>>(&dump)
                    .unwrap()
                    .len()
            };
            for (stack, straight) in [
                (ebpf::MAP_FLOWS_V4, ebpf::MAP_STARTS_V4),
                (ebpf::MAP_FLOWS_V6, ebpf::MAP_STARTS_V6),
            ] {
                assert_eq!(
                    (entries(stack), entries(straight)),
                    (0, 2),
                    "one connection, two ways"
                );
            }
        },
    );
}

/// Shows that the first test tests something: an answer that takes the short way is lost.
#[test]
fn without_the_memory_of_flows_the_answer_would_not_be_translated() {
    test(
        "translated::without_the_memory_of_flows_the_answer_would_not_be_translated",
        |mut node| async move {
            translate(&node.pods);
            node.attach([WORKLOAD; 2]).await;
            for attached in [false, true] {
                let egress = node.pods[1].attachment(Hook::Egress, attached);
                node.calc.must_apply([egress]).await;
                for address in service() {
                    let patience = if attached { PATIENCE } else { talk::SOON };
                    let answer = talk::ask_udp(&node.pods[0].netns, address, PORT, patience);
                    assert_eq!(answer.is_ok(), attached, "{address}: {answer:?}");
                }
            }
        },
    );
}

#[test]
fn a_connection_that_is_older_than_the_programs_keeps_its_translation() {
    test(
        "translated::a_connection_that_is_older_than_the_programs_keeps_its_translation",
        |mut node| async move {
            const OTHER: u16 = 8;
            translate(&node.pods);
            let [one, two] = &node.pods;
            let (listening, ready) = std::sync::mpsc::channel();
            let server = two.netns.within(move || {
                let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, OTHER)).unwrap();
                listening.send(()).unwrap();
                let accept = || listener.accept().unwrap().0;
                [accept(), accept()]
            });
            ready.recv().unwrap();
            let connect = move |address| TcpStream::connect((address, OTHER)).unwrap();
            let clients = one.netns.within(move || service().map(connect));
            let clients: [TcpStream; 2] = clients.join().unwrap();
            let servers: [TcpStream; 2] = server.join().unwrap();

            node.attach([WORKLOAD; 2]).await;
            let counts = node
                .counts(|_| {
                    // The backend is the first to say something.
                    for (mut server, mut client) in servers.into_iter().zip(clients) {
                        server.write_all(b"hello").unwrap();
                        let mut heard = [0; 5];
                        client.read_exact(&mut heard).unwrap();
                        assert_eq!(&heard, b"hello");
                    }
                })
                .await;
            assert!(counts["start-unseen"] >= 2, "{counts:?}");
        },
    );
}
