//! What a client, a user or a host cannot do to the helper.

use std::{os::unix::net::UnixDatagram, process::Command, time::Duration};

use ipc_proto::{
    Ack, Batch, BatchId, BpfRoute, Hello, Known, Lane, Lease, Op, PageRequest, Step, VERSION,
    bus::{self, PrivHelper1Proxy},
    codec,
};
use nix::unistd::{Uid, seteuid};
use serde_bytes::ByteBuf;
use tests::{
    helper::{Calc, Helper, bytes},
    netns::shell,
    wait::{PATIENCE, eventually},
    world::built,
};

use super::{prefix, refused, test};

fn route(text: &str) -> Op {
    Op::BpfRoute(prefix(text), Some(BpfRoute::default()))
}

#[test]
fn garbage_is_refused_and_changes_nothing() {
    test(
        "hostile::garbage_is_refused_and_changes_nothing",
        || async {
            let helper = Helper::start("");
            let mut calc = helper.connect().await;
            calc.hello().await;
            calc.must_apply([route("10.1.0.0/24")]).await;
            let good = bytes(&Hello {
                version: VERSION,
                known: Known::default(),
            });
            // A length of 2^58 elements would be an abort if it were believed.
            let mut huge = bytes(&calc.lease).to_vec();
            huge.extend([0; 12]);
            huge.extend((1_u64 << 58).to_le_bytes());
            for garbage in [
                vec![],
                vec![0xff; 100],
                good[..1].to_vec(),
                huge,
                vec![0; 1 << 20],
            ] {
                let garbage = ByteBuf::from(garbage);
                assert!(calc.proxy.apply(&garbage).await.is_err());
                assert!(calc.proxy.page(&garbage).await.is_err());
                if garbage.get(..2) != Some(&good) {
                    assert!(calc.proxy.hello(&garbage).await.is_err());
                }
            }
            let step = Step {
                op: route("10.2.0.0/24"),
                needs: None,
            };
            let error = calc.try_apply(vec![step; 4097]).await.unwrap_err();
            assert!(error.to_string().contains("at most 4096"), "{error}");
            let request = PageRequest {
                lease: Lease(99),
                page: 0,
            };
            assert!(calc.proxy.page(&bytes(&request)).await.is_err());
            // The lease is as good as before.
            calc.must_apply([route("10.3.0.0/24")]).await;
            assert_eq!(calc.read().await.len(), 2);
        },
    );
}

#[test]
fn what_was_prepared_is_applied_once_by_its_own_number_and_under_its_lease() {
    test(
        "hostile::what_was_prepared_is_applied_once_by_its_own_number_and_under_its_lease",
        || async {
            let helper = Helper::start("");
            let mut calc = helper.connect().await;
            calc.hello().await;
            let batch = |lease, id| Batch {
                lease,
                lane: Lane::State,
                id: BatchId(id),
                steps: vec![Step {
                    op: route("10.1.0.0/24"),
                    needs: None,
                }],
            };
            let proxy = calc.proxy.clone();
            let refused = async |id: u64, why: &str| {
                let error = proxy.apply_prepared(id).await.unwrap_err().to_string();
                assert!(error.contains(why), "{error}");
            };
            refused(5, "batch 5 was not prepared").await;
            calc.proxy
                .prepare(&bytes(&batch(calc.lease, 5)))
                .await
                .unwrap();
            refused(6, "batch 6 was not prepared").await;
            refused(5, "batch 5 was not prepared").await;
            calc.proxy
                .prepare(&bytes(&batch(Lease(99), 5)))
                .await
                .unwrap();
            refused(5, "not the current lease").await;
            let garbage = ByteBuf::from(vec![0xff; 100]);
            calc.proxy.prepare(&garbage).await.unwrap();
            refused(5, "").await;
            calc.proxy
                .prepare(&bytes(&batch(calc.lease, 7)))
                .await
                .unwrap();
            let ack = calc.proxy.apply_prepared(7).await.unwrap();
            let ack: Ack = codec::decode(&ack).unwrap();
            assert_eq!((ack.id, ack.failed), (BatchId(7), Vec::new()));
            refused(7, "batch 7 was not prepared").await;
            assert_eq!(calc.read().await.len(), 1);
        },
    );
}

#[test]
fn an_oversized_message_ends_its_connection_and_no_other() {
    test(
        "hostile::an_oversized_message_ends_its_connection_and_no_other",
        || async {
            let helper = Helper::start("");
            let calc = helper.connect().await;
            let oversized = ByteBuf::from(vec![0; bus::MAX_BODY + 1]);
            assert!(calc.proxy.apply(&oversized).await.is_err());
            assert!(calc.proxy.apply(&ByteBuf::new()).await.is_err());
            let mut next = helper.connect().await;
            next.hello().await;
            next.must_apply([route("10.1.0.0/24")]).await;
        },
    );
}

#[test]
fn another_version_is_told_so() {
    test("hostile::another_version_is_told_so", || async {
        let helper = Helper::start("");
        let calc = helper.connect().await;
        // A later one may say more after its number.
        let later = ByteBuf::from(
            [
                bytes(&Hello {
                    version: VERSION + 1,
                    known: Known::default(),
                })
                .to_vec(),
                vec![1],
            ]
            .concat(),
        );
        let error = calc.proxy.hello(&later).await.unwrap_err().to_string();
        assert!(
            error.contains("NotSupported") && error.contains("one package"),
            "{error}"
        );
        let log = helper.log();
        let said = format!(
            "the client version {}: both must come from one package",
            VERSION + 1
        );
        assert!(log.contains(&said), "{log}");
    });
}

#[test]
fn a_new_client_takes_the_place_of_the_old_one() {
    test(
        "hostile::a_new_client_takes_the_place_of_the_old_one",
        || async {
            let helper = Helper::start("");
            let mut old = helper.connect().await;
            let (first, _) = old.hello().await;
            // One that never says anything must not stand in the way of the next.
            let path = helper.socket(bus::socket::DATAPLANE);
            let silent = tokio::net::UnixStream::connect(&path).await.unwrap();
            let mut new = helper.connect().await;
            drop(silent);
            let step = || Step {
                op: route("10.1.0.0/24"),
                needs: None,
            };
            assert!(old.try_apply(vec![step()]).await.is_err());
            // Nor does the old lease help on the new connection.
            new.lease = first.lease;
            let error = new.try_apply(vec![step()]).await.unwrap_err();
            assert!(error.to_string().contains("lease"), "{error}");
            let (second, items) = new.hello().await;
            assert_ne!(first.lease, second.lease);
            assert_eq!(first.incarnation, second.incarnation);
            assert_eq!(items.len(), 1, "only lo: {items:?}");
            new.must_apply([route("10.1.0.0/24")]).await;
        },
    );
}

#[test]
fn each_socket_serves_its_users_alone() {
    test("hostile::each_socket_serves_its_users_alone", || async {
        let helper = Helper::start("calc_user = 7\nface_users = [8]\n");
        let path = |name| helper.socket(name);
        let as_user = |uid| seteuid(Uid::from_raw(uid)).unwrap();
        for (uid, calc, face) in [
            (0, false, true),
            (7, true, false),
            (8, false, true),
            (9, false, false),
        ] {
            as_user(uid);
            let data_path = Calc::connect(&path(bus::socket::DATAPLANE)).await;
            let view = bus::connect(&path(bus::socket::PRIVHELPER)).await;
            as_user(0);
            assert_eq!(data_path.is_ok(), calc, "uid {uid}: {data_path:?}");
            assert_eq!(view.is_ok(), face, "uid {uid}: {view:?}");
        }
    });
}

#[test]
fn the_face_shows_what_the_helper_is() {
    test("hostile::the_face_shows_what_the_helper_is", || async {
        let helper = Helper::start("");
        let face = bus::connect(&helper.socket(bus::socket::PRIVHELPER))
            .await
            .unwrap();
        let property = async |name| {
            let proxy = zbus::Proxy::new(
                &face,
                "io.cairn.PrivHelper1",
                bus::PRIVHELPER_PATH,
                "io.cairn.PrivHelper1",
            );
            let proxy = proxy.await.unwrap();
            proxy
                .get_property::<zbus::OwnedVariant>(name)
                .await
                .unwrap()
        };
        assert_eq!(bool::try_from(property("Leased").await), Ok(false));
        let mut calc = helper.connect().await;
        let (welcome, _) = calc.hello().await;
        assert_eq!(bool::try_from(property("Leased").await), Ok(true));
        let proxy = PrivHelper1Proxy::new(&face).await.unwrap();
        assert_eq!(proxy.incarnation().await.unwrap(), welcome.incarnation.0);
        let names = Vec::<String>::try_from(property("Capabilities").await).unwrap();
        assert_eq!(names, ["CAP_BPF", "CAP_NET_ADMIN"]);
        assert_eq!(u32::try_from(property("MapSize").await), Ok(262_144));
        assert_eq!(u32::try_from(property("Links").await), Ok(1));
        drop(calc);
        eventually_async("the lease ends with its connection", async || {
            bool::try_from(property("Leased").await) == Ok(false)
        })
        .await;
    });
}

async fn eventually_async(what: &str, mut poll: impl AsyncFnMut() -> bool) {
    let tries = async {
        while !poll().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let done = tokio::time::timeout(PATIENCE, tries).await;
    assert!(done.is_ok(), "not within {PATIENCE:?}: {what}");
}

#[test]
fn without_a_bpf_file_system_it_says_what_to_do() {
    test(
        "hostile::without_a_bpf_file_system_it_says_what_to_do",
        || async {
            shell("umount /sys/fs/bpf && mount -t tmpfs tmpfs /sys/fs/bpf");
            let log = refused(Helper::start(""));
            assert!(log.contains("mount -t bpf bpf /sys/fs/bpf"), "{log}");
            assert_eq!(shell("ls /sys/fs/bpf"), "");
        },
    );
}

/// Starts a helper as its own user, with these capabilities, as systemd would.
fn unprivileged(capabilities: &str) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(format!("--inh-caps=-all,{capabilities}"))
        .arg(format!("--ambient-caps=-all,{capabilities}"))
        .arg(built().join("cairn-privhelper"));
    command
}

#[test]
fn a_missing_capability_is_named() {
    test("hostile::a_missing_capability_is_named", || async {
        for (capabilities, missing) in [
            ("+net_admin", "CAP_BPF is missing"),
            ("+bpf", "CAP_NET_ADMIN is missing"),
            ("+chown", "CAP_BPF and CAP_NET_ADMIN are missing"),
        ] {
            let log = refused(Helper::start_by(unprivileged(capabilities), ""));
            assert!(
                log.contains(missing) && log.contains("AmbientCapabilities"),
                "{log}"
            );
        }
    });
}

#[test]
fn it_runs_as_its_own_user_from_the_start() {
    test(
        "hostile::it_runs_as_its_own_user_from_the_start",
        || async {
            let start = || Helper::start_by(unprivileged("+bpf,+net_admin,+chown"), "");
            let log = refused(start());
            assert!(log.contains("pin_dir /sys/fs/bpf/cairn: open"), "{log}");
            shell(
                "chmod 0711 /sys/fs/bpf; mkdir -m 0700 /sys/fs/bpf/cairn; chown 65534 /sys/fs/bpf/cairn",
            );
            let helper = start();
            let mut calc = helper.connect().await;
            calc.hello().await;
            calc.must_apply([route("10.1.0.0/24")]).await;
            let status = shell(&format!("grep ^Cap /proc/{}/status", helper.pid()));
            let both = format!("{:016x}", (1_u64 << 12) | (1 << 39));
            for set in ["CapPrm", "CapEff"] {
                assert!(status.contains(&format!("{set}:\t{both}")), "{status}");
            }
            for set in ["CapInh", "CapAmb"] {
                assert!(status.contains(&format!("{set}:\t{:016x}", 0)), "{status}");
            }
        },
    );
}

#[test]
fn the_service_manager_hears_that_it_is_ready_and_alive() {
    test(
        "hostile::the_service_manager_hears_that_it_is_ready_and_alive",
        || async {
            let path = "/run/notify";
            let socket = UnixDatagram::bind(path).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            shell("chmod 0666 /run/notify");
            let mut command = Command::new(built().join("cairn-privhelper"));
            command
                .env("NOTIFY_SOCKET", path)
                .env("WATCHDOG_USEC", "100000");
            let helper = Helper::start_by(command, "");
            let hear = || {
                let mut buffer = [0; 256];
                let length = socket.recv(&mut buffer).unwrap();
                String::from_utf8_lossy(&buffer[..length]).trim().to_owned()
            };
            assert_eq!(hear(), "READY=1");
            for _ in 0..3 {
                assert_eq!(hear(), "WATCHDOG=1");
            }
            helper.signal("TERM");
            loop {
                if hear() == "STOPPING=1" {
                    break;
                }
            }
            let (status, log) = helper.ended();
            assert!(status.success(), "{log}");
        },
    );
}

#[test]
fn it_dies_with_its_supervisor() {
    test("hostile::it_dies_with_its_supervisor", || async {
        let mut supervisor = Command::new("sh");
        supervisor
            .args(["-c", "CAIRN_SUPERVISED=$$ \"$0\" \"$@\" & wait"])
            .arg(built().join("cairn-privhelper"));
        let helper = Helper::start_by(supervisor, "");
        helper.connect().await.hello().await;
        let running = || shell("pgrep -r R,S,D -x cairn-privhelpe || true");
        assert_ne!(running(), "");
        helper.signal("KILL");
        eventually("the helper's end", || match running() {
            pids if pids.is_empty() => Ok(()),
            pids => Err(format!("{pids} runs")),
        });
    });
}

#[test]
fn a_pin_directory_of_several_levels_is_made() {
    test(
        "hostile::a_pin_directory_of_several_levels_is_made",
        || async {
            let helper = Helper::start("pin_dir = \"/sys/fs/bpf/tc/globals\"\n");
            helper.connect().await.hello().await;
            assert_eq!(
                shell("stat -c '%u %a' /sys/fs/bpf/tc/globals"),
                "65534 700
"
            );
            assert_eq!(
                shell("stat -c '%u' /sys/fs/bpf /sys/fs/bpf/tc"),
                "0
0
"
            );
            let pins = shell("ls /sys/fs/bpf/tc/globals");
            for map in [ebpf::MAP_V4, ebpf::MAP_V6] {
                assert!(pins.lines().any(|pin| pin == map), "{pins}");
            }
        },
    );
}
