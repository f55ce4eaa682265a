//! BGP peers that are workloads on the node that speaks with them. Others are of no use to routes.

use serde::{Deserialize, Serialize};

use crate::datastore::{
    resource::{BgpPeerSpec, Resource},
    selector::{Labels, Selector},
};

use super::{Flaw, Rule, Value};

/// Which workloads, on which nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::datastore) struct Peers {
    nodes: Nodes,
    workloads: Selector,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Nodes {
    All,
    Named(String),
    Selected(Selector),
}

/// None for a peer elsewhere.
pub(super) fn peers(resource: Resource<BgpPeerSpec>) -> Result<Option<Value>, Flaw> {
    let BgpPeerSpec {
        node,
        node_selector,
        local_workload_selector,
    } = resource.spec;
    if local_workload_selector.is_empty() {
        return Ok(None);
    }
    let selector = |text: &str, field: &str| {
        Selector::parse(text).map_err(|error| Rule::Selector(error).at(field))
    };
    let nodes = match (node.is_empty(), node_selector.is_empty()) {
        (true, true) => Nodes::All,
        (false, true) => Nodes::Named(node),
        (true, false) => Nodes::Selected(selector(&node_selector, "spec.nodeSelector")?),
        (false, false) => return Err(Rule::TwoNames("node").at("spec.nodeSelector")),
    };
    let workloads = selector(&local_workload_selector, "spec.localWorkloadSelector")?;
    let peers = Peers { nodes, workloads };
    Ok(Some(Value::Peers(Box::new(peers))))
}

impl Peers {
    /// Returns whether they are for workloads of the node of that name and with these labels, if it
    /// is known.
    pub(in crate::datastore) fn are_on(&self, name: &str, labels: Option<&Labels>) -> bool {
        match &self.nodes {
            Nodes::All => true,
            Nodes::Named(node) => node == name,
            Nodes::Selected(nodes) => labels.is_some_and(|labels| nodes.matches(labels)),
        }
    }

    /// Returns whether a workload with these labels is one.
    pub(in crate::datastore) fn include(&self, labels: &Labels) -> bool {
        self.workloads.matches(labels)
    }
}
