//! What raw bytes cannot do to the helper: neither crash it, nor have it hoard memory or files, nor
//! keep others from it.

use std::{
    io::{IoSlice, Write},
    os::fd::AsRawFd,
    time::Duration,
};

use ipc_proto::{
    BpfRoute, Op, Step, Tunnel, TunnelDevice,
    bus::{self, PrivHelper1Proxy},
};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tests::{
    helper::{Helper, link},
    netns::shell,
    raw::{Call, NO_REPLY, Raw, fixed},
    wait::eventually,
};
use tokio::time::timeout;

use super::{prefix, test};

const DATAPLANE: &str = "io.cairn.Dataplane1";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const PEER: &str = "org.freedesktop.DBus.Peer";
/// How much more memory hostile bytes may cost than none, in KiB: a message each of three
/// connections that end, and what the allocator keeps.
const HOARD: u64 = 20 << 10;
/// How long anything that must not be held up may take: what waits for a client that says nothing waits
/// longer.
const PROMPT: Duration = bus::HANDSHAKE_TIMEOUT;

/// What the helper has taken from the host.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// The most memory that it ever had, in KiB.
    peak: u64,
    /// How many files it has open.
    files: usize,
}

fn taken(helper: &Helper) -> Taken {
    let pid = helper.pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let peak = line
        .and_then(|line| line.split_whitespace().nth(1))
        .unwrap();
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    Taken {
        peak: peak.parse().unwrap(),
        files: files.count(),
    }
}

/// Has `attack` happen to a helper, and sees that it costs little, that the face answers meanwhile,
/// and that the next client is served as if nothing had happened.
async fn survives(attack: impl AsyncFnOnce(&Helper)) {
    let helper = Helper::start("");
    // What is needed once is no hoard.
    helper.connect().await.hello().await;
    answers(&helper).await;
    let before = taken(&helper);
    attack(&helper).await;
    answers(&helper).await;
    let during = taken(&helper);
    assert!(during.peak < before.peak + HOARD, "{before:?} {during:?}");
    let next = async {
        let mut calc = helper.connect().await;
        calc.hello().await;
        let route = Op::BpfRoute(prefix("10.1.0.0/24"), Some(BpfRoute::default()));
        calc.must_apply([route]).await;
    };
    timeout(PROMPT, next).await.unwrap();
    eventually("the files are closed", || {
        let after = taken(&helper);
        // The connection of the client that has just gone may still be open.
        if after.files <= before.files + 1 {
            Ok(())
        } else {
            Err(format!("{before:?} {after:?}"))
        }
    });
}

/// Sees that the face answers at once.
async fn answers(helper: &Helper) {
    let asked = async {
        let path = helper.socket(bus::socket::PRIVHELPER);
        let face = bus::connect(&path).await.unwrap();
        let face = PrivHelper1Proxy::new(&face).await.unwrap();
        face.incarnation().await.unwrap();
    };
    timeout(PROMPT, asked).await.unwrap();
}

fn data_path(helper: &Helper) -> Raw {
    Raw::ready(&helper.socket(bus::socket::DATAPLANE))
}

fn apply(body: &[u8]) -> Call<'static> {
    Call::new(bus::DATAPLANE_PATH, DATAPLANE, "Apply").bytes(body)
}

#[test]
fn a_claim_of_a_long_message_allocates_nothing_however_it_comes() {
    test(
        "wire::a_claim_of_a_long_message_allocates_nothing_however_it_comes",
        || async {
            survives(async |helper| {
                let path = helper.socket(bus::socket::DATAPLANE);
                // What zbus takes for the end of the handshake must be one to the guard.
                for begin in ["BEGIN\r\n", "BEGIN \r\n", "BEGIN now\r\n", "\tBEGIN x\r\n"] {
                    for claim in [
                        fixed(1, 0, 120 << 20, 1, 0),
                        fixed(1, 0, 0, 1, 60 << 20),
                        fixed(1, 0, (2 << 20) + 1, 1, 8),
                        fixed(1, 0, 8, 1, (64 << 10) + 1),
                        fixed(4, 0, 120 << 20, 1, 8),
                    ] {
                        let mut raw = Raw::begin(&path, begin);
                        // It may be refused before all is said.
                        drop(raw.stream.write_all(&claim));
                        assert!(raw.ends(), "{begin:?} {claim:?}");
                    }
                }
            })
            .await;
        },
    );
}

#[test]
fn a_client_that_reads_no_answers_is_not_read_from() {
    test(
        "wire::a_client_that_reads_no_answers_is_not_read_from",
        || async {
            let get = Call::new(bus::DATAPLANE_PATH, PROPERTIES, "GetAll").strings(&[DATAPLANE]);
            let introspect = Call::new("/", "org.freedesktop.DBus.Introspectable", "Introspect");
            let path = Call::new(
                bus::DATAPLANE_PATH,
                "org.freedesktop.DBus.Introspectable",
                "Introspect",
            );
            let unknown = Call::new("/nowhere", "not.Known", "Whatever");
            let member = Call::new(bus::DATAPLANE_PATH, PEER, "Whatever");
            let ping = Call::new("/", PEER, "Ping");
            for call in [
                get,
                introspect,
                path,
                unknown,
                member,
                ping,
                apply(&[0; 100]),
            ] {
                survives(async |helper| {
                    let mut raw = data_path(helper);
                    let sent = raw.flood(&call, 200_000);
                    assert!(sent < 200_000, "{call:?}: all is read");
                    answers(helper).await;
                })
                .await;
            }
        },
    );
}

#[test]
fn many_large_calls_at_once_are_not_kept_in_memory() {
    test(
        "wire::many_large_calls_at_once_are_not_kept_in_memory",
        || async {
            survives(async |helper| {
                let mut raw = data_path(helper);
                let large = apply(&vec![0xff; (2 << 20) - 8]);
                raw.flood(&large, 200);
            })
            .await;
        },
    );
}

#[test]
fn who_says_anything_but_calls_that_want_an_answer_is_cut_off() {
    test(
        "wire::who_says_anything_but_calls_that_want_an_answer_is_cut_off",
        || async {
            survives(async |helper| {
                for (kind, flags) in [(1, NO_REPLY), (2, 0), (3, 0), (4, 0), (0, 0), (9, 0)] {
                    let mut raw = data_path(helper);
                    let call = Call {
                        kind,
                        flags,
                        ..apply(&[0; 100])
                    };
                    raw.send(&call);
                    assert!(raw.ends(), "{kind} {flags}");
                }
            })
            .await;
        },
    );
}

#[test]
fn clients_that_are_replaced_while_they_are_stuck_leave_nothing_behind() {
    test(
        "wire::clients_that_are_replaced_while_they_are_stuck_leave_nothing_behind",
        || async {
            survives(async |helper| {
                let ping = Call::new("/", PEER, "Ping");
                let stuck: Vec<Raw> = (0..12)
                    .map(|_| {
                        let mut raw = data_path(helper);
                        raw.flood(&ping, 200_000);
                        raw
                    })
                    .collect();
                // And many that say nothing, or half of a handshake, or half of a message.
                let path = helper.socket(bus::socket::DATAPLANE);
                let mut silent = Vec::new();
                for number in 0..300 {
                    let mut raw = Raw::connect(&path);
                    if number % 3 == 1 {
                        drop(raw.stream.write_all(b"\0AUTH EXT"));
                    }
                    silent.push(raw);
                }
                for _ in 0..20 {
                    let mut raw = data_path(helper);
                    drop(raw.stream.write_all(&fixed(1, 0, 1 << 20, 1, 8)));
                    silent.push(raw);
                }
                answers(helper).await;
                eventually("only the last is connected", || {
                    let files = taken(helper).files;
                    if files < 40 {
                        Ok(())
                    } else {
                        Err(files.to_string())
                    }
                });
                drop((stuck, silent));
            })
            .await;
        },
    );
}

#[test]
fn one_user_cannot_keep_others_from_the_face() {
    test(
        "wire::one_user_cannot_keep_others_from_the_face",
        || async {
            let helper = Helper::start("face_users = [8]\n");
            let path = helper.socket(bus::socket::PRIVHELPER);
            answers(&helper).await;
            let before = taken(&helper);
            nix::unistd::seteuid(8.into()).unwrap();
            let clients: Vec<Raw> = (0..200).map(|_| Raw::connect(&path)).collect();
            nix::unistd::seteuid(0.into()).unwrap();
            answers(&helper).await;
            let during = taken(&helper);
            assert!(during.files < before.files + 40, "{before:?} {during:?}");
            drop(clients);
            nix::unistd::seteuid(8.into()).unwrap();
            eventually("there is room again", || {
                let mut again = Raw::connect(&path);
                drop(again.stream.write_all(b"\0AUTH EXTERNAL 38\r\n"));
                if again.is_ended() {
                    Err("turned away".into())
                } else {
                    Ok(())
                }
            });
            nix::unistd::seteuid(0.into()).unwrap();
        },
    );
}

#[test]
fn a_client_that_says_a_byte_at_a_time_delays_nobody() {
    test(
        "wire::a_client_that_says_a_byte_at_a_time_delays_nobody",
        || async {
            survives(async |helper| {
                let mut raw = data_path(helper);
                for byte in apply(&[0; 100]).encode(1) {
                    raw.stream.write_all(&[byte]).unwrap();
                    answers(helper).await;
                }
                assert!(!raw.is_ended());
            })
            .await;
        },
    );
}

#[test]
fn files_that_a_client_sends_along_are_not_taken() {
    test(
        "wire::files_that_a_client_sends_along_are_not_taken",
        || async {
            survives(async |helper| {
                let before = taken(helper);
                let mut raw = data_path(helper);
                let file = std::fs::File::open("/dev/null").unwrap();
                for serial in 1..50 {
                    let call = Call {
                        // So many file descriptors belong to it.
                        fields: vec![9, 1, b'u', 0, 4, 0, 0, 0],
                        ..Call::new("/", PEER, "Ping")
                    };
                    // The first says nothing of them.
                    let call = if serial == 1 {
                        Call::new("/", PEER, "Ping")
                    } else {
                        call
                    };
                    let message = call.encode(serial);
                    let sent = sendmsg::<()>(
                        raw.stream.as_raw_fd(),
                        &[IoSlice::new(&message)],
                        &[ControlMessage::ScmRights(&[file.as_raw_fd(); 4])],
                        MsgFlags::empty(),
                        None,
                    );
                    if sent.is_err() {
                        break;
                    }
                }
                assert!(raw.ends(), "what claims to have files has none");
                assert!(taken(helper).files <= before.files + 1);
            })
            .await;
        },
    );
}

#[test]
fn deep_and_broken_messages_end_in_an_error() {
    test("wire::deep_and_broken_messages_end_in_an_error", || async {
        survives(async |helper| {
            let deep: Vec<u8> = [1, b'v', 0].repeat(20_000);
            let field = [&[99_u8, 1, b'v', 0][..], &deep].concat();
            let set = Call::new(bus::DATAPLANE_PATH, PROPERTIES, "Set").strings(&["a", "b"]);
            let mut body = set.body.clone();
            body.extend(&deep);
            for call in [
                Call {
                    fields: field,
                    ..Call::new("/", PEER, "Ping")
                },
                Call {
                    signature: "ssv",
                    body,
                    ..set
                },
                Call {
                    signature: "v",
                    body: deep,
                    ..apply(&[])
                },
                Call {
                    signature: "((((((((((((((((((((((((((((((((((((y",
                    ..apply(&[])
                },
                Call {
                    // It claims more than there is.
                    body: vec![0xff; 8],
                    ..apply(&[])
                },
                Call::new("", PEER, "Ping"),
                Call::new("/", "", "Ping"),
                Call::new("/", PEER, ""),
            ] {
                let mut raw = data_path(helper);
                raw.send(&call);
                raw.is_ended();
                answers(helper).await;
            }
        })
        .await;
    });
}

/// Messages that differ from good ones by a few bytes, the same ones each time.
#[test]
fn no_mangled_message_crashes_it() {
    test("wire::no_mangled_message_crashes_it", || async {
        survives(async |helper| {
            let path = helper.socket(bus::socket::DATAPLANE);
            let mut seed = 1_u64;
            let mut random = |below: usize| {
                // Numerical Recipes' generator; its low bits are poor.
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                usize::try_from(seed >> 33).unwrap() % below
            };
            let good = [
                apply(&[0; 30]).encode(1),
                Call::new("/", PEER, "Ping").encode(1),
                Call::new(bus::DATAPLANE_PATH, PROPERTIES, "GetAll")
                    .strings(&[DATAPLANE])
                    .encode(1),
                Call::new(bus::DATAPLANE_PATH, PROPERTIES, "Get")
                    .strings(&[DATAPLANE, "No"])
                    .encode(1),
            ];
            for _ in 0..3000 {
                let mut bytes = good[random(good.len())].clone();
                for _ in 0..=random(3) {
                    let at = random(bytes.len());
                    bytes[at] = u8::try_from(random(256)).unwrap();
                }
                let mut raw = Raw::connect(&path);
                let handshake = b"\0AUTH EXTERNAL 30\r\nBEGIN\r\n";
                drop(raw.stream.write_all(&[&handshake[..], &bytes].concat()));
            }
            // And the same of the handshake.
            for _ in 0..1000 {
                let mut bytes =
                    b"\0AUTH EXTERNAL 30\r\nNEGOTIATE_UNIX_FD\r\nDATA\r\nBEGIN\r\n".to_vec();
                for _ in 0..=random(3) {
                    let at = random(bytes.len());
                    let with = [b'\r', b'\n', 0, b' ', 0xff, b'B', b'D'];
                    bytes[at] = with[random(with.len())];
                }
                drop(Raw::connect(&path).stream.write_all(&bytes));
            }
        })
        .await;
    });
}

#[test]
fn a_batch_of_slow_changes_does_not_keep_the_watchdog_waiting() {
    test(
        "wire::a_batch_of_slow_changes_does_not_keep_the_watchdog_waiting",
        || async {
            shell(
                "ip link add eth0 type veth peer name up0 && ip link set up0 up && ip address add 192.0.2.1/24 dev eth0 && ip link set eth0 up",
            );
            survives(async |helper| {
                let mut calc = helper.connect().await;
                calc.hello().await;
                let parent = link("eth0");
                let device = |vni| {
                    Op::TunnelDevice(
                        Tunnel::VxlanV4,
                        Some(Box::new(TunnelDevice {
                            vni,
                            port: 4789,
                            local: super::address("192.0.2.1"),
                            parent: parent.clone(),
                            mac: ipc_proto::Mac([0x66, 0, 0, 0, 0, 9]),
                            mtu: 1450,
                            address: super::address("10.1.0.0"),
                        })),
                    )
                };
                // Each is made again with another number.
                let steps = (0..2048).map(|vni| Step {
                    op: device(vni),
                    needs: None,
                });
                let start = std::time::Instant::now();
                let failed = calc.try_apply(steps.collect()).await;
                let took = start.elapsed();
                let failed = failed.unwrap();
                // Either there was time for all of them, or the rest failed for want of it.
                assert!(took < PROMPT || !failed.is_empty(), "{took:?}");
                assert!(failed.len() < 2048, "{failed:?}");
            })
            .await;
        },
    );
}
