//! Endpoints that come and go all the time while other routes stand.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use ipnet::IpNet;

use super::{Cairn, PATIENCE};
use crate::{
    bench::{Figure, Metric, cluster::Cluster, flows::TRACKING},
    flows::{self, Flow},
    monitor::Monitor,
    netns::shell,
    wait::eventually,
};

/// How often the kernel is read back without a cause, in seconds: the default.
const REFRESH: &str = "90.0";
/// How many endpoints come and go,
const ENDPOINTS: u32 = 1000;
/// how many more have come when one goes,
const LIFE: u32 = 100;
/// how long that takes in all,
const TIME: Duration = Duration::from_secs(10);
/// and how many links are made or removed at once: the kernel takes long for a removal.
const LINKS: u32 = 10;
/// How many flows each endpoint has.
const FLOWS: u16 = 10;
/// How many addresses a block has.
const BLOCK: u32 = 64;

/// Measures the processor time of all three processes, and counts the batches, while endpoints are made
/// and removed as a network plugin does it: link and document come and go.
///
/// # Panics
///
/// If one of them has no route, a flow of one is left, or anything else is not as before.
pub async fn storm() -> [Metric; 2] {
    let blocks = 0..ENDPOINTS.div_ceil(BLOCK);
    let own: String = blocks
        .map(|nth| Cluster::block_document(Cairn::ROUTES + nth, 0))
        .collect();
    let cairn = Cairn::with_routes(REFRESH, &own).await;
    let datastore = cairn.node.directory.join("datastore");
    let tracking = cairn.node.netns.within(|| shell(TRACKING));
    tracking.join().unwrap();
    let before = cairn.node.kernel_state();
    let pids = cairn.pids().await;
    let cpu = pids.cpu();
    let batches = cairn.batches().await;
    let netns = &cairn.node.netns;
    let storm = netns.within(move || come_and_go(&datastore));
    storm.join().unwrap();
    let endpoints: BTreeSet<IpAddr> = (0..ENDPOINTS).map(address).collect();
    let left = move || {
        let stale = |flow: &Flow| endpoints.contains(&flow.original[0]);
        match flows::tracked().into_iter().filter(stale).count() {
            0 => Ok(()),
            some => Err(format!("{some} flows are left")),
        }
    };
    let clean = netns.within(move || eventually("no stale flow", left));
    clean.join().unwrap();
    // Where calc lags, it is in sync with less than has been written: the last files are still to be read.
    eventually("the kernel as it was", || {
        let state = cairn.node.kernel_state();
        let new = state.lines().find(|line| !before.contains(line));
        let differs = || format!("it differs, such as by {new:?}");
        (state == before).then_some(()).ok_or_else(differs)
    });
    cairn.in_sync_again(0).await;
    let cpu = pids.cpu().saturating_sub(cpu);
    let batches = u32::try_from(cairn.batches().await - batches).unwrap();
    cairn.remove();
    [
        Metric::once("e2e.storm", "s", cpu.as_secs_f64()).asked(Figure::Median, 2.5),
        Metric::once("e2e.storm.batches", "batches", batches.into()).asked(Figure::Median, 120.0),
    ]
}

/// Makes and removes all endpoints at an even pace. One that has its route gets flows; it goes when it
/// is its time, but not before.
fn come_and_go(datastore: &Path) {
    let numbers: BTreeMap<IpAddr, u32> = (0..ENDPOINTS).map(|nth| (address(nth), nth)).collect();
    let monitor = Monitor::open();
    let mut routed = BTreeSet::new();
    // What comes does not wait for what goes. A thread begins where it was begun from.
    let (gone_groups, groups) = mpsc::channel::<u32>();
    let remove = thread::spawn(move || {
        for group in groups {
            shell(&format!("ip link del group {group}"));
        }
    });
    let mut gone = 0;
    let start = Instant::now();
    for step in 0.. {
        let due = start + TIME * step / (ENDPOINTS + LIFE);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if step < ENDPOINTS {
            if step.is_multiple_of(LINKS) {
                make_links(1 + step / LINKS, step..step + LINKS);
            }
            fs::write(file(datastore, step), document(step)).unwrap();
        }
        for word in monitor.told(0) {
            let address = word.strip_prefix("+route ");
            let address = address.and_then(|prefix| prefix.strip_suffix("/32")?.parse().ok());
            if let Some(number) = address.and_then(|address: IpAddr| numbers.get(&address)) {
                flows::track(flows_of(*number));
                routed.insert(*number);
            }
        }
        while gone + LIFE <= step && routed.contains(&gone) {
            fs::remove_file(file(datastore, gone)).unwrap();
            gone += 1;
            if gone.is_multiple_of(LINKS) {
                gone_groups.send(gone / LINKS).unwrap();
            }
        }
        if gone == ENDPOINTS {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "no route to endpoint {gone}");
    }
    drop(gone_groups);
    remove.join().unwrap();
}

fn address(number: u32) -> IpAddr {
    let IpNet::V4(block) = Cluster::block(Cairn::ROUTES + number / BLOCK) else {
        panic!("blocks are IPv4")
    };
    Ipv4Addr::from(u32::from(block.addr()) + number % BLOCK).into()
}

fn flows_of(number: u32) -> impl Iterator<Item = Flow> {
    let server = Ipv4Addr::new(192, 0, 2, 53).into();
    (0..FLOWS).map(move |nth| Flow::plain(address(number), server, 1024 + nth))
}

fn file(datastore: &Path, number: u32) -> PathBuf {
    datastore.join(format!("pod-{number}.yaml"))
}

fn document(number: u32) -> String {
    let node = Cluster::node(0);
    let name = format!("{}-k8s-pod{number}-eth0", node.replace('-', "--"));
    let address = address(number);
    format!(
        "apiVersion: projectcalico.org/v3\nkind: WorkloadEndpoint\n\
         metadata: {{name: {name}, namespace: storm}}\n\
         spec: {{orchestrator: k8s, node: {node}, pod: pod{number}, endpoint: eth0, \
         interfaceName: cali{number}, mac: '0a:00:00:00:00:01', ipNetworks: [{address}/32]}}\n"
    )
}

/// Makes links as one group.
fn make_links(group: u32, numbers: impl Iterator<Item = u32>) {
    let mut lines = String::new();
    for number in numbers {
        let (host, pod) = (format!("cali{number}"), format!("pod{number}"));
        writeln!(
            lines,
            "link add {host} group {group} type veth peer name {pod}\n\
             link set {host} up\nlink set {pod} up"
        )
        .unwrap();
    }
    shell(&format!("ip -batch - <<'end'\n{lines}end"));
}
