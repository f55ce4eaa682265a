//! IP pools.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::event::{Pool, TunnelMode};

use super::{Flaw, Rule, Value, masked};
use crate::datastore::resource::{PoolSpec, Resource};

const LINK_LOCAL: [IpNet; 2] = [
    IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16),
    IpNet::new_assert(IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
];

/// Applies the rules by which Calico accepts a pool. Overlaps with other pools are left to the
/// calculator, which takes the most specific one.
pub(super) fn pool(resource: &Resource<PoolSpec>) -> Result<Value, Flaw> {
    let spec = &resource.spec;
    if spec.cidr.is_empty() {
        return Err(Rule::Missing.at("spec.cidr"));
    }
    let cidr = masked(&spec.cidr).map_err(|rule| rule.at("spec.cidr"))?;
    let overlaps = |net: &IpNet| net.contains(&cidr) || cidr.contains(net);
    if LINK_LOCAL.iter().any(overlaps) {
        return Err(Rule::LinkLocal(cidr).at("spec.cidr"));
    }
    check_block_size(cidr, spec)?;
    let vxlan = mode(&spec.vxlan_mode).map_err(|rule| rule.at("spec.vxlanMode"))?;
    let ipip = mode(&spec.ipip_mode).map_err(|rule| rule.at("spec.ipipMode"))?;
    if vxlan != TunnelMode::Never && ipip != TunnelMode::Never {
        return Err(Rule::TwoEncapsulations.at("spec.ipipMode"));
    }
    if ipip != TunnelMode::Never && matches!(cidr, IpNet::V6(_)) {
        return Err(Rule::IpipForIpv6.at("spec.ipipMode"));
    }
    check_uses(spec)?;
    let uses = |name: &str| spec.allowed_uses.iter().any(|entry| entry == name);
    if uses("LoadBalancer") {
        check_load_balancer(spec, vxlan, ipip)?;
    } else if uses("Tunnel") && !spec.namespace_selector.is_empty() {
        return Err(Rule::TunnelPool.at("spec.namespaceSelector"));
    }
    let pool = Pool {
        vxlan,
        ipip,
        nat_outgoing: spec.nat_outgoing,
        load_balancer_only: uses("LoadBalancer"),
    };
    Ok(Value::Pool(cidr, pool))
}

fn mode(text: &str) -> Result<TunnelMode, Rule> {
    match text {
        "" | "Never" => Ok(TunnelMode::Never),
        "Always" => Ok(TunnelMode::Always),
        "CrossSubnet" => Ok(TunnelMode::CrossSubnet),
        _ => Err(Rule::OneOf {
            given: text.to_owned(),
            allowed: "Never, Always and CrossSubnet",
        }),
    }
}

fn check_block_size(cidr: IpNet, spec: &PoolSpec) -> Result<(), Flaw> {
    let (usual, least, most) = match cidr {
        IpNet::V4(_) => (26, 20, 32),
        IpNet::V6(_) => (122, 116, 128),
    };
    let block_size = if spec.block_size == 0 {
        usual
    } else {
        spec.block_size
    };
    if !(least..=most).contains(&block_size) {
        let given = block_size;
        return Err(Rule::Range { given, least, most }.at("spec.blockSize"));
    }
    if i64::from(cidr.prefix_len()) > block_size && !spec.disabled {
        return Err(Rule::PoolBelowBlock { cidr, block_size }.at("spec.cidr"));
    }
    Ok(())
}

fn check_uses(spec: &PoolSpec) -> Result<(), Flaw> {
    for (place, given) in spec.allowed_uses.iter().enumerate() {
        if !matches!(given.as_str(), "Workload" | "Tunnel" | "LoadBalancer") {
            let given = given.clone();
            let allowed = "Workload, Tunnel and LoadBalancer";
            return Err(Rule::OneOf { given, allowed }.at(format!("spec.allowedUses[{place}]")));
        }
    }
    Ok(())
}

fn check_load_balancer(spec: &PoolSpec, vxlan: TunnelMode, ipip: TunnelMode) -> Result<(), Flaw> {
    let selects_all = matches!(spec.node_selector.as_str(), "" | "all()");
    for (broken, field, remedy) in [
        (
            spec.allowed_uses
                .iter()
                .any(|entry| entry != "LoadBalancer"),
            "allowedUses",
            "split the pool",
        ),
        (vxlan != TunnelMode::Never, "vxlanMode", "set it to Never"),
        (ipip != TunnelMode::Never, "ipipMode", "set it to Never"),
        (!selects_all, "nodeSelector", "set it to all()"),
        (
            spec.disable_bgp_export,
            "disableBGPExport",
            "set it to false",
        ),
    ] {
        if broken {
            return Err(Rule::LoadBalancer(remedy).at(format!("spec.{field}")));
        }
    }
    Ok(())
}
