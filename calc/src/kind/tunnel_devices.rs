//! The VXLAN devices, one for each family that has a VXLAN pool, unless the configuration says none.
//!
//! A device is wanted while all that it is made of is known: this node's address, its address in
//! the tunnel, and the uplink.

use std::collections::BTreeMap;

use ipc_proto::{Op, Tunnel, TunnelDevice};

use super::{Kind, World};
use crate::{
    event::Event,
    index::{Index, Vtep},
    prefix::Family,
};

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct TunnelDevices {
    desired: BTreeMap<Tunnel, TunnelDevice>,
    dirty: bool,
}

impl Kind for TunnelDevices {
    fn on_event(&mut self, event: &Event, before: &Index) {
        self.dirty |= match event {
            Event::Node(name, _) => **name == *before.name,
            Event::Pool(..) | Event::Config(_) | Event::Link(_) => true,
            Event::Block(..) | Event::Workload(..) | Event::Bgp(_) | Event::Links(_) => false,
        };
    }

    fn resolve_batch(&mut self, world: &World<'_>, ops: &mut Vec<Op>) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        for family in Family::ALL {
            let (tunnel, desired) = (family.tunnel(), want(family, world.index));
            let former = match desired.clone() {
                Some(device) => self.desired.insert(tunnel, device),
                None => self.desired.remove(&tunnel),
            };
            if former != desired {
                ops.push(Op::TunnelDevice(tunnel, desired.map(Box::new)));
            }
        }
    }
}

/// Returns this node's end of the tunnel, if the family's pools use one.
fn end(family: Family, index: &Index) -> Option<Vtep> {
    index
        .own_node()?
        .vtep(&index.name, family)
        .filter(|_| index.tunnels(family))
}

/// Returns the devices that are wanted, known or not what they are made of.
pub(crate) fn tunnels(index: &Index) -> impl Iterator<Item = Tunnel> {
    let used = Family::ALL
        .into_iter()
        .filter(|family| end(*family, index).is_some());
    used.map(Family::tunnel)
}

/// Returns whether it is unknown what a wanted device is made of.
pub(crate) fn unknown(index: &Index) -> bool {
    let is_unknown = |family| end(family, index).is_some() && want(family, index).is_none();
    Family::ALL.into_iter().any(is_unknown)
}

fn want(family: Family, index: &Index) -> Option<TunnelDevice> {
    let end = end(family, index)?;
    Some(TunnelDevice {
        vni: index.config.vxlan_vni,
        port: index.config.vxlan_port,
        local: end.node,
        parent: index.uplink(family)?.link.clone(),
        mac: end.mac,
        mtu: mtu(family, index)?,
        address: end.address,
    })
}

/// Returns whether a device is wanted that has not been seen up with its address: what goes through
/// it is yet to come.
pub(crate) fn awaited(index: &Index) -> bool {
    Family::ALL.into_iter().any(|family| {
        let Some(desired) = want(family, index) else {
            return false;
        };
        let complete = index.links.tunnel(family.tunnel()).is_some_and(|seen| {
            seen.up
                && seen
                    .addresses
                    .iter()
                    .any(|net| net.addr() == desired.address)
        });
        !complete
    })
}

/// Returns the largest packet, in bytes, that fits into the tunnel: as configured, or else what the
/// uplink leaves beside the outer headers.
pub(super) fn mtu(family: Family, index: &Index) -> Option<u32> {
    let (configured, overhead) = match family {
        Family::V4 => (index.config.vxlan_mtu, 50),
        Family::V6 => (index.config.vxlan_mtu_v6, 70),
    };
    configured
        .filter(|mtu| *mtu != 0)
        .or_else(|| Some(index.uplink(family)?.mtu.saturating_sub(overhead)))
}
