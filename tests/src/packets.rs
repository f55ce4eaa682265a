//! A node with pods, and the real helper with its packet programs on their links.
//!
//! The node is the namespace that the test runs in. Everything that is not the programs' is made by
//! hand, so that a test can leave it out.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd, OwnedFd},
    sync::mpsc,
    time::{Duration, Instant},
};

use ipc_proto::{AttachmentKey, BpfRoute, BpfTarget, Endpoint, Flags, Hook, Link, Mac, Op};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use crate::{
    helper::{Calc, Helper, link},
    netns::{Netns, shell},
    talk,
};

/// The port on which each pod tells its name.
pub const PORT: u16 = 7;

/// The hardware address of all of the host's ends, as Calico sets it.
const HOST_MAC: Mac = Mac([0xee; 6]);

/// The flags of a local workload's route.
pub const WORKLOAD: u32 = ebpf::flags::LOCAL | ebpf::flags::WORKLOAD;

/// A pod whose host's end is called `cali-` and its name.
#[derive(Debug)]
pub struct Pod {
    /// Its namespace, with its name.
    pub netns: Netns,
    /// The host's end of its link.
    pub link: Link,
    /// Its IPv4 and its IPv6 address.
    pub addresses: [IpAddr; 2],
    mac: Mac,
}

impl Pod {
    /// Makes the pod number `number`, which tells its name at [`PORT`], and the kernel's routes.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    #[must_use]
    pub fn new(name: &str, number: u8) -> Self {
        let netns = Netns::new(name);
        let mac = Mac([0x0a, 0, 0, 0, 0, number]);
        let cali = format!("cali-{name}");
        shell(&format!(
            "ip link add {cali} address {HOST_MAC} type veth peer name eth0 netns {} address {mac}",
            netns.path().display()
        ));
        shell(&format!(
            "sysctl -qw net.ipv6.conf.{cali}.accept_dad=0 && ip link set {cali} up"
        ));
        let addresses = [
            IpAddr::from(Ipv4Addr::new(10, 244, 1, number)),
            Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 1, number.into()).into(),
        ];
        netns.run("sysctl -qw net.ipv6.conf.eth0.accept_dad=0");
        netns.run("ip link set eth0 up");
        for address in addresses {
            netns.run(&format!("ip address add {address} dev eth0"));
            shell(&format!("ip route add {address} dev {cali}"));
            shell(&format!(
                "ip neigh add {address} lladdr {mac} nud permanent dev {cali}"
            ));
        }
        for gateway in ["169.254.1.1", "fe80::ecee:eeff:feee:eeee"] {
            netns.run(&format!(
                "ip neigh add {gateway} lladdr {HOST_MAC} nud permanent dev eth0"
            ));
        }
        netns.run("ip route add 169.254.1.1 dev eth0 scope link");
        netns.run("ip route add default via 169.254.1.1 dev eth0");
        netns.run("ip route add default via fe80::ecee:eeff:feee:eeee dev eth0");
        talk::serve(&netns, PORT, name);
        Self {
            link: link(&cali),
            netns,
            addresses,
            mac,
        }
    }

    /// The op that sets the routes of its addresses in the BPF maps.
    fn routes(&self, flags: u32) -> impl Iterator<Item = Op> {
        self.addresses.into_iter().map(move |address| {
            let target = BpfTarget::Link(self.link.clone());
            let flags = Flags(flags);
            Op::BpfRoute(address.into(), Some(BpfRoute { flags, target }))
        })
    }

    /// The op that tells the programs its hardware addresses.
    #[must_use]
    pub fn endpoint(&self) -> Op {
        let endpoint = Endpoint {
            host_mac: HOST_MAC,
            workload_mac: self.mac,
            sources: Vec::new(),
        };
        Op::Endpoint(self.link.clone(), Some(Box::new(endpoint)))
    }

    /// The op that attaches a program to its link, or detaches it.
    #[must_use]
    pub fn attachment(&self, hook: Hook, attached: bool) -> Op {
        let link = self.link.clone();
        Op::Attachment(AttachmentKey { link, hook }, attached)
    }

    /// Listens to all frames on its end.
    ///
    /// # Panics
    ///
    /// If it cannot.
    #[must_use]
    pub fn listen(&self) -> Frames {
        let (ready, opened) = mpsc::channel();
        let (frames, heard) = mpsc::channel();
        self.netns.within(move || {
            let socket: OwnedFd = socket(
                AddressFamily::Packet,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                SockProtocol::EthAll,
            )
            .unwrap();
            ready.send(()).unwrap();
            let mut buffer = [0; 2048];
            while let Ok(len) = nix::unistd::read(&socket, &mut buffer) {
                let frame = buffer.get(..len).unwrap_or_default().to_vec();
                if frames.send(frame).is_err() {
                    return;
                }
            }
            panic!("nothing to hear on {}", socket.as_raw_fd());
        });
        opened.recv().unwrap();
        Frames(heard)
    }
}

/// Frames that are heard.
#[derive(Debug)]
pub struct Frames(mpsc::Receiver<Vec<u8>>);

impl Frames {
    /// Returns all frames that are heard for so long, and those before.
    #[must_use]
    pub fn during(&self, time: Duration) -> Vec<Vec<u8>> {
        let end = Instant::now() + time;
        let left = || end.saturating_duration_since(Instant::now());
        std::iter::from_fn(|| self.0.recv_timeout(left()).ok()).collect()
    }

    /// Waits for a frame of which `wanted` makes something.
    ///
    /// # Panics
    ///
    /// If there is none soon.
    pub fn find<T>(&self, mut wanted: impl FnMut(&[u8]) -> Option<T>) -> T {
        loop {
            let frame = self.0.recv_timeout(crate::wait::PATIENCE);
            if let Some(found) = wanted(&frame.expect("such a frame")) {
                return found;
            }
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Node {
    /// The helper.
    pub helper: Helper,
    /// Its client.
    pub calc: Calc,
    /// Two pods.
    pub pods: [Pod; 2],
}

impl Node {
    /// Builds a node that forwards, with pods that can reach each other through the stack; no
    /// program is attached.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    pub async fn new() -> Self {
        shell("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        let pods = [Pod::new("one", 2), Pod::new("two", 3)];
        let helper = Helper::start("");
        let mut calc = helper.connect().await;
        calc.hello().await;
        Self { helper, calc, pods }
    }

    /// Sets what the programs go by, with these flags on the routes, and attaches them.
    ///
    /// # Panics
    ///
    /// If the helper refuses.
    pub async fn attach(&mut self, flags: [u32; 2]) {
        let mut ops: Vec<Op> = self.pods.iter().map(Pod::endpoint).collect();
        for (pod, flags) in self.pods.iter().zip(flags) {
            ops.extend(pod.routes(flags));
        }
        for pod in &self.pods {
            ops.extend([Hook::Ingress, Hook::Egress].map(|hook| pod.attachment(hook, true)));
        }
        self.calc.must_apply(ops).await;
    }

    /// Runs `body` and returns what it did to the counters: those that grew, by how much.
    ///
    /// # Panics
    ///
    /// If the helper does not answer.
    pub async fn counts(&self, body: impl FnOnce(&[Pod; 2])) -> BTreeMap<String, u64> {
        let before = self.helper.verdicts().await;
        body(&self.pods);
        let after = self.helper.verdicts().await;
        let grown = |(name, count): (String, u64)| {
            let grown = count - before.get(&name)?;
            (grown > 0).then_some((name, grown))
        };
        after.into_iter().filter_map(grown).collect()
    }
}
