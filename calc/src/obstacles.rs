//! What keeps something from being wanted that should be: a part of it is missing on this host. For
//! the operator; nothing is decided by it. Pure.

use crate::{
    event::SourceHint,
    index::{Holder, Index},
    prefix::Family,
};

/// How many endpoints are named; a node that has just booted has hundreds without an interface.
const MAX_NAMED: usize = 8;

/// Returns all obstacles, in a fixed order.
pub(crate) fn of(index: &Index) -> Vec<String> {
    uplinks(index)
        .chain(sources(index))
        .chain(interfaces(index))
        .chain(claims(index))
        .chain(peering(index))
        .collect()
}

/// The node's own addresses that no interface holds.
fn uplinks(index: &Index) -> impl Iterator<Item = String> {
    let wanted = Family::ALL
        .into_iter()
        .filter(|family| index.wants(*family));
    wanted.filter_map(|family| {
        let own = index.own_node()?.main(family)?.addr();
        index.uplink(family).is_none().then(|| {
            format!(
                "Node {}: no interface holds its address {own}, so its tunnel stays as it is and \
                 routes through the interface cannot be made: add the address, or correct the Node",
                index.name
            )
        })
    })
}

/// The interfaces that routes should take their source address from, without one.
fn sources(index: &Index) -> impl Iterator<Item = String> {
    let wanted = Family::ALL
        .into_iter()
        .filter(|family| index.wants(*family));
    wanted.filter_map(|family| {
        let SourceHint::Interface(name) = index.source_hint(family)? else {
            return None;
        };
        let (parameter, kind) = match family {
            Family::V4 => ("deviceRouteSourceAddress", "IPv4"),
            Family::V6 => ("deviceRouteSourceAddressIPv6", "IPv6"),
        };
        index.source(family).is_none().then(|| {
            format!(
                "{parameter}: there is no interface {name} with an {kind} address that others can \
                 send to, so routes have no source address: add one, or correct the parameter"
            )
        })
    })
}

/// The addresses towards peers among the workloads, if there are such, that somebody else has.
fn peering(index: &Index) -> impl Iterator<Item = String> {
    let mut workloads = index.workloads.local();
    let wanted = !index.config.route_sync_disabled && workloads.any(|(_, one)| one.bgp_peer);
    let wanted = Family::ALL.into_iter().filter(move |_| wanted);
    wanted.filter_map(|family| {
        let address = index.peering(family)?;
        let field = match family {
            Family::V4 => "localWorkloadPeeringIPV4",
            Family::V6 => "localWorkloadPeeringIPV6",
        };
        let holder = match index.holder(address)? {
            Holder::Node(name) => format!("Node {name} has"),
            Holder::Workload(key) => format!(
                "WorkloadEndpoint {} {} on node {} has",
                key.workload, key.endpoint, key.node
            ),
            Holder::Ipam(name) => format!("IPAM has given away on node {name}"),
            Holder::Service(net) => format!("services have by {net}"),
        };
        Some(format!(
            "BGPConfiguration default: {field} {address} is an address that {holder}, so it is put on no \
             workload's link, and BGP peers there do not reach this host by it: configure one that nobody \
             has, outside the pools"
        ))
    })
}

/// This node's endpoints whose interface does not exist.
fn interfaces(index: &Index) -> impl Iterator<Item = String> {
    let missing = || {
        let all = index.workloads.local();
        all.filter(|(_, workload)| index.links.named(&workload.interface).is_none())
    };
    let named = missing().take(MAX_NAMED).map(|(key, workload)| {
        format!(
            "WorkloadEndpoint {} {}: there is no interface {}; what belongs to it is made when it \
             appears",
            key.workload, key.endpoint, workload.interface
        )
    });
    let more = missing().count().saturating_sub(MAX_NAMED);
    let more = (more > 0).then(|| format!("{more} more endpoints have no interface"));
    named.chain(more)
}

/// The prefixes that several endpoints of this node claim.
fn claims(index: &Index) -> impl Iterator<Item = String> {
    let contested = || index.workloads.claimed_by_several();
    let more = contested().count().saturating_sub(MAX_NAMED);
    let named = contested().take(MAX_NAMED).map(|net| {
        let all = index.workloads.local_with_net(net);
        let names = all.map(|(key, workload)| {
            format!("{} {} on {}", key.workload, key.endpoint, workload.interface)
        });
        let has_it = index.endpoint(net).map(|workload| workload.interface.to_string());
        format!(
            "{net} is claimed by several WorkloadEndpoints of this node: {}; it leads to {}: remove it \
             from all but one",
            names.collect::<Vec<_>>().join(", "),
            has_it.unwrap_or_default()
        )
    });
    let more = (more > 0).then(|| format!("{more} more prefixes are claimed by several endpoints"));
    named.chain(more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Bgp, Block, Event, MigrationRole, Node, Workload, WorkloadKey};

    fn endpoint(node: &str, workload: &str, nets: &[&str]) -> Event {
        let key = WorkloadKey {
            node: node.to_owned(),
            orchestrator: "k8s".to_owned(),
            workload: workload.to_owned(),
            endpoint: "eth0".to_owned(),
        };
        let workload = (!nets.is_empty()).then(|| Workload {
            interface: format!("cali-{workload}").parse().unwrap(),
            nets: nets.iter().map(|net| net.parse().unwrap()).collect(),
            mac: None,
            skip_ingress_redirect: false,
            bgp_peer: workload == "peer",
            migration: MigrationRole::None,
        });
        Event::Workload(key, workload)
    }

    #[test]
    fn an_address_towards_peers_that_somebody_else_has_is_told_with_their_name() {
        let mut index = Index::new("here".to_owned());
        let node = Node {
            bgp_ipv4: Some("192.0.2.1/24".parse().unwrap()),
            vxlan_v4: Some("10.0.9.1".parse().unwrap()),
            ..Node::default()
        };
        let block = Block {
            owner: Some("here".to_owned()),
            allocations: [(3, "there".to_owned()), (4, "here".to_owned())].into(),
        };
        for event in [
            Event::Node("there".to_owned(), Some(node)),
            endpoint("there", "c", &["10.0.0.2/32"]),
            endpoint("there", "peer", &["10.0.0.4/32"]),
            Event::Block("10.0.3.0/26".parse().unwrap(), Some(block)),
        ] {
            index.apply(event);
        }
        for (address, holder) in [
            ("192.0.2.1", "that Node there has"),
            ("10.0.9.1", "that Node there has"),
            ("10.0.0.2", "that WorkloadEndpoint c eth0 on node there has"),
            ("10.0.3.3", "that IPAM has given away on node there"),
            ("10.96.0.10", "that services have by 10.96.0.0/12"),
            ("169.254.0.179", ""),
        ] {
            let mut bgp = Bgp {
                services: vec!["10.96.0.0/12".parse().unwrap()],
                ..Bgp::default()
            };
            bgp.peering.v4 = address.parse().ok();
            index.apply(Event::Bgp(bgp));
            index.apply(endpoint("here", "peer", &[]));
            assert_eq!(peering(&index).count(), 0, "nobody here is a peer");
            index.apply(endpoint("here", "peer", &["10.0.0.5/32"]));
            let told: Vec<_> = peering(&index).collect();
            assert_eq!(told.len(), usize::from(!holder.is_empty()), "{told:?}");
            let named = |line: &String| line.contains(address) && line.contains(holder);
            assert!(told.iter().all(named), "{told:?}");
        }
    }

    #[test]
    fn a_prefix_that_several_endpoints_here_claim_is_told_with_their_names_as_long_as_it_lasts() {
        let mut index = Index::new("here".to_owned());
        let [one, other] = ["10.0.0.1/32", "10.0.0.2/32"];
        for event in [
            endpoint("here", "a", &[one, other]),
            endpoint("there", "c", &[other]),
        ] {
            index.apply(event);
            assert_eq!(claims(&index).count(), 0, "one node's endpoint has it");
        }
        index.apply(endpoint("here", "b", &[one]));
        let told = "10.0.0.1/32 is claimed by several WorkloadEndpoints of this node: a eth0 on \
                    cali-a, b eth0 on cali-b; it leads to cali-b: remove it from all but one";
        assert_eq!(claims(&index).collect::<Vec<_>>(), [told]);
        index.apply(endpoint("here", "b", &[]));
        assert_eq!(claims(&index).count(), 0);
    }
}
