//! IPAM blocks: which node owns which addresses.
//!
//! Where blocks overlap, which no sane IPAM makes, the narrower one is right.

use std::net::IpAddr;

use ipnet::IpNet;

use super::Names;
use crate::{
    event::Block,
    prefix::{PrefixMap, single},
    route::NodeName,
};

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    by_cidr: PrefixMap<Owners>,
}

/// What a block says.
#[derive(Debug)]
struct Owners {
    /// Who owns the block.
    block: Option<NodeName>,
    /// The addresses, by ordinal, that others use: all of them where nobody owns the block.
    others: Box<[(u32, NodeName)]>,
}

impl Blocks {
    /// Returns whether the block is known to be so.
    pub(super) fn holds(&self, cidr: &IpNet, block: Option<&Block>) -> bool {
        match (self.by_cidr.get(cidr), block) {
            (None, None) => true,
            (Some(known), Some(block)) => {
                known.block.as_deref() == block.owner.as_deref()
                    && known
                        .others
                        .iter()
                        .map(|(ordinal, node)| (*ordinal, &**node))
                        .eq(others(block))
            }
            (Some(_), None) | (None, Some(_)) => false,
        }
    }

    pub(super) fn set(&mut self, cidr: IpNet, block: Option<Block>, names: &mut Names) {
        match block {
            Some(block) => {
                let owners = Owners {
                    block: block.owner.as_deref().map(|owner| names.get(owner)),
                    others: others(&block)
                        .map(|(ordinal, node)| (ordinal, names.get(node)))
                        .collect(),
                };
                self.by_cidr.insert(cidr, owners);
            }
            None => {
                self.by_cidr.remove(&cidr);
            }
        }
    }

    /// All blocks, by CIDR.
    pub(crate) fn cidrs(&self) -> impl Iterator<Item = &IpNet> {
        self.by_cidr.iter().map(|(cidr, _)| cidr)
    }

    /// The addresses in the block that have an owner of their own.
    pub(crate) fn addresses(&self, cidr: &IpNet) -> impl Iterator<Item = IpNet> {
        let ordinals = self.by_cidr.get(cidr).map(|owners| &owners.others);
        let cidr = *cidr;
        ordinals
            .into_iter()
            .flatten()
            .filter_map(move |(ordinal, _)| address(&cidr, *ordinal))
    }

    /// Returns who owns exactly this prefix: the owner of the block, or the user of an address in
    /// the block of another (L5).
    pub(crate) fn owner(&self, cidr: &IpNet) -> Option<&NodeName> {
        let exact = self.by_cidr.get(cidr);
        if let Some(owner) = exact.and_then(|owners| owners.block.as_ref()) {
            return Some(owner);
        }
        let address = single(cidr)?;
        exact
            .and_then(|owners| owners.user(cidr, address))
            .or_else(|| {
                let mut around = self.by_cidr.covering(*cidr);
                around.find_map(|(block, owners)| owners.user(block, address))
            })
    }
}

impl Owners {
    /// Returns who uses an address of the block, if that is another than its owner.
    fn user(&self, block: &IpNet, address: IpAddr) -> Option<&NodeName> {
        let ordinal = ordinal(block, address)?;
        let at = self
            .others
            .binary_search_by_key(&ordinal, |(o, _)| *o)
            .ok()?;
        self.others.get(at).map(|(_, node)| node)
    }
}

/// The addresses of a block with another owner than itself.
pub(crate) fn others(block: &Block) -> impl Iterator<Item = (u32, &str)> {
    block
        .allocations
        .iter()
        .filter(|(_, node)| Some(*node) != block.owner.as_ref())
        .map(|(ordinal, node)| (*ordinal, node.as_str()))
}

/// The address at a place in a block, if it is in it.
pub(crate) fn address(block: &IpNet, ordinal: u32) -> Option<IpNet> {
    let address: IpAddr = match block.network() {
        IpAddr::V4(a) => IpAddr::V4(u32::from(a).checked_add(ordinal)?.into()),
        IpAddr::V6(a) => IpAddr::V6(u128::from(a).checked_add(ordinal.into())?.into()),
    };
    block.contains(&address).then(|| address.into())
}

/// The place of an address in a block.
fn ordinal(block: &IpNet, address: IpAddr) -> Option<u32> {
    match (block.network(), address) {
        (IpAddr::V4(block), IpAddr::V4(a)) => u32::from(a).checked_sub(block.into()),
        (IpAddr::V6(block), IpAddr::V6(a)) => {
            u128::from(a).checked_sub(block.into())?.try_into().ok()
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
    }
}
