//! Live migrations, and which part of them an endpoint is.

use serde::{Deserialize, Serialize};

use crate::{
    datastore::{
        document::ObjectKey,
        resource::{EndpointName, MigrationSpec, Resource},
        selector::{Labels, Selector},
    },
    event::{MigrationRole, WorkloadKey},
};

use super::{Flaw, Rule, Value};

/// A live migration, as far as it tells yet what it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::datastore) struct Migration {
    source: Option<Named>,
    target: Option<Target>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Target {
    Selected(Selector),
    Named(Named),
}

/// One endpoint, or all of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Named {
    /// None where the workload is known without it.
    node: Option<String>,
    orchestrator: String,
    workload: String,
    endpoint: Option<String>,
}

/// An empty selector selects nothing here, as in Calico.
pub(super) fn migration(
    object: &ObjectKey,
    resource: Resource<MigrationSpec>,
) -> Result<Option<Value>, Flaw> {
    if object.namespace.is_empty() {
        return Err(Rule::Missing.at("metadata.namespace"));
    }
    let MigrationSpec { source, target } = resource.spec;
    let source = match (source.workload, source.workload_endpoint) {
        (None, None) => None,
        (Some(name), None) => Some(Named::new(EndpointName {
            endpoint: String::new(),
            ..name
        })),
        (None, Some(name)) => Some(Named::new(name)),
        (Some(_), Some(_)) => {
            return Err(Rule::TwoNames("workload").at("spec.source.workloadEndpoint"));
        }
    };
    let target = match (target.selector.as_str(), target.workload_endpoint) {
        ("", None) => None,
        ("", Some(name)) => Some(Target::Named(Named::new(name))),
        (text, None) => Some(Target::Selected(
            Selector::parse(text)
                .map_err(|error| Rule::Selector(error).at("spec.target.selector"))?,
        )),
        (_, Some(_)) => {
            return Err(Rule::TwoNames("selector").at("spec.target.workloadEndpoint"));
        }
    };
    let migration = Migration { source, target };
    Ok(Some(Value::Migration(Box::new(migration))))
}

impl Migration {
    /// The part that the endpoint of that key and with these labels has in it.
    pub(in crate::datastore) fn role(&self, key: &WorkloadKey, labels: &Labels) -> MigrationRole {
        let is_target = match &self.target {
            None => false,
            Some(Target::Selected(selector)) => selector.matches(labels),
            Some(Target::Named(name)) => name.is(key),
        };
        if is_target {
            MigrationRole::Target
        } else if self.source.as_ref().is_some_and(|name| name.is(key)) {
            MigrationRole::Source
        } else {
            MigrationRole::None
        }
    }
}

impl Named {
    fn new(name: EndpointName) -> Self {
        let EndpointName {
            hostname,
            orchestrator,
            workload,
            endpoint,
        } = name;
        Self {
            // A pod's name tells it apart in the whole cluster.
            node: Some(hostname).filter(|_| orchestrator != "k8s"),
            orchestrator,
            workload,
            endpoint: Some(endpoint).filter(|endpoint| !endpoint.is_empty()),
        }
    }

    fn is(&self, key: &WorkloadKey) -> bool {
        self.node.as_ref().is_none_or(|node| *node == key.node)
            && self.orchestrator == key.orchestrator
            && self.workload == key.workload
            && self
                .endpoint
                .as_ref()
                .is_none_or(|endpoint| *endpoint == key.endpoint)
    }
}
