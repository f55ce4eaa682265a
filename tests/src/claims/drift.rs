//! What others may do to what Cairn keeps.

use std::{fs, process::Command};

use crate::{netns::run, world::Node};

/// Something that somebody changes behind Cairn's back.
#[derive(Clone, Copy, Debug)]
pub enum Drift {
    /// An entry of the BPF map goes.
    MapEntry,
    /// A kernel route goes.
    KernelRoute,
    /// A tunnel's neighbour goes.
    Neighbour,
    /// A sysctl of a workload's link is turned.
    Sysctl,
    /// A packet program is detached.
    Program,
}

impl Drift {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::MapEntry,
        Self::KernelRoute,
        Self::Neighbour,
        Self::Sysctl,
        Self::Program,
    ];

    /// Makes the change on `node-1` and says what it did.
    pub(super) fn make(self, node: &Node) -> &'static str {
        match self {
            Self::MapEntry => {
                // 10.244.1.2/32: the length in host byte order, then the address.
                let key = "0x20 0 0 0 10 244 1 2";
                let pin = node.pin_dir().join(ebpf::MAP_V4);
                let mut delete = Command::new("bpftool");
                delete.args(["map", "delete", "pinned"]).arg(pin).arg("key");
                run(delete.args(key.split(' ')));
                "deleted 10.244.1.2/32 from cali_v4_routes"
            }
            Self::KernelRoute => {
                node.netns.run("ip route del 10.244.2.0/26");
                "deleted the route to 10.244.2.0/26"
            }
            Self::Neighbour => {
                node.netns.run("ip neigh del 10.244.2.0 dev vxlan.calico");
                "deleted the neighbour 10.244.2.0 from vxlan.calico"
            }
            Self::Sysctl => {
                node.netns
                    .run("sysctl -qw net.ipv4.conf.cali-frontend.proxy_arp=0");
                "set proxy_arp of cali-frontend to 0"
            }
            Self::Program => {
                let pins = node.pin_dir().join("links");
                for pin in node.program_pins() {
                    fs::remove_file(pins.join(pin)).expect("a pin");
                }
                "detached all packet programs"
            }
        }
    }
}
