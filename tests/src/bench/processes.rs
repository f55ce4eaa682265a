//! Cairn's three processes on a node of their own, as the supervisor starts them, seen from outside: by
//! their faces, by the kernel's account of them, and by what they leave in the kernel.

mod full_map;
mod idle;
mod storm;

use std::{collections::HashMap, fs, path::Path, time::Duration};

use ipc_proto::bus;
use nix::{time::ClockId, unistd::Pid};
use tokio::time::{sleep, timeout};
use zbus::{Connection, OwnedVariant};

pub use self::{full_map::full_map, idle::idle, storm::storm};
use super::cluster::Cluster;
use crate::{
    netns::shell,
    world::{self, Node, Process},
};

/// How long anything may take before it counts as never happening: a large datastore takes its time.
const PATIENCE: Duration = Duration::from_mins(2);
/// How often is looked.
const PAUSE: Duration = Duration::from_millis(1);

/// See the [module](self).
struct Cairn {
    node: Node,
    supervisor: Connection,
    calc: Connection,
}

/// The ids of the processes.
#[derive(Clone, Copy)]
struct Pids {
    supervisor: u32,
    calc: u32,
    helper: u32,
}

impl Cairn {
    /// How many routes stand where others than these are looked at.
    const ROUTES: u32 = 10_000;

    /// Starts it on a node with [`ROUTES`](Self::ROUTES) routes, each in the map and, through the
    /// tunnel, in the kernel, and more `documents`; it reads the kernel back every so many seconds.
    async fn with_routes(refresh: &str, documents: &str) -> Self {
        let node = world::lone_node(&Cluster::node(0), Cluster::interface(0));
        node.refresh_every(refresh);
        let blocks = Self::ROUTES;
        Cluster { blocks }.write(&node.directory.join("datastore"), true);
        fs::write(node.document("more.yaml"), documents).unwrap();
        let cairn = Self::start(node).await;
        let routes = cairn.node.netns.run("ip -4 route show dev vxlan.calico");
        // All but the blocks of this node, which are no routes through the tunnel.
        let own = blocks / Cluster::NODES;
        assert_eq!(
            routes.lines().count(),
            usize::try_from(blocks - own).unwrap()
        );
        cairn
    }

    /// Starts it and waits until it has done all there is to do.
    async fn start(mut node: Node) -> Self {
        node.start();
        let run = node.directory.join("run");
        let cairn = Self {
            supervisor: connect(&run.join(bus::socket::SUPERVISOR)).await,
            calc: connect(&run.join(bus::socket::CALC)).await,
            node,
        };
        cairn.in_sync_again(0).await;
        cairn
    }

    /// Ends it and returns the node, where all stays as it is.
    fn stop(self) -> Node {
        let mut node = self.node;
        node.stop();
        node
    }

    /// Ends it for good.
    fn remove(self) {
        let node = self.stop();
        shell(&format!("ip netns del {}", node.name));
        fs::remove_dir_all(node.pin_dir()).unwrap();
        fs::remove_dir_all(node.directory).unwrap();
    }

    /// Returns whether nothing is left to do, and how often the kernel was read back.
    async fn standing(&self) -> (bool, u64) {
        let properties = read(&self.calc, bus::CALC_PATH, "io.cairn.Calc1").await;
        let is = |name| property::<bool>(&properties, name);
        (
            is("InSync") && is("Connected"),
            property(&properties, "Resyncs"),
        )
    }

    /// Returns how many batches the helper has answered.
    async fn batches(&self) -> u64 {
        let properties = read(&self.calc, bus::CALC_PATH, "io.cairn.Calc1").await;
        property(&properties, "Batches")
    }

    /// Waits until nothing is left to do, and the kernel was read back more than `resyncs` times.
    async fn in_sync_again(&self, resyncs: u64) {
        let wait = async {
            loop {
                let (in_sync, so_far) = self.standing().await;
                if in_sync && so_far > resyncs {
                    return;
                }
                sleep(PAUSE).await;
            }
        };
        let in_time = timeout(PATIENCE, wait).await;
        assert!(in_time.is_ok(), "not in sync: {}", self.node.status());
    }

    /// Returns the helper's id once the helper is up, if it is.
    async fn helper(&self) -> Option<u32> {
        let face = "io.cairn.Supervisor1";
        let properties = read(&self.supervisor, bus::SUPERVISOR_PATH, face).await;
        let up = property::<String>(&properties, "HelperState") == "up";
        up.then(|| property(&properties, "HelperPid"))
    }

    async fn pids(&self) -> Pids {
        let face = "io.cairn.Supervisor1";
        let properties = read(&self.supervisor, bus::SUPERVISOR_PATH, face).await;
        Pids {
            supervisor: self.node.pid(Process::Supervisor),
            calc: property(&properties, "CalcPid"),
            helper: property(&properties, "HelperPid"),
        }
    }
}

impl Pids {
    /// Returns how long the three have been on a processor since they began.
    fn cpu(self) -> Duration {
        [self.supervisor, self.calc, self.helper]
            .into_iter()
            .map(cpu)
            .sum()
    }
}

/// Connects to a face as soon as it is there.
async fn connect(path: &Path) -> Connection {
    let wait = async {
        loop {
            if let Ok(connection) = bus::connect(path).await {
                return connection;
            }
            sleep(PAUSE).await;
        }
    };
    timeout(PATIENCE, wait)
        .await
        .unwrap_or_else(|_| panic!("nobody at {}", path.display()))
}

/// Reads all properties of a face.
async fn read(face: &Connection, path: &str, interface: &str) -> HashMap<String, OwnedVariant> {
    let properties = Some("org.freedesktop.DBus.Properties");
    let answer = face
        .call_method(None::<&str>, path, properties, "GetAll", &interface)
        .await
        .unwrap();
    answer.body().deserialize().unwrap()
}

fn property<T: TryFrom<OwnedVariant>>(properties: &HashMap<String, OwnedVariant>, name: &str) -> T {
    let value = properties
        .get(name)
        .and_then(|value| value.try_clone().ok());
    value
        .and_then(|value| value.try_into().ok())
        .unwrap_or_else(|| panic!("{name} is not as it was: {properties:?}"))
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).unwrap())
}

/// Returns how long a process has been on a processor, with threads that have ended.
fn cpu(id: u32) -> Duration {
    let clock = ClockId::pid_cpu_clock_id(pid(id)).unwrap();
    clock.now().unwrap().into()
}

/// Returns the resident memory of a process, in MiB.
fn resident(id: u32) -> f64 {
    super::resident(&id.to_string()) / f64::from(1 << 20)
}
