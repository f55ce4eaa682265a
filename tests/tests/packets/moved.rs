//! An address that moves to another pod under flows that the stack translates: what goes to the
//! service's address still leads to the old owner's, until its flows are forgotten.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv6Addr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use calc::{Input, Output, Reconciler};
use futures_util::StreamExt as _;
use ipc_proto::{
    Ack, Hop, KernelRoute, Lane, Link, Op, Protocol, RouteKey, RouteKind, Table, codec,
};
use tests::{
    helper::{self, Calc},
    netns::shell,
    packets::{Node, PORT, Pod, WORKLOAD},
};

use super::{
    test,
    translated::{service, translate},
};

/// The port of the server that echoes over TCP.
const ECHO: u16 = 9;

/// Has both pods of the node talk by way of the service, over TCP and UDP and in both families, until
/// it is told to stop.
struct Talks {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Talks {
    fn start([one, two]: &[Pod; 2]) -> Self {
        let (listening, ready) = mpsc::channel();
        two.netns.within(move || {
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, ECHO)).unwrap();
            listening.send(()).unwrap();
            while let Ok((stream, _)) = listener.accept() {
                std::thread::spawn(move || {
                    io::copy(&mut stream.try_clone().unwrap(), &mut &stream)
                });
            }
        });
        ready.recv().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (heard, both) = mpsc::channel();
        let pause = Some(Duration::from_millis(10));
        let mut threads = Vec::new();
        for to in service() {
            let (stopped, heard_udp) = (Arc::clone(&stop), heard.clone());
            threads.push(one.netns.within(move || {
                let any: IpAddr = if to.is_ipv4() {
                    [0; 4].into()
                } else {
                    Ipv6Addr::UNSPECIFIED.into()
                };
                let socket = UdpSocket::bind((any, 0)).unwrap();
                socket.set_read_timeout(pause).unwrap();
                while !stopped.load(Ordering::Relaxed) {
                    // Nobody may be there any more.
                    drop(socket.send_to(b"?", (to, PORT)));
                    if socket.recv_from(&mut [0; 64]).is_ok()
                        && heard_udp.send(("UDP", to)).is_err()
                    {
                        // It was heard often enough.
                    }
                }
            }));
            let (stopped, heard_tcp) = (Arc::clone(&stop), heard.clone());
            threads.push(one.netns.within(move || {
                let mut stream = TcpStream::connect((to, ECHO)).unwrap();
                stream.set_read_timeout(pause).unwrap();
                while !stopped.load(Ordering::Relaxed) {
                    drop(stream.write_all(b"?"));
                    if stream.read(&mut [0; 64]).is_ok_and(|len| len > 0)
                        && heard_tcp.send(("TCP", to)).is_err()
                    {
                        // As above.
                    }
                }
            }));
        }
        let mut silent: std::collections::BTreeSet<_> = service()
            .into_iter()
            .flat_map(|to| [("UDP", to), ("TCP", to)])
            .collect();
        while !silent.is_empty() {
            silent.remove(&both.recv_timeout(tests::wait::PATIENCE).unwrap());
        }
        Self { stop, threads }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

/// Takes the service's rules away, as kube-proxy does; connections go on being tracked.
fn end_of_service() {
    for family in ["ip", "ip6"] {
        shell(&format!(
            "nft 'add table {family} keep; \
             add chain {family} keep c {{ type filter hook forward priority 0; }}; \
             add rule {family} keep c ct state established accept; \
             flush chain {family} service dnat_in'"
        ));
    }
}

/// Makes a pod that has the addresses of the second one too, but no routes for them.
fn heir([_, two]: &[Pod; 2]) -> Pod {
    let heir = Pod::new("heir", 4);
    for address in two.addresses {
        heir.netns
            .run(&format!("ip address add {address} dev eth0"));
        let mac = "0a:00:00:00:00:04";
        shell(&format!(
            "ip neigh add {address} lladdr {mac} nud permanent dev {}",
            heir.link.name
        ));
    }
    heir
}

/// Returns whether a frame is a packet of a connection of the first pod's.
fn is_stray(frame: &[u8], one: &Pod) -> bool {
    let [v4, v6] = one.addresses.map(|address| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    });
    match frame.get(12..14) {
        Some([8, 0]) => frame.get(26..30) == Some(&v4) && matches!(frame.get(23), Some(6 | 17)),
        Some([0x86, 0xdd]) => {
            frame.get(22..38) == Some(&v6) && matches!(frame.get(20), Some(6 | 17))
        }
        _ => false,
    }
}

fn routes(address: IpAddr, link: &Link) -> [Op; 2] {
    let pod = ipc_proto::BpfRoute {
        flags: ipc_proto::Flags(WORKLOAD),
        target: ipc_proto::BpfTarget::Link(link.clone()),
    };
    let route = KernelRoute {
        kind: RouteKind::Unicast(Hop {
            link: link.clone(),
            via: None,
            onlink: false,
        }),
        protocol: Protocol::Device,
        source: None,
        mtu: None,
    };
    let key = RouteKey::new(Table::Main, address.into(), 0);
    [
        Op::BpfRoute(address.into(), Some(pod)),
        Op::KernelRoute(key, Some(Box::new(route))),
    ]
}

/// Has the helper do what the reconciler asks for, until there is no more.
async fn settle(reconciler: &mut Reconciler, calc: &mut Calc) {
    while let Some(output) = reconciler.poll(Instant::now()) {
        match output {
            Output::Hello(_) => {
                let (welcome, observed) = calc.hello().await;
                reconciler.handle(
                    Instant::now(),
                    Input::Welcome(welcome, observed.into_iter().collect()),
                );
            }
            Output::Apply(batch) => {
                let mut ends = calc.proxy.receive_flows_flushed().await.unwrap();
                let answer = calc.proxy.apply(&helper::bytes(&*batch)).await.unwrap();
                let ack: Ack = codec::decode(&answer).unwrap();
                assert_eq!(ack.failed, []);
                reconciler.handle(Instant::now(), Input::Ack(ack));
                if batch.lane == Lane::Flows {
                    let end = ends.next().await.unwrap();
                    let done = codec::decode(end.args().unwrap().done()).unwrap();
                    reconciler.handle(Instant::now(), Input::Flushed(done));
                }
            }
            // Each batch is answered at once, so that nothing follows.
            output @ (Output::Follow(_)
            | Output::Recall
            | Output::Notice(_)
            | Output::AddressClean(_)) => {
                let is_told = matches!(output, Output::Notice(_) | Output::AddressClean(_));
                assert!(is_told, "{output:?}");
            }
        }
    }
    assert!(reconciler.is_in_sync());
}

/// I6, with the cores of calc and the real helper.
#[test]
fn the_new_owner_gets_no_packet_of_the_old_ones_flows() {
    test(
        "moved::the_new_owner_gets_no_packet_of_the_old_ones_flows",
        |node: Node| async move {
            // All of it: a closure captures only what it names.
            let Node {
                helper: _helper,
                mut calc,
                pods,
            } = node;
            translate(&pods);
            let heir = heir(&pods);
            let [one, two] = &pods;
            let mut reconciler = Reconciler::default();
            for pod in [one, two, &heir] {
                let own = pod.addresses.into_iter();
                own.flat_map(|own| routes(own, &pod.link))
                    .for_each(|op| reconciler.want(op).unwrap());
            }
            reconciler.handle(Instant::now(), Input::InSync { complete: false });
            reconciler.handle(Instant::now(), Input::Connected);
            settle(&mut reconciler, &mut calc).await;

            let talks = Talks::start(&pods);
            let frames = heir.listen();
            // The old owner is dead, and the service has no backend any more.
            two.netns.run("ip link set eth0 down");
            end_of_service();
            for address in two.addresses {
                for op in routes(address, &heir.link) {
                    reconciler.want(op).unwrap();
                }
            }
            settle(&mut reconciler, &mut calc).await;
            // Longer than TCP takes to try again.
            let heard = frames.during(Duration::from_millis(1500));
            let strays: Vec<_> = heard.iter().filter(|frame| is_stray(frame, one)).collect();
            assert!(strays.is_empty(), "{strays:?}");
            talks.stop();
        },
    );
}

/// Shows that the test above tests something.
#[test]
fn without_a_flush_the_new_owner_would_get_them() {
    test(
        "moved::without_a_flush_the_new_owner_would_get_them",
        |node: Node| async move {
            translate(&node.pods);
            let heir = heir(&node.pods);
            let [one, two] = &node.pods;
            let talks = Talks::start(&node.pods);
            let frames = heir.listen();
            two.netns.run("ip link set eth0 down");
            end_of_service();
            for address in two.addresses {
                shell(&format!(
                    "ip route replace {address} dev {}",
                    heir.link.name
                ));
            }
            frames.find(|frame| is_stray(frame, one).then_some(()));
            talks.stop();
        },
    );
}
