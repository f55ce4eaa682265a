//! IPAM blocks: which node owns which addresses.
//!
//! Where blocks overlap, which no sane IPAM makes, the narrower one is right.

use std::{collections::BTreeMap, mem, net::IpAddr};

use ipnet::IpNet;

use super::{Names, NodeId};
use crate::{
    event::Block,
    prefix::{PrefixMap, PrefixWalk, Run, single},
};

/// What is said of a block, with numbers for nodes.
#[derive(Debug)]
pub(crate) struct HeldBlock {
    owner: Option<NodeId>,
    /// The places of the addresses that others than the owner use, in order.
    others: Box<[(u32, NodeId)]>,
}

impl HeldBlock {
    pub(super) fn new(block: &Block, names: &mut Names) -> Self {
        let others = block.allocations.iter();
        let others = others.filter(|(_, node)| Some(*node) != block.owner.as_ref());
        Self {
            others: others
                .map(|(ordinal, node)| (*ordinal, names.intern(node)))
                .collect(),
            owner: block.owner.as_deref().map(|owner| names.intern(owner)),
        }
    }

    /// The addresses that others than the owner use.
    pub(crate) fn addresses(&self, cidr: &IpNet) -> impl Iterator<Item = IpNet> {
        let ordinals = self.others.iter().map(|(ordinal, _)| *ordinal);
        ordinals.filter_map(|ordinal| address(cidr, ordinal))
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    /// Who owns each block.
    owners: PrefixMap<Option<NodeId>>,
    /// The addresses, by block and ordinal, that others use: all of them where nobody owns the block.
    others: BTreeMap<(IpNet, u32), NodeId>,
}

impl Blocks {
    /// Starts to look at blocks, or at prefixes, that come in order.
    pub(crate) fn owners(&self) -> Owners<'_> {
        Owners {
            blocks: self,
            walk: self.owners.walk(),
        }
    }

    /// Leaves those of which something else is known.
    pub(super) fn retain_news(&self, blocks: &mut Vec<(IpNet, Option<HeldBlock>)>) {
        let mut known = self.owners.walk();
        blocks.retain(|(cidr, block)| match (known.get(cidr), block) {
            (None, None) => false,
            (Some(_), None) | (None, Some(_)) => true,
            (Some(owner), Some(block)) => {
                let others = self.others_in(cidr);
                let others = others.map(|((_, ordinal), node)| (*ordinal, *node));
                *owner != block.owner || !others.eq(block.others.iter().copied())
            }
        });
    }

    /// Takes over what is said of blocks, each of them once and in order.
    pub(super) fn set_all(&mut self, blocks: Vec<(IpNet, Option<HeldBlock>)>) {
        let mut owners = Run::default();
        owners.reserve(blocks.len());
        for (cidr, block) in blocks {
            if !self.others.is_empty() {
                let stale: Vec<_> = self.others_in(&cidr).map(|(key, _)| *key).collect();
                for key in stale {
                    self.others.remove(&key);
                }
            }
            match block {
                Some(HeldBlock {
                    owner,
                    others: nodes,
                }) => {
                    owners.push(cidr, owner);
                    let others = nodes
                        .iter()
                        .map(|(ordinal, node)| ((cidr, *ordinal), *node));
                    self.others.extend(others);
                }
                None => {
                    self.owners.remove(&cidr);
                }
            }
        }
        self.owners.absorb(owners);
    }

    /// Takes no more room than it must.
    pub(super) fn pack(&mut self) {
        self.owners.pack();
        self.others = mem::take(&mut self.others).into_iter().collect();
    }

    fn others_in(&self, cidr: &IpNet) -> impl Iterator<Item = (&(IpNet, u32), &NodeId)> {
        self.others.range((*cidr, 0)..=(*cidr, u32::MAX))
    }

    /// All blocks, by CIDR.
    pub(crate) fn cidrs(&self) -> impl Iterator<Item = IpNet> {
        self.owners.iter().map(|(cidr, _)| cidr)
    }

    /// All nodes, or virtual owners, that a block names, some of them more than once.
    pub(super) fn named(&self) -> impl Iterator<Item = NodeId> {
        let owners = self.owners.iter().filter_map(|(_, owner)| *owner);
        owners.chain(self.others.values().copied())
    }

    /// The addresses in the block that have an owner of their own.
    pub(crate) fn addresses(&self, cidr: &IpNet) -> impl Iterator<Item = IpNet> {
        self.others_in(cidr)
            .filter_map(|((cidr, ordinal), _)| address(cidr, *ordinal))
    }

    /// Returns who owns exactly this prefix: the owner of the block, or the user of an address in
    /// the block of another (L5).
    pub(crate) fn owner(&self, cidr: &IpNet) -> Option<NodeId> {
        self.owner_of(cidr, self.owners.get(cidr))
    }

    fn owner_of(&self, cidr: &IpNet, block: Option<&Option<NodeId>>) -> Option<NodeId> {
        if let Some(owner) = block.copied().flatten() {
            return Some(owner);
        }
        let address = single(cidr).filter(|_| !self.others.is_empty())?;
        self.user(cidr, address).or_else(|| {
            let mut around = self.owners.covering(*cidr);
            around.find_map(|(block, _)| self.user(&block, address))
        })
    }

    /// Returns who uses an address of the block, if that is another than its owner.
    fn user(&self, block: &IpNet, address: IpAddr) -> Option<NodeId> {
        let ordinal = ordinal(block, address)?;
        self.others.get(&(*block, ordinal)).copied()
    }
}

/// Looks at blocks, or at prefixes, that come in order.
#[derive(Debug)]
pub(crate) struct Owners<'a> {
    blocks: &'a Blocks,
    walk: PrefixWalk<'a, Option<NodeId>>,
}

impl Owners<'_> {
    /// As [`Blocks::owner`].
    pub(crate) fn of(&mut self, cidr: &IpNet) -> Option<NodeId> {
        self.blocks.owner_of(cidr, self.walk.get(cidr))
    }
}

/// The address at a place in a block, if it is in it.
fn address(block: &IpNet, ordinal: u32) -> Option<IpNet> {
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
