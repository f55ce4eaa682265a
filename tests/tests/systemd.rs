//! The package on a real host: its own systemd, booted in a box, with the units, users, sockets and
//! the bus policy that it installs.
//!
//! `CAIRN_UPDATE_GOLDEN=1` rewrites the golden files.

use std::fs;

use futures_util::StreamExt;
use ipc_proto::bus::Calc1Proxy;
use serde_json::Value;
use tests::{
    systemd::{PROCESSES, host, repository},
    wait::{PATIENCE, eventually},
};
use tokio::time::timeout;
use zbus::{connection::Builder, fdo::PropertiesProxy, names::InterfaceName};

/// Each process with its user, its capabilities (1 << 39 is `CAP_BPF`, 1 << 12 `CAP_NET_ADMIN`), and
/// the exposure in tenths that `systemd-analyze security` may find.
const RIGHTS: [(&str, &str, u64, u32); 3] = [
    ("privhelper", "cairn-priv", 1 << 39 | 1 << 12, 14),
    ("calc", "cairn-calc", 0, 4),
    ("supervisor", "cairn", 0, 2),
];

/// The faces, by their names on the bus.
const FACES: [&str; 3] = ["Supervisor1", "Calc1", "PrivHelper1"];

#[test]
fn each_process_is_a_user_of_its_own_with_nothing_but_what_it_needs() {
    let host = host();
    for (process, user, capabilities, _) in RIGHTS {
        for (key, flag) in [("Uid", "-u"), ("Gid", "-g")] {
            let id = host.run(&format!("id {flag} {user}"));
            let wanted = [id.trim(); 4].join(" ");
            assert_eq!(host.status(process, key), wanted, "{process}");
        }
        assert_eq!(host.status(process, "NoNewPrivs"), "1", "{process}");
        for (set, wanted) in [
            ("CapEff", capabilities),
            ("CapPrm", capabilities),
            ("CapBnd", capabilities),
            ("CapInh", 0),
            ("CapAmb", 0),
        ] {
            let wanted = format!("{wanted:016x}");
            assert_eq!(host.status(process, set), wanted, "{process} {set}");
        }
    }
}

#[test]
fn each_socket_is_for_one_user_alone() {
    let host = host();
    for (socket, user) in [
        ("dataplane", "cairn-calc"),
        ("calc", "cairn"),
        ("privhelper", "cairn"),
        ("supervisor", "root"),
    ] {
        let seen = host.run(&format!("stat -c %U:%a /run/cairn/{socket}.sock"));
        assert_eq!(seen.trim(), format!("{user}:600"), "{socket}");
    }
    let seen = host.run("stat -c %U:%a /run/cairn /sys/fs/bpf/cairn");
    assert_eq!(seen, "root:755\ncairn-priv:700\n");
}

#[test]
fn a_pod_of_the_datastore_is_in_the_map() {
    let host = host();
    let dump = host.run("bpftool -j map dump pinned /sys/fs/bpf/cairn/cali_v4_routes");
    let entries: Vec<Value> = serde_json::from_str(&dump).unwrap();
    let pod = [
        "0x20", "0x00", "0x00", "0x00", "0x0a", "0x09", "0x00", "0x02",
    ];
    let entry = entries
        .iter()
        .find(|entry| entry["key"] == Value::from(pod.to_vec()));
    assert!(entry.is_some(), "{dump}");
    let routes = host.run("cairnctl routes");
    assert!(routes.contains("10.9.0.2/32"), "{routes}");
    let kernel = host.run("ip route show 10.9.0.2");
    assert!(kernel.contains("dev cali-web"), "{kernel}");
}

#[test]
fn a_killed_process_is_back_and_in_sync() {
    let host = host();
    for process in PROCESSES {
        let before = host.pid(process);
        let readings = || host.property("calc", "Resyncs").as_u64();
        let read = readings().unwrap();
        host.run(&format!("kill -KILL {before}"));
        eventually("another process", || match host.pid(process) {
            pid if pid != 0 && pid != before => Ok(()),
            pid => Err(format!("{process} {before}: {pid}")),
        });
        host.in_sync();
        if process != "supervisor" {
            assert_eq!(host.property(process, "Pid"), host.pid(process));
        }
        if process == "privhelper" {
            // One as calc finds the next helper, and one as the supervisor tells it to.
            eventually("the supervisor has calc resync", || match readings() {
                Some(now) if now >= read + 2 => Ok(()),
                now => Err(format!("{read} and {now:?} readings")),
            });
            let restarts = host.property("supervisor", "HelperRestarts");
            assert_eq!(restarts, 1);
        }
        // It is once it has said that it is ready, which it need not be to be in sync.
        let is_active = format!("systemctl is-active cairn-{process}.service");
        eventually("the unit is active", || {
            let output = host.command(&is_active).output().unwrap();
            let state = String::from_utf8_lossy(&output.stdout).into_owned();
            (state == "active\n").then_some(()).ok_or(state)
        });
    }
}

#[test]
fn the_faces_on_the_bus_are_as_recorded() {
    let host = host();
    for face in FACES {
        let line = format!("busctl introspect --xml-interface io.cairn.{face} /io/cairn/{face}");
        let seen = host.run(&line);
        let golden = repository(&format!("tests/data/introspect/io.cairn.{face}.xml"));
        if std::env::var_os("CAIRN_UPDATE_GOLDEN").is_some() {
            fs::write(&golden, &seen).unwrap();
        }
        let recorded = fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(seen, recorded, "{}", golden.display());
    }
}

#[test]
fn anybody_may_look_but_only_root_and_the_supervisor_may_ask() {
    let host = host();
    let resync = "busctl call io.cairn.Calc1 /io/cairn/Calc1 io.cairn.Calc1 Resync";
    for (user, may) in [
        ("nobody", false),
        ("cairn-priv", false),
        ("cairn", true),
        ("root", true),
    ] {
        for face in FACES {
            let name = format!("io.cairn.{face} /io/cairn/{face}");
            for line in [
                format!("busctl get-property {name} io.cairn.{face} Version"),
                format!("busctl introspect {name}"),
            ] {
                host.run_as(user, &line).unwrap();
            }
        }
        let asked = host.run_as(user, resync);
        assert_eq!(asked.is_ok(), may, "{user}: {asked:?}");
        if let Err(why) = asked {
            assert!(why.contains("Access denied"), "{why}");
        }
    }
    let look = "busctl get-property io.cairn.PrivHelper1 /io/cairn/PrivHelper1 \
        io.cairn.PrivHelper1 Version";
    let looked = host.run_as("cairn-calc", look);
    assert!(looked.is_err(), "calc has no business there");
    let names = host.run("busctl list --acquired");
    assert!(!names.contains("Dataplane"), "{names}");
}

#[tokio::test]
async fn a_change_is_signalled() {
    let host = host();
    let bus = host.file("/run/dbus/system_bus_socket");
    let bus = tokio::net::UnixStream::connect(bus).await.unwrap();
    let client = Builder::unix_stream(bus.into_std().unwrap());
    let client = client.build().await.unwrap();
    let calc = PropertiesProxy::builder(&client)
        .destination("io.cairn.Calc1")
        .path("/io/cairn/Calc1")
        .build()
        .await
        .unwrap();
    let mut changes = calc.receive_properties_changed().await.unwrap();
    let consumer = Calc1Proxy::new(&client).await.unwrap();
    let mut routes = consumer.receive_routes_changed().await.unwrap();
    let snapshot = consumer.snapshot("").await.unwrap();
    let name = InterfaceName::from_static_str("io.cairn.Calc1").unwrap();
    let before = calc.get(name, "Desired").await.unwrap();

    let document = host.file("/etc/cairn/datastore/one-pod.yaml");
    let text = fs::read_to_string(&document).unwrap();
    let more = text.replace("[10.9.0.2/32]", "[10.9.0.2/32, 10.9.0.3/32]");
    fs::write(&document, more).unwrap();
    let told = async {
        while let Some(change) = changes.next().await {
            let change = change.args().unwrap();
            // That it was started may still be on its way.
            if let Some(now) = change.changed_properties.get("Desired")
                && now.to_string() != before.to_string()
            {
                return Some(());
            }
        }
        None
    };
    let told = timeout(PATIENCE, told).await;
    let route = timeout(PATIENCE, routes.next()).await;
    fs::write(&document, text).unwrap();
    told.unwrap().unwrap();
    let route = route.unwrap().unwrap();
    let route = route.args().unwrap();
    assert_eq!(*route.seq(), snapshot.seq + 1);
    assert_eq!(route.updates()[0].prefix, "10.9.0.3/32");
}

#[test]
fn the_units_are_sound_and_leave_little_open() {
    let host = host();
    let complaints = host.run("systemd-analyze verify cairn.target");
    assert_eq!(complaints, "");
    for (process, _, _, threshold) in RIGHTS {
        // It fails if the exposure is above the threshold.
        host.run(&format!(
            "systemd-analyze security --threshold={threshold} cairn-{process}.service"
        ));
    }
}

#[test]
fn a_stop_of_the_target_stops_all_and_leaves_the_pins() {
    let host = host();
    host.run("systemctl stop cairn.target");
    eventually("all is gone", || {
        let left = PROCESSES.map(|process| host.pid(process));
        let sockets = host.run("ls /run/cairn");
        if left == [0; 3] && sockets.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?} {sockets}"))
        }
    });
    let pins = host.run("ls /sys/fs/bpf/cairn");
    for pin in [ebpf::MAP_V4, ebpf::MAP_V6, ebpf::MAP_ENDPOINTS, "links"] {
        assert!(pins.lines().any(|name| name == pin), "{pins}");
    }
    host.run("systemctl start cairn.target");
    host.in_sync();
}
