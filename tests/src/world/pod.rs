//! A pod: a namespace and a link as Calico's CNI plugin makes them.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use super::Node;
use crate::{netns::Netns, talk};

/// See the [module](self).
#[derive(Debug)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub netns: Netns,
    /// Its IPv4 and its IPv6 address.
    pub addresses: [IpAddr; 2],
}

impl Pod {
    /// The port on which each pod tells its name.
    pub const PORT: u16 = 7;

    /// Makes the pod with address number `host` of the block of node number `number`.
    pub(super) fn new(name: &str, node: &Node, number: u16, host: u16) -> Self {
        let netns = Netns::new(name);
        node.netns.run(&format!(
            "ip link add cali-{name} address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns {} address 0a:00:00:00:{number:02x}:{host:02x}",
            netns.path().display()
        ));
        node.netns.run(&format!("ip link set cali-{name} up"));
        netns.run("ip link set eth0 up mtu 1450");
        // The next hop that Calico gives to every pod: the host answers for it (proxy ARP), and
        // has the link-local address that goes with its MAC.
        netns.run("ip route add 169.254.1.1 dev eth0 scope link");
        netns.run("ip route add default via 169.254.1.1 dev eth0");
        netns.run("ip route add default via fe80::ecee:eeff:feee:eeee dev eth0");
        let octets = [number, host].map(|part| u8::try_from(part).unwrap());
        let pod = Self {
            name: name.to_owned(),
            netns,
            addresses: [
                Ipv4Addr::new(10, 244, octets[0], octets[1]).into(),
                Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, number, host).into(),
            ],
        };
        for address in pod.addresses {
            pod.take(address);
        }
        talk::serve(&pod.netns, Self::PORT, name);
        pod
    }

    /// Gives it an address.
    pub fn take(&self, address: IpAddr) {
        let nodad = if address.is_ipv6() { "nodad" } else { "" };
        self.netns.run(&format!(
            "ip address add {} dev eth0 {nodad}",
            single(address)
        ));
    }

    /// Takes an address from it.
    pub fn give_up(&self, address: IpAddr) {
        self.netns
            .run(&format!("ip address del {} dev eth0", single(address)));
    }

    /// Asks whoever has `address` for its name; `None` if nobody answers within `patience`.
    ///
    /// # Panics
    ///
    /// If the pod's namespace cannot be entered.
    #[must_use]
    pub fn ask(&self, address: IpAddr, patience: Duration) -> Option<String> {
        talk::ask(&self.netns, address, Self::PORT, patience)
    }
}

fn single(address: IpAddr) -> ipnet::IpNet {
    address.into()
}
