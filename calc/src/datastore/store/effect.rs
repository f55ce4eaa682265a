//! What the objects that hold amount to on our node, all of them taken together.
//!
//! A function of what holds alone: in which order the objects came does not matter. Never changes
//! what holds.

use super::{Held, Report, Store};
use crate::{
    datastore::{
        convert::{Migration, Peers, Value},
        document::{Kind, ObjectKey},
        selector::Labels,
        settings::{Clash, Effective, Settings},
        view::View,
    },
    event::{MigrationRole, Workload, WorkloadKey},
};

impl Store {
    /// What the calculator shall see.
    pub(super) fn view(&self, report: &mut Report) -> View {
        let Effective { config, spoofing } = self.settings(report);
        let mut view = View {
            config,
            ..View::default()
        };
        let migrations = self.migrations();
        let peers = self.peers();
        for (key, Held { file, object }) in &self.held {
            // Of several with the same CIDR the one with the smallest name counts.
            let mut taken = false;
            match &object.value {
                None
                | Some(
                    Value::Settings(_)
                    | Value::SelectedSettings(_)
                    | Value::Migration(_)
                    | Value::Peers(_),
                ) => {}
                Some(Value::Services(services)) => view.services = services.clone(),
                Some(Value::Node(node, _)) => {
                    view.nodes.insert(key.name.clone(), node.clone());
                }
                Some(Value::Pool(cidr, pool)) => {
                    taken = view.pools.contains_key(cidr);
                    view.pools.entry(*cidr).or_insert_with(|| pool.clone());
                }
                Some(Value::Block(cidr, block)) => {
                    taken = view.blocks.contains_key(cidr);
                    view.blocks.entry(*cidr).or_insert_with(|| block.clone());
                }
                Some(Value::Workload { spoofs: true, .. }) if !spoofing => {
                    let text = format!(
                        "{key}: spec.allowSpoofedSourcePrefixes: needs workloadSourceSpoofing Any \
                         in the FelixConfiguration; the object counts as absent"
                    );
                    report.note(file, object.line, text);
                }
                Some(Value::Workload {
                    key,
                    workload,
                    labels,
                    ..
                }) => {
                    let workload = Workload {
                        migration: role(&migrations, key, labels),
                        bgp_peer: key.node == self.node
                            && peers.iter().any(|peers| peers.include(labels)),
                        ..workload.clone()
                    };
                    view.workloads.insert(key.clone(), workload);
                }
            }
            if taken {
                let text = format!(
                    "{key}: spec.cidr: is that of another object too, whose name comes first and \
                     which holds; remove one"
                );
                report.note(file, object.line, text);
            }
        }
        view
    }

    /// The settings of our node: its own before those of a selection that it belongs to, and
    /// those before the cluster's.
    fn settings(&self, report: &mut Report) -> Effective {
        let named = |name: &str| {
            let (key, held) = self.object(Kind::FelixConfiguration, name)?;
            match &held.object.value {
                Some(Value::Settings(settings)) => Some((key, held, settings)),
                _ => None,
            }
        };
        let sources: Vec<(&ObjectKey, &Held, &Settings)> = named(&format!("node.{}", self.node))
            .into_iter()
            .chain(self.selected_settings())
            .chain(named("default"))
            .collect();
        let settings: Vec<&Settings> = sources.iter().map(|(_, _, settings)| *settings).collect();
        let mut clashes = Vec::new();
        let effective = Effective::resolve(&settings, &mut clashes);
        for Clash { source, flaw } in clashes {
            if let Some((key, Held { file, object }, _)) = sources.get(source) {
                let text = format!("{key}: {}: {}", flaw.field, flaw.rule);
                report.note(file, object.line, text);
            }
        }
        effective
    }

    /// Of the settings for selections of nodes those that hold on ours: the oldest, and of several
    /// as old the one whose name comes first. None as long as our node, and so its labels, is not
    /// known.
    fn selected_settings(&self) -> Option<(&ObjectKey, &Held, &Settings)> {
        let labels = self.labels()?;
        let selected = self.held.iter().filter_map(|(key, held)| {
            if let Some(Value::SelectedSettings(selected)) = &held.object.value {
                let here = selected.nodes.matches(labels);
                here.then_some((key, held, selected))
            } else {
                None
            }
        });
        // Of equal ones this is the first, and they are in the order of their names.
        let oldest = selected.min_by_key(|(_, _, selected)| &selected.created);
        oldest.map(|(key, held, selected)| (key, held, &selected.settings))
    }

    /// The labels of our node, if it is known.
    fn labels(&self) -> Option<&Labels> {
        let (_, node) = self.object(Kind::Node, &self.node)?;
        match &node.object.value {
            Some(Value::Node(_, labels)) => Some(labels),
            _ => None,
        }
    }

    /// The BGP peers that are workloads of our node.
    fn peers(&self) -> Vec<&Peers> {
        let labels = self.labels();
        let values = self.held.values().map(|held| &held.object.value);
        values
            .filter_map(|value| {
                if let Some(Value::Peers(peers)) = value {
                    Some(peers).filter(|peers| peers.are_on(&self.node, labels))
                } else {
                    None
                }
            })
            .collect()
    }

    fn migrations(&self) -> Vec<&Migration> {
        let values = self.held.values().map(|held| &held.object.value);
        values
            .filter_map(|value| {
                if let Some(Value::Migration(migration)) = value {
                    Some(migration)
                } else {
                    None
                }
            })
            .collect()
    }

    /// The object of that name, of a kind without namespaces.
    fn object(&self, kind: Kind, name: &str) -> Option<(&ObjectKey, &Held)> {
        let key = ObjectKey {
            kind,
            namespace: String::new(),
            name: name.to_owned(),
        };
        self.held.get_key_value(&key)
    }
}

fn role(migrations: &[&Migration], key: &WorkloadKey, labels: &Labels) -> MigrationRole {
    let roles = migrations
        .iter()
        .map(|migration| migration.role(key, labels));
    roles.max().unwrap_or_default()
}
