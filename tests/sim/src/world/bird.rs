//! BIRD: the routes that it has from the workloads with which it speaks BGP. It knows nobody else's, and
//! calc and the helper know nothing of when they come and go.

use ipc_proto::{RouteKey, Table, view::Kind};
use ipnet::IpNet;

use super::{World, drift::nth};
use crate::{
    cluster::{self, block_cidr, net, place, v4, v6},
    kernel::{Key, Route, Way},
    peers::BIRD,
};

/// Where BIRD puts its routes by default.
const METRIC: u32 = 32;

impl World {
    /// A peer announces a prefix, or withdraws it.
    pub(super) fn bird(&mut self, which: u8) {
        let peers: Vec<_> = cluster::peers(&self.datastore.documents)
            .into_iter()
            .collect();
        let peer = nth(peers.iter(), which);
        let Some(index) = peer.and_then(|name| self.kernel.index(name)) else {
            return;
        };
        if self
            .kernel
            .devices
            .get(&index)
            .is_none_or(|device| !device.admin)
        {
            return;
        }
        let [pod_v4, pod_v6] = place((which / 24).into()).map(IpNet::from);
        let prefix = match which / 4 % 6 {
            0 => net(v4(10, 70, which, 0), 24),
            1 => net(v6(70, 0), 64),
            2 => pod_v4,
            3 => pod_v6,
            4 => block_cidr(2),
            _ => block_cidr(6),
        };
        let key = RouteKey::new(Table::Main, prefix, METRIC);
        let route = Route {
            protocol: BIRD,
            way: Way::Out {
                index,
                via: None,
                onlink: false,
            },
            source: None,
            mtu: None,
        };
        match self.kernel.routes.get(&key).map(Vec::as_slice) {
            Some([there]) if *there == route => {
                self.kernel.routes.remove(&key);
            }
            // It has a better one, or somebody else keeps it out.
            Some(_) => return,
            None => {
                self.kernel.routes.insert(key.clone(), vec![route]);
                self.tally.add("routes from peers");
            }
        }
        self.kernel.others.insert(Kind::KernelRoutes);
        self.kernel.disturbed.keys.insert(Key::Route(key));
    }
}
