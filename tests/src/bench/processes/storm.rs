//! Endpoints that come and go all the time while other routes stand.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use ipnet::IpNet;

use super::Cairn;
use crate::{
    bench::{Figure, Metric, cluster::Cluster, flows::TRACKING},
    flows::{self, Flow},
    monitor::Monitor,
    netns::shell,
    wait::eventually,
    world,
};

/// How many routes stand.
const BLOCKS: u32 = 10_000;
/// How many endpoints come and go,
const ENDPOINTS: u32 = 1000;
/// how many there are at a time,
const LIFE: u32 = 100;
/// how long that takes in all,
const TIME: Duration = Duration::from_secs(10);
/// and how many links are made or removed at once: the kernel takes long for a removal.
const LINKS: u32 = 10;
/// How many flows each endpoint has.
const FLOWS: u16 = 10;
/// How many addresses a block has.
const BLOCK: u32 = 64;

/// Measures the processor time of all three processes while endpoints are made and removed as a
/// network plugin does it: link and document come and go, and flows are tracked between.
///
/// # Panics
///
/// If one of them never had its route, a flow of one is left, or anything else is not as before.
pub async fn storm() -> Metric {
    let node = world::lone_node(&Cluster::node(0), Cluster::interface(0));
    node.refresh_every("90.0");
    let datastore = node.directory.join("datastore");
    Cluster { blocks: BLOCKS }.write(&datastore, true);
    let own = (0..ENDPOINTS.div_ceil(BLOCK)).map(|nth| Cluster::block_document(BLOCKS + nth, 0));
    fs::write(datastore.join("own.yaml"), own.collect::<String>()).unwrap();
    node.netns.within(|| shell(TRACKING)).join().unwrap();
    let cairn = Cairn::start(node).await;
    let before = cairn.node.kernel_state();
    let pids = cairn.pids().await;
    let cpu = pids.cpu();
    let netns = &cairn.node.netns;
    let routed = netns
        .within(move || come_and_go(&datastore))
        .join()
        .unwrap();
    let left = || {
        let tracked = flows::tracked();
        match tracked
            .iter()
            .filter(|flow| addresses().contains(&flow.original[0]))
            .count()
        {
            0 => Ok(()),
            some => Err(format!("{some} flows are left")),
        }
    };
    let clean = netns.within(move || eventually("no stale flow", left));
    clean.join().unwrap();
    cairn.in_sync_again(0).await;
    let cpu = pids.cpu() - cpu;
    let missing: Vec<IpAddr> = addresses().difference(&routed).copied().collect();
    assert!(missing.is_empty(), "never had a route: {missing:?}");
    assert!(
        cairn.node.kernel_state() == before,
        "the kernel is not as it was"
    );
    cairn.remove();
    Metric::once("e2e.storm", "s", cpu.as_secs_f64()).asked(Figure::Median, 2.5)
}

/// Makes and removes all endpoints at an even pace, and returns the addresses that had a route.
fn come_and_go(datastore: &Path) -> BTreeSet<IpAddr> {
    let monitor = Monitor::open();
    let mut routed = BTreeSet::new();
    // Two, lest what comes waits for what goes.
    let (mut add, mut remove) = (Links::new(), Links::new());
    let steps = ENDPOINTS + LIFE;
    let start = Instant::now();
    for step in 0..steps {
        thread::sleep((start + TIME * step / steps).saturating_duration_since(Instant::now()));
        if step < ENDPOINTS {
            if step.is_multiple_of(LINKS) {
                add.make(step / LINKS, step..step + LINKS);
            }
            flows::track(flows_of(step));
            fs::write(file(datastore, step), document(step)).unwrap();
        }
        if let Some(gone) = step.checked_sub(LIFE) {
            fs::remove_file(file(datastore, gone)).unwrap();
            if (gone + 1).is_multiple_of(LINKS) {
                remove.remove(gone / LINKS);
            }
        }
        let told = monitor.told(0);
        let made = told
            .iter()
            .filter_map(|word| word.strip_prefix("+route ")?.strip_suffix("/32"));
        routed.extend(made.filter_map(|address| address.parse::<IpAddr>().ok()));
    }
    add.end();
    remove.end();
    routed
}

fn addresses() -> BTreeSet<IpAddr> {
    (0..ENDPOINTS).map(address).collect()
}

fn address(number: u32) -> IpAddr {
    let IpNet::V4(block) = Cluster::block(BLOCKS + number / BLOCK) else {
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

/// Makes or removes links, in order, without anybody waiting for it.
struct Links(Child);

impl Links {
    fn new() -> Self {
        let mut ip = Command::new("ip");
        ip.args(["-batch", "-"]).stdin(Stdio::piped());
        Self(ip.spawn().unwrap())
    }

    fn say(&mut self, line: &str) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Makes links as one group.
    fn make(&mut self, group: u32, numbers: impl Iterator<Item = u32>) {
        for number in numbers {
            let (host, pod) = (format!("cali{number}"), format!("pod{number}"));
            let group = group + 1;
            self.say(&format!(
                "link add {host} group {group} type veth peer name {pod}"
            ));
            self.say(&format!("link set {host} up"));
            self.say(&format!("link set {pod} up"));
        }
    }

    fn remove(&mut self, group: u32) {
        self.say(&format!("link del group {}", group + 1));
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(
            self.0.wait().unwrap().success(),
            "a link was not as it should be"
        );
    }
}
