//! From the bytes of one file to its documents, each with its place and its identity.
//!
//! A broken document costs only itself: the file is cut at YAML's document markers before anything
//! is parsed, and each object of a list is decoded by itself. Never fails as a whole.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    resource::Identity,
    tree::{Fault, Tree},
};

/// The kinds that routes depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) enum Kind {
    BgpConfiguration,
    BgpPeer,
    FelixConfiguration,
    IpamBlock,
    IpPool,
    LiveMigration,
    Node,
    WorkloadEndpoint,
}

const KINDS: [(Kind, &str); 8] = [
    (Kind::BgpConfiguration, "BGPConfiguration"),
    (Kind::BgpPeer, "BGPPeer"),
    (Kind::FelixConfiguration, "FelixConfiguration"),
    (Kind::IpamBlock, "IPAMBlock"),
    (Kind::IpPool, "IPPool"),
    (Kind::LiveMigration, "LiveMigration"),
    (Kind::Node, "Node"),
    (Kind::WorkloadEndpoint, "WorkloadEndpoint"),
];

/// Calico's other kinds, which are no mistake in the directory, and of no use to routes.
const OTHER_KINDS: [&str; 22] = [
    "BGPFilter",
    "BlockAffinity",
    "CalicoNodeStatus",
    "ClusterInformation",
    "GlobalNetworkPolicy",
    "GlobalNetworkSet",
    "HostEndpoint",
    "IPAMConfig",
    "IPAMConfiguration",
    "IPAMHandle",
    "IPReservation",
    "KubeControllersConfiguration",
    "NetworkPolicy",
    "NetworkSet",
    "Profile",
    "QoSPolicy",
    "StagedGlobalNetworkPolicy",
    "StagedKubernetesNetworkPolicy",
    "StagedNetworkPolicy",
    "Tier",
    "UISettings",
    "UISettingsGroup",
];

const API_VERSIONS: [&str; 2] = ["projectcalico.org/v3", "crd.projectcalico.org/v1"];

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KINDS.iter().find(|(kind, _)| kind == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

/// Tells objects apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ObjectKey {
    pub(super) kind: Kind,
    /// Empty for a kind without namespaces.
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
}

impl ObjectKey {
    /// What comes before all objects of a kind.
    pub(super) fn first(kind: Kind) -> Self {
        Self {
            kind,
            namespace: Arc::default(),
            name: Arc::default(),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind)?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// What a part of a file turns out to be.
#[derive(Debug)]
pub(super) enum Document {
    /// An object of a kind that counts.
    Object(ObjectKey, Tree),
    /// Something that cannot be decoded.
    Broken(Fault),
    /// Something that is none of ours.
    Foreign(Fault),
}

/// Reads all documents of a file.
pub(super) fn documents(bytes: &[u8]) -> Vec<Document> {
    let mut found = Vec::new();
    for (line, part) in parts(bytes) {
        let parsed = std::str::from_utf8(part)
            .map_err(|error| Fault {
                line: line.saturating_add(newlines(part.get(..error.valid_up_to()).unwrap_or(&[]))),
                field: String::new(),
                reason: "is not UTF-8 text; save the file as UTF-8".to_owned(),
            })
            .and_then(|text| Tree::parse(text, line));
        match parsed {
            Ok(None) => {}
            Ok(Some(tree)) => resolve(tree, &Identity::default(), &mut found),
            Err(fault) => found.push(Document::Broken(fault)),
        }
    }
    found
}

/// Cuts at YAML's document markers, which by its grammar are markers wherever a line begins with
/// them, even within quotes. Gives the number of the first line of each part.
fn parts(bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let mut parts = Vec::new();
    let (mut start, mut start_line) = (0, 1);
    let (mut at, mut line) = (0, 1_u64);
    for text in bytes.split_inclusive(|byte| *byte == b'\n') {
        let end = at + text.len();
        let marked = |marker: &[u8]| {
            text.strip_prefix(marker).is_some_and(|rest| {
                rest.first()
                    .is_none_or(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))
            })
        };
        // Directives, such as %YAML, stand before the marker of the document they belong to.
        let cut = if marked(b"---") && !only_directives(bytes.get(start..at).unwrap_or(&[])) {
            Some((at, line))
        } else if marked(b"...") {
            Some((end, line.saturating_add(1)))
        } else {
            None
        };
        if let Some((next, next_line)) = cut {
            parts.push((start_line, bytes.get(start..at).unwrap_or(&[])));
            (start, start_line) = (next, next_line);
        }
        at = end;
        line = line.saturating_add(1);
    }
    parts.push((start_line, bytes.get(start..).unwrap_or(&[])));
    parts
}

fn only_directives(part: &[u8]) -> bool {
    part.split(|byte| *byte == b'\n').all(|line| {
        let line = line.trim_ascii();
        line.is_empty() || line.starts_with(b"%") || line.starts_with(b"#")
    })
}

fn newlines(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |count, byte| count + u64::from(*byte == b'\n'))
}

/// Finds out what `tree` is; what it leaves unsaid it has from the list that it is in.
fn resolve(tree: Tree, list: &Identity, found: &mut Vec<Document>) {
    let fault = |field: &str, reason: String| Fault {
        line: tree.line_of(field),
        field: field.to_owned(),
        reason,
    };
    let mut identity = match tree.decode::<Identity>() {
        Ok(identity) => identity,
        Err(fault) => return found.push(Document::Broken(fault)),
    };
    if identity.kind.is_empty() {
        identity.kind.clone_from(&list.kind);
    }
    if identity.api_version.is_empty() {
        identity.api_version.clone_from(&list.api_version);
    }
    let Identity {
        api_version,
        kind,
        metadata,
    } = identity;
    if kind.is_empty() {
        let reason = "is missing; every document needs one, such as IPPool".to_owned();
        return found.push(Document::Broken(fault("kind", reason)));
    }
    if let Some(item) = kind.strip_suffix("List") {
        if !list.kind.is_empty() {
            let reason = "is a list within a list; write its objects out".to_owned();
            return found.push(Document::Broken(fault("kind", reason)));
        }
        let reason = "is not a list; write [] for none".to_owned();
        let missing = fault("items", reason);
        let Some(items) = tree.into_items("items") else {
            return found.push(Document::Broken(missing));
        };
        // A plain List says nothing about its objects.
        let list = if item.is_empty() {
            Identity::default()
        } else {
            Identity {
                kind: item.to_owned(),
                api_version,
                ..Identity::default()
            }
        };
        for item in items {
            resolve(item, &list, found);
        }
        return;
    }
    let known = KINDS.iter().find(|(_, name)| *name == kind);
    let calico = API_VERSIONS.contains(&api_version.as_str());
    match known {
        Some(_) if api_version.is_empty() => {
            let reason = format!("is missing; write {}", API_VERSIONS[0]);
            found.push(Document::Broken(fault("apiVersion", reason)));
        }
        Some((kind, _)) if calico => {
            if metadata.name.is_empty() {
                let reason = "is missing; every object needs a name".to_owned();
                return found.push(Document::Broken(fault("metadata.name", reason)));
            }
            let namespace = match kind {
                Kind::LiveMigration | Kind::WorkloadEndpoint => metadata.namespace.into(),
                Kind::BgpConfiguration
                | Kind::BgpPeer
                | Kind::FelixConfiguration
                | Kind::IpamBlock
                | Kind::IpPool
                | Kind::Node => Arc::default(),
            };
            let key = ObjectKey {
                kind: *kind,
                namespace,
                name: metadata.name.into(),
            };
            found.push(Document::Object(key, tree));
        }
        None if calico && OTHER_KINDS.contains(&kind.as_str()) => {}
        _ => {
            let reason = format!(
                "{api_version} {kind} is not a kind that is known here; the document is ignored"
            );
            found.push(Document::Foreign(fault("kind", reason)));
        }
    }
}
