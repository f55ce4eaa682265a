//! IP pools.

use std::collections::BTreeMap;

use ipnet::IpNet;

use crate::{
    event::{Pool, TunnelMode},
    prefix::Family,
    route::PoolKind,
};

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Pools {
    by_cidr: BTreeMap<IpNet, Pool>,
}

impl Pools {
    pub(crate) fn get(&self, cidr: &IpNet) -> Option<&Pool> {
        self.by_cidr.get(cidr)
    }

    pub(super) fn set(&mut self, cidr: IpNet, pool: Option<Pool>) {
        match pool {
            Some(pool) => self.by_cidr.insert(cidr, pool),
            None => self.by_cidr.remove(&cidr),
        };
    }

    /// Returns whether a pool of the family uses VXLAN.
    pub(crate) fn use_vxlan(&self, family: Family) -> bool {
        self.with_vxlan(family).next().is_some()
    }

    /// Returns whether one uses it between nodes of one subnet as well.
    pub(crate) fn always_use_vxlan(&self, family: Family) -> bool {
        self.with_vxlan(family).any(|pool| !pool.cross_subnet())
    }

    fn with_vxlan(&self, family: Family) -> impl Iterator<Item = &Pool> {
        let of_family =
            move |(cidr, pool): (&IpNet, _)| (Family::of_net(cidr) == family).then_some(pool);
        let pools = self.by_cidr.iter().filter_map(of_family);
        pools.filter(|pool: &&Pool| pool.kind() == PoolKind::Vxlan)
    }
}

impl Pool {
    /// What routes of the pool are (L8, L9): where both encapsulations are set, VXLAN wins.
    pub(crate) fn kind(&self) -> PoolKind {
        if self.load_balancer_only {
            PoolKind::None
        } else if self.vxlan != TunnelMode::Never {
            PoolKind::Vxlan
        } else if self.ipip != TunnelMode::Never {
            PoolKind::Ipip
        } else {
            PoolKind::NoEncap
        }
    }

    /// Whether nodes of one subnet reach each other without a tunnel.
    pub(crate) fn cross_subnet(&self) -> bool {
        [self.vxlan, self.ipip].contains(&TunnelMode::CrossSubnet)
    }
}
