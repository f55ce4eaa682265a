//! IPAM blocks.

use std::collections::BTreeMap;

use ipnet::IpNet;

use crate::event::Block;

use super::{Flaw, Rule, Value, prefix};
use crate::datastore::resource::{BlockSpec, Resource};

/// None for one that is being deleted, which is empty. What is wrong with one allocation costs
/// that one alone.
pub(super) fn block(
    resource: &Resource<BlockSpec>,
    flaws: &mut Vec<Flaw>,
) -> Result<Option<Value>, Flaw> {
    let spec = &resource.spec;
    if spec.cidr.is_empty() {
        return Err(Rule::Missing.at("spec.cidr"));
    }
    let cidr = prefix(&spec.cidr)
        .map_err(|rule| rule.at("spec.cidr"))?
        .trunc();
    if spec.deleted.0 {
        return Ok(None);
    }
    let block = Block {
        owner: owner(&spec.affinity, flaws),
        allocations: allocations(cidr, spec, flaws),
    };
    Ok(Some(Value::Block(cidr, block)))
}

fn owner(affinity: &str, flaws: &mut Vec<Flaw>) -> Option<String> {
    if affinity.is_empty() {
        return None;
    }
    let owner = affinity
        .strip_prefix("host:")
        .or_else(|| affinity.strip_prefix("virtual:"))
        .filter(|owner| {
            !owner.is_empty()
                && owner
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
        });
    if owner.is_none() {
        flaws.push(Rule::Affinity(affinity.to_owned()).at("spec.affinity"));
    }
    owner.map(str::to_owned)
}

fn allocations(cidr: IpNet, spec: &BlockSpec, flaws: &mut Vec<Flaw>) -> BTreeMap<u32, String> {
    let host_bits = u32::from(cidr.max_prefix_len() - cidr.prefix_len());
    // None for a block of more addresses than there are ordinals.
    let size = 1_u32.checked_shl(host_bits);
    let mut allocations = BTreeMap::new();
    for (place, index) in spec.allocations.iter().enumerate() {
        let Some(index) = *index else { continue };
        let field = || format!("spec.allocations[{place}]");
        let ordinal = u32::try_from(place)
            .ok()
            .filter(|ordinal| size.is_none_or(|size| *ordinal < size));
        let attributes = usize::try_from(index)
            .ok()
            .and_then(|index| spec.attributes.get(index));
        match (ordinal, attributes) {
            (None, _) => flaws.push(Rule::BeyondBlock.at(field())),
            (_, None) => {
                let count = spec.attributes.len();
                flaws.push(Rule::NoAttributes { index, count }.at(field()));
            }
            (Some(ordinal), Some(attributes)) => {
                // Without a node it is an address in cooldown, or one of a load balancer.
                if let Some(node) = attributes
                    .secondary
                    .get("node")
                    .filter(|node| !node.is_empty())
                {
                    allocations.insert(ordinal, node.clone());
                }
            }
        }
    }
    allocations
}
