//! Felix's settings: what each `FelixConfiguration` sets, and what is in force on one node.
//!
//! As in Felix, every source sets raw text by Felix's internal names; the most specific source
//! that sets a name wins, and a value that is wrong counts as the default, not as the value of a
//! less specific source.

mod metrics;
mod parameters;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event::Config;

use self::parameters::PARAMETERS;
use super::{
    convert::{Flaw, Rule, Value},
    resource::{FelixSpec, Resource},
    selector::Selector,
};

/// What one source sets: raw text by Felix's internal names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settings {
    values: BTreeMap<String, String>,
}

/// What is set on the nodes with certain labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Selected {
    /// Which nodes.
    pub(super) nodes: Selector,
    /// When its object was made, in the one form in which the order of texts is that of times;
    /// empty if that is not known, which counts as before all times. Of several the oldest holds.
    pub(super) created: String,
    /// What it sets there.
    pub(super) settings: Settings,
}

/// What is in force on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Effective {
    pub(super) config: Config,
    /// Whether endpoints may use foreign source addresses (`workloadSourceSpoofing`).
    pub(super) spoofing: bool,
}

/// Annotations with this prefix set parameters by their internal names.
const ANNOTATION: &str = "config.projectcalico.org/";

/// Where `crd.projectcalico.org/v1` keeps Calico's own labels and annotations, as JSON.
const INNER_METADATA: &str = "projectcalico.org/metadata";

/// What a `FelixConfiguration` sets, and for whom.
///
/// One for a selection of nodes is taken whole or not at all; of the others a wrong field costs
/// itself.
pub(super) fn settings(
    name: &str,
    resource: Resource<FelixSpec>,
    flaws: &mut Vec<Flaw>,
) -> Result<Option<Value>, Flaw> {
    let mut annotations = resource.metadata.annotations;
    let mut created = resource.metadata.creation_timestamp;
    if let Some(json) = annotations.get(INNER_METADATA) {
        match serde_json::from_str::<InnerMetadata>(json) {
            Ok(inner) => {
                annotations.extend(inner.annotations);
                created = inner.creation_timestamp.unwrap_or(created);
            }
            Err(_) => flaws.push(Flaw {
                field: format!("metadata.annotations.{INNER_METADATA}"),
                rule: Rule::InnerMetadata,
            }),
        }
    }
    let by_name = name == "default" || name.starts_with("node.");
    let nodes = nodes(by_name, &resource.spec.node_selector)?;
    if nodes.is_some() && !created.is_empty() && !is_time(&created) {
        let (rule, field) = (Rule::Time(created), "metadata.creationTimestamp".to_owned());
        return Err(Flaw { field, rule });
    }
    let set = resource.spec.raw();
    let mut settings = Settings::default();
    for (name, field, apply) in PARAMETERS {
        let annotated = annotations.iter().find_map(|(key, text)| {
            let matches = key.strip_prefix(ANNOTATION)?.eq_ignore_ascii_case(name);
            matches.then(|| (text.clone(), format!("metadata.annotations.{key}")))
        });
        let written = set
            .iter()
            .find_map(|(set, text)| (*set == name).then(|| text.clone()))
            .flatten()
            .filter(|text| !text.is_empty())
            .map(|text| (text, format!("spec.{field}")));
        if let (Some(_), Some((text, field))) = (&nodes, &written) {
            let field = field.clone();
            apply(&mut Effective::default(), text).map_err(|rule| Flaw { field, rule })?;
        }
        let Some((text, field)) = annotated.or(written).filter(|(text, _)| !text.is_empty()) else {
            continue;
        };
        if let Err(rule) = apply(&mut Effective::default(), &text) {
            flaws.push(Flaw { field, rule });
        }
        settings.values.insert(name.to_owned(), text);
    }
    Ok(Some(match nodes {
        None => Value::Settings(settings),
        Some(nodes) => Value::SelectedSettings(Box::new(Selected {
            nodes,
            created,
            settings,
        })),
    }))
}

/// Which nodes it is for, unless its name tells.
fn nodes(by_name: bool, selector: &str) -> Result<Option<Selector>, Flaw> {
    let rule = match (by_name, selector) {
        (true, "") => return Ok(None),
        (true, _) => Rule::SelectorNotAllowed,
        (false, "") => Rule::Missing,
        (false, text) => match Selector::parse(text) {
            Ok(nodes) => return Ok(Some(nodes)),
            Err(error) => Rule::Selector(error),
        },
    };
    let field = "spec.nodeSelector".to_owned();
    Err(Flaw { field, rule })
}

/// Whether it has the form in which Kubernetes and Calico write times, such as
/// `2026-08-20T08:00:00Z`.
fn is_time(text: &str) -> bool {
    let form = "dddd-dd-ddTdd:dd:ddZ";
    text.len() == form.len()
        && text.bytes().zip(form.bytes()).all(|(byte, form)| {
            if form == b'd' {
                byte.is_ascii_digit()
            } else {
                byte == form
            }
        })
}

/// A value that is right by itself, but not beside another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Clash {
    /// Which of the sources sets it, or the other one: its place among them.
    pub(super) source: usize,
    /// Which field it is, and what is wrong.
    pub(super) flaw: Flaw,
}

impl Effective {
    /// Resolves the sources, the most specific one first, and adds what does not go together to
    /// `clashes`.
    pub(super) fn resolve(sources: &[Settings], clashes: &mut Vec<Clash>) -> Self {
        let mut effective = Self::default();
        for (name, _, apply) in PARAMETERS {
            let mut applied = effective.clone();
            let text = sources.iter().find_map(|source| source.values.get(name));
            // A wrong value was reported where it was read, and leaves the default.
            if text.is_some_and(|text| apply(&mut applied, text).is_ok()) {
                effective = applied;
            }
        }
        for (names, flaw) in metrics::refuse(&mut effective.config) {
            let setter = |name: &&str| {
                let sets = |source: &Settings| source.values.contains_key(*name);
                sources.iter().position(sets)
            };
            let source = names.iter().find_map(setter).unwrap_or_default();
            clashes.push(Clash { source, flaw });
        }
        effective
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct InnerMetadata {
    annotations: BTreeMap<String, String>,
    #[serde(rename = "creationTimestamp")]
    creation_timestamp: Option<String>,
}
