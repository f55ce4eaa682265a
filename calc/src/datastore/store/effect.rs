//! What the objects that hold amount to on our node, all of them taken together.
//!
//! A function of what holds alone: in which order the objects came does not matter. Never changes
//! what holds.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::{FileName, Store, contents::File};
use crate::{
    datastore::{
        convert::{Flaw, Migration, Peers, Value},
        document::{Kind, ObjectKey},
        selector::Labels,
        settings::{Clash, Effective, Settings},
    },
    event::{Event, MigrationRole, Workload, WorkloadKey},
};

/// What an event is about.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Config,
    Bgp,
    Node(ObjectKey),
    Pool(IpNet),
    Block(IpNet),
    Workload(Box<(WorkloadKey, ObjectKey)>),
}

/// What meanings depend on besides the objects themselves.
pub(super) struct Sight<'a> {
    store: &'a Store,
    effective: Effective,
    migrations: Vec<Migration>,
    /// Those on our node.
    peers: Vec<Peers>,
}

impl Store {
    /// What events may be about if something else holds of `touched` objects once `news` are taken in:
    /// each once, in order.
    pub(super) fn subjects(
        &self,
        touched: &BTreeSet<ObjectKey>,
        news: &BTreeMap<FileName, Option<File>>,
    ) -> Vec<Subject> {
        let mut subjects = Vec::new();
        if self.told.is_none() {
            subjects.extend([Subject::Config, Subject::Bgp]);
        }
        let (mut migrations, mut peers) = (Vec::new(), Vec::new());
        let mut labels_of_node = false;
        let mut take = |key: &ObjectKey, value: Option<Value>| match value {
            None => {}
            Some(Value::Settings(_) | Value::SelectedSettings(_)) => self.config(&mut subjects),
            Some(Value::Bgp(_)) => subjects.push(Subject::Bgp),
            Some(Value::Node(..)) => {
                subjects.push(Subject::Node(key.clone()));
                if *key.name == *self.node {
                    self.config(&mut subjects);
                    labels_of_node = true;
                }
            }
            Some(Value::Pool(cidr, _)) => subjects.push(Subject::Pool(cidr)),
            Some(Value::Block(cidr, _)) => subjects.push(Subject::Block(cidr)),
            Some(Value::Workload { key: workload, .. }) => {
                subjects.push(Subject::Workload(Box::new((*workload, key.clone()))));
            }
            Some(Value::Migration(migration)) => migrations.push(*migration),
            Some(Value::Peers(some)) => peers.push(*some),
        };
        for key in touched {
            for (_, record) in self.objects.files.definitions(key) {
                take(key, record.object().and_then(|object| object.value));
            }
            take(key, self.objects.value(key));
        }
        for file in news.values().flatten() {
            for record in file.objects.iter() {
                if let Some(key) = record.key().filter(|key| touched.contains(key)) {
                    take(&key, record.object().and_then(|object| object.value));
                }
            }
        }
        if labels_of_node {
            peers.extend(self.peers());
        }
        if !migrations.is_empty() || !peers.is_empty() {
            for (object, value) in self.objects.of_kind(Kind::WorkloadEndpoint) {
                let Value::Workload { key, labels, .. } = value else {
                    continue;
                };
                let moves =
                    |migration: &Migration| migration.role(&key, &labels) != MigrationRole::None;
                let speaks = |peers: &Peers| peers.include(&labels);
                if migrations.iter().any(moves) || key.node == self.node && peers.iter().any(speaks)
                {
                    subjects.push(Subject::Workload(Box::new((*key, object.clone()))));
                }
            }
        }
        subjects.sort_unstable();
        subjects.dedup();
        subjects
    }

    /// Adds what depends on the settings.
    fn config(&self, subjects: &mut Vec<Subject>) {
        subjects.push(Subject::Config);
        for key in self.objects.spoofers() {
            if let Some(Value::Workload { key: workload, .. }) = self.objects.value(key) {
                subjects.push(Subject::Workload(Box::new((*workload, key.clone()))));
            }
        }
    }

    /// What meanings depend on at present.
    pub(super) fn sight(&self) -> Sight<'_> {
        let migrations = self.objects.of_kind(Kind::LiveMigration);
        let migrations = migrations.filter_map(|(_, value)| {
            if let Value::Migration(migration) = value {
                Some(*migration)
            } else {
                None
            }
        });
        let labels = self.labels();
        Sight {
            store: self,
            effective: self.settings().0,
            migrations: migrations.collect(),
            peers: self
                .peers()
                .filter(|peers| peers.are_on(&self.node, labels.as_ref()))
                .collect(),
        }
    }

    /// The BGP peers that are workloads.
    fn peers(&self) -> impl Iterator<Item = Peers> {
        let peers = self.objects.of_kind(Kind::BgpPeer);
        peers.filter_map(|(_, value)| {
            if let Value::Peers(peers) = value {
                Some(*peers)
            } else {
                None
            }
        })
    }

    /// The labels of our node, if it is known.
    fn labels(&self) -> Option<Labels> {
        match self.value(Kind::Node, &self.node) {
            Some(Value::Node(_, labels)) => Some(labels),
            _ => None,
        }
    }

    /// What is in force on our node, and what does not go together, with the object that sets it: its own
    /// settings come before those of a selection that it belongs to, and those before the cluster's.
    pub(super) fn settings(&self) -> (Effective, Vec<(ObjectKey, Flaw)>) {
        let named = |name: &str| {
            let key = ObjectKey {
                name: name.into(),
                ..ObjectKey::first(Kind::FelixConfiguration)
            };
            match self.objects.value(&key) {
                Some(Value::Settings(settings)) => Some((key, settings)),
                _ => None,
            }
        };
        let (keys, sources): (Vec<ObjectKey>, Vec<Settings>) =
            named(&format!("node.{}", self.node))
                .into_iter()
                .chain(self.selected_settings())
                .chain(named("default"))
                .unzip();
        let mut clashes = Vec::new();
        let effective = Effective::resolve(&sources, &mut clashes);
        let object = |Clash { source, flaw }| Some((keys.get(source)?.clone(), flaw));
        (effective, clashes.into_iter().filter_map(object).collect())
    }

    /// Of the settings for selections of nodes those that hold on ours: the oldest, and of several
    /// as old the one whose name comes first. None as long as our node, and so its labels, is not
    /// known.
    fn selected_settings(&self) -> Option<(ObjectKey, Settings)> {
        let labels = self.labels()?;
        let settings = self.objects.of_kind(Kind::FelixConfiguration);
        let selected = settings.filter_map(|(key, value)| {
            if let Value::SelectedSettings(selected) = value {
                Some((key, *selected)).filter(|(_, selected)| selected.nodes.matches(&labels))
            } else {
                None
            }
        });
        // Of equals, min_by takes the first.
        let oldest = selected.min_by(|(_, a), (_, b)| a.created.cmp(&b.created));
        oldest.map(|(key, selected)| (key.clone(), selected.settings))
    }

    /// What the object of that name means, of a kind without namespaces.
    fn value(&self, kind: Kind, name: &str) -> Option<Value> {
        let key = ObjectKey {
            name: name.into(),
            ..ObjectKey::first(kind)
        };
        self.objects.value(&key)
    }
}

impl Sight<'_> {
    /// What the calculator shall be told of a subject.
    pub(super) fn meaning(&self, subject: &Subject) -> Event {
        let objects = &self.store.objects;
        // Of several with the same CIDR the one with the smallest name counts.
        let first = |kind, cidr| objects.value(objects.with_cidr(kind, cidr).first()?);
        match subject {
            Subject::Config => Event::Config(self.effective.config.clone()),
            Subject::Bgp => match self.store.value(Kind::BgpConfiguration, "default") {
                Some(Value::Bgp(bgp)) => Event::Bgp(bgp),
                _ => Event::Bgp(crate::event::Bgp::default()),
            },
            Subject::Node(key) => {
                let node = match objects.value(key) {
                    Some(Value::Node(node, _)) => Some(*node),
                    _ => None,
                };
                Event::Node(key.name.to_string(), node)
            }
            Subject::Pool(cidr) => match first(Kind::IpPool, *cidr) {
                Some(Value::Pool(_, pool)) => Event::Pool(*cidr, Some(pool)),
                _ => Event::Pool(*cidr, None),
            },
            Subject::Block(cidr) => match first(Kind::IpamBlock, *cidr) {
                Some(Value::Block(_, block)) => Event::Block(*cidr, Some(block)),
                _ => Event::Block(*cidr, None),
            },
            Subject::Workload(both) => {
                let (workload, key) = &**both;
                Event::Workload(workload.clone(), self.workload(workload, key))
            }
        }
    }

    fn workload(&self, named: &WorkloadKey, object: &ObjectKey) -> Option<Workload> {
        let Value::Workload {
            key,
            workload,
            labels,
            spoofs,
        } = self.store.objects.value(object)?
        else {
            return None;
        };
        let counts = *key == *named && (!spoofs || self.effective.spoofing);
        counts.then(|| Workload {
            migration: role(&self.migrations, &key, &labels),
            bgp_peer: key.node == self.store.node
                && self.peers.iter().any(|peers| peers.include(&labels)),
            ..*workload
        })
    }
}

/// Whether an event tells that something is no longer there.
pub(super) fn is_gone(event: &Event) -> bool {
    matches!(
        event,
        Event::Node(_, None)
            | Event::Pool(_, None)
            | Event::Block(_, None)
            | Event::Workload(_, None)
    )
}

fn role(migrations: &[Migration], key: &WorkloadKey, labels: &Labels) -> MigrationRole {
    let roles = migrations
        .iter()
        .map(|migration| migration.role(key, labels));
    roles.max().unwrap_or_default()
}
