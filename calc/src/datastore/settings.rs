//! Felix's settings: what each `FelixConfiguration` sets, and what is in force on one node.
//!
//! As in Felix, every source sets raw text by Felix's internal names; the most specific source
//! that sets a name wins, and a value that is wrong counts as the default, not as the value of a
//! less specific source.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use serde::Deserialize;

use crate::event::{Config, RouteSource, ServiceLoopPrevention};

use super::{
    convert::{Flaw, Rule, Value, address_of, address_or_prefix},
    resource::{FelixSpec, Resource},
};

/// What one source sets: raw text by Felix's internal names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    values: BTreeMap<&'static str, String>,
}

/// What is in force on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Effective {
    pub(super) config: Config,
    /// Whether endpoints may use foreign source addresses (`workloadSourceSpoofing`).
    pub(super) spoofing: bool,
}

/// A setting: its internal name, its field in the resource, and how a value is applied.
type Parameter = (
    &'static str,
    &'static str,
    fn(&mut Effective, &str) -> Result<(), Rule>,
);

const PARAMETERS: [Parameter; 17] = [
    ("RouteSource", "routeSource", |to, text| {
        to.config.route_source = match text.to_ascii_lowercase().as_str() {
            "calicoipam" => RouteSource::CalicoIpam,
            "workloadips" => RouteSource::WorkloadIps,
            _ => return Err(none_of(text, "CalicoIPAM and WorkloadIPs")),
        };
        Ok(())
    }),
    ("ExternalNodesCIDRList", "externalNodesList", |to, text| {
        let nets = list(text)?;
        if let Some(net) = nets.iter().find(|net| matches!(net, IpNet::V6(_))) {
            let given = net.to_string();
            return Err(Rule::Family {
                given,
                wanted: "IPv4",
            });
        }
        to.config.external_nodes = nets;
        Ok(())
    }),
    ("BPFDSROptoutCIDRs", "bpfDSROptoutCIDRs", |to, text| {
        to.config.dsr_optout = list(text)?;
        Ok(())
    }),
    ("WireguardEnabled", "wireguardEnabled", |to, text| {
        to.config.wireguard |= boolean(text)?;
        Ok(())
    }),
    ("WireguardEnabledV6", "wireguardEnabledV6", |to, text| {
        to.config.wireguard |= boolean(text)?;
        Ok(())
    }),
    (
        "ServiceLoopPrevention",
        "serviceLoopPrevention",
        |to, text| {
            to.config.service_loop_prevention = match text.to_ascii_lowercase().as_str() {
                "drop" => ServiceLoopPrevention::Drop,
                "reject" => ServiceLoopPrevention::Reject,
                "disabled" => ServiceLoopPrevention::Disabled,
                _ => return Err(none_of(text, "Drop, Reject and Disabled")),
            };
            Ok(())
        },
    ),
    (
        "ProgramClusterRoutes",
        "programClusterRoutes",
        |to, text| {
            to.config.program_no_encap = match text.to_ascii_lowercase().as_str() {
                "enabled" | "enablednoencaponly" => true,
                "disabled" | "enabledipiponly" => false,
                _ => {
                    let allowed = "Enabled, Disabled, EnabledIPIPOnly and EnabledNoEncapOnly";
                    return Err(none_of(text, allowed));
                }
            };
            Ok(())
        },
    ),
    ("BPFRedirectToPeer", "bpfRedirectToPeer", |to, text| {
        to.config.redirect_to_peer = match text.to_ascii_lowercase().as_str() {
            // All links of workloads that programs are attached to have hardware addresses.
            "enabled" | "l2only" => true,
            "disabled" => false,
            _ => return Err(none_of(text, "Enabled, L2Only and Disabled")),
        };
        Ok(())
    }),
    ("VXLANVNI", "vxlanVNI", |to, text| {
        to.config.vxlan_vni = number(text, 1, 0xff_ffff)?;
        Ok(())
    }),
    ("VXLANPort", "vxlanPort", |to, text| {
        to.config.vxlan_port = number(text, 1, 0xffff)?;
        Ok(())
    }),
    ("VXLANMTU", "vxlanMTU", |to, text| {
        to.config.vxlan_mtu = mtu(text)?;
        Ok(())
    }),
    ("VXLANMTUV6", "vxlanMTUV6", |to, text| {
        to.config.vxlan_mtu_v6 = mtu(text)?;
        Ok(())
    }),
    (
        "DeviceRouteSourceAddress",
        "deviceRouteSourceAddress",
        |to, text| {
            to.config.route_source_v4 = source_address(text, false)?;
            Ok(())
        },
    ),
    (
        "DeviceRouteSourceAddressIPv6",
        "deviceRouteSourceAddressIPv6",
        |to, text| {
            to.config.route_source_v6 = source_address(text, true)?;
            Ok(())
        },
    ),
    (
        "IPv4NormalRoutePriority",
        "ipv4NormalRoutePriority",
        |to, text| {
            to.config.workload_metric_v4 = number(text, 1, MAX_PRIORITY)?;
            Ok(())
        },
    ),
    (
        "IPv6NormalRoutePriority",
        "ipv6NormalRoutePriority",
        |to, text| {
            to.config.workload_metric_v6 = number(text, 1, MAX_PRIORITY)?;
            Ok(())
        },
    ),
    (
        "WorkloadSourceSpoofing",
        "workloadSourceSpoofing",
        |to, text| {
            to.spoofing = match text.to_ascii_lowercase().as_str() {
                "any" => true,
                "disabled" => false,
                _ => return Err(none_of(text, "Disabled and Any")),
            };
            Ok(())
        },
    ),
];

const MAX_PRIORITY: i64 = 2_147_483_646;

/// Annotations with this prefix set parameters by their internal names.
const ANNOTATION: &str = "config.projectcalico.org/";

/// Where `crd.projectcalico.org/v1` keeps Calico's own labels and annotations, as JSON.
const INNER_METADATA: &str = "projectcalico.org/metadata";

/// What a `FelixConfiguration` sets. None for one that is for a selection of nodes.
pub(super) fn settings(
    name: &str,
    resource: Resource<FelixSpec>,
    flaws: &mut Vec<Flaw>,
) -> Result<Option<Value>, Flaw> {
    if name != "default" && !name.starts_with("node.") {
        let (rule, field) = (Rule::SelectorScoped, "spec.nodeSelector".to_owned());
        return Err(Flaw { field, rule });
    }
    if !resource.spec.node_selector.is_empty() {
        let (rule, field) = (Rule::SelectorNotAllowed, "spec.nodeSelector".to_owned());
        return Err(Flaw { field, rule });
    }
    let mut annotations = resource.metadata.annotations;
    if let Some(json) = annotations.get(INNER_METADATA) {
        match serde_json::from_str::<InnerMetadata>(json) {
            Ok(inner) => annotations.extend(inner.annotations),
            Err(_) => flaws.push(Flaw {
                field: format!("metadata.annotations.{INNER_METADATA}"),
                rule: Rule::InnerMetadata,
            }),
        }
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
            .map(|text| (text, format!("spec.{field}")));
        let Some((text, field)) = annotated.or(written).filter(|(text, _)| !text.is_empty()) else {
            continue;
        };
        if let Err(rule) = apply(&mut Effective::default(), &text) {
            flaws.push(Flaw { field, rule });
        }
        settings.values.insert(name, text);
    }
    Ok(Some(Value::Settings(settings)))
}

impl Effective {
    /// Resolves the sources, the most specific one first.
    pub(super) fn resolve(sources: &[&Settings]) -> Self {
        let mut effective = Self::default();
        for (name, _, apply) in PARAMETERS {
            let mut applied = effective.clone();
            let text = sources.iter().find_map(|source| source.values.get(name));
            // A wrong value was reported where it was read, and leaves the default.
            if text.is_some_and(|text| apply(&mut applied, text).is_ok()) {
                effective = applied;
            }
        }
        effective
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct InnerMetadata {
    annotations: BTreeMap<String, String>,
}

impl FelixSpec {
    /// The raw text of each field by the internal name of its parameter; none where unset.
    fn raw(self) -> [(&'static str, Option<String>); 17] {
        let integer = |value: Option<i64>| value.map(|value| value.to_string());
        let boolean = |value: Option<bool>| value.map(|value| value.to_string());
        let list = |value: Option<Vec<String>>| value.map(|values| values.join(","));
        [
            ("RouteSource", Some(self.route_source)),
            ("ExternalNodesCIDRList", list(self.external_nodes_list)),
            ("BPFDSROptoutCIDRs", list(self.bpf_dsr_optout_cidrs)),
            ("WireguardEnabled", boolean(self.wireguard_enabled)),
            ("WireguardEnabledV6", boolean(self.wireguard_enabled_v6)),
            ("ServiceLoopPrevention", Some(self.service_loop_prevention)),
            ("ProgramClusterRoutes", Some(self.program_cluster_routes)),
            ("BPFRedirectToPeer", Some(self.bpf_redirect_to_peer)),
            ("VXLANVNI", integer(self.vxlan_vni)),
            ("VXLANPort", integer(self.vxlan_port)),
            ("VXLANMTU", integer(self.vxlan_mtu)),
            ("VXLANMTUV6", integer(self.vxlan_mtu_v6)),
            (
                "DeviceRouteSourceAddress",
                Some(self.device_route_source_address),
            ),
            (
                "DeviceRouteSourceAddressIPv6",
                Some(self.device_route_source_address_ipv6),
            ),
            (
                "IPv4NormalRoutePriority",
                integer(self.ipv4_normal_route_priority),
            ),
            (
                "IPv6NormalRoutePriority",
                integer(self.ipv6_normal_route_priority),
            ),
            (
                "WorkloadSourceSpoofing",
                Some(self.workload_source_spoofing),
            ),
        ]
    }
}

fn none_of(given: &str, allowed: &'static str) -> Rule {
    Rule::OneOf {
        given: given.to_owned(),
        allowed,
    }
}

/// The word for a parameter's zero value.
fn is_none(text: &str) -> bool {
    text.eq_ignore_ascii_case("none")
}

fn boolean(text: &str) -> Result<bool, Rule> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "y" | "t" => Ok(true),
        "false" | "0" | "no" | "n" | "f" | "none" => Ok(false),
        _ => Err(Rule::Bool(text.to_owned())),
    }
}

fn number<N: TryFrom<i64>>(text: &str, least: i64, most: i64) -> Result<N, Rule> {
    let given = if is_none(text) {
        Some(0)
    } else if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        i64::from_str_radix(digits, 16).ok()
    } else if text.len() > 1 && text.starts_with('0') {
        i64::from_str_radix(text, 8).ok()
    } else {
        text.parse().ok()
    };
    let given = given.ok_or_else(|| Rule::Number(text.to_owned()))?;
    let range = Rule::Range { given, least, most };
    if !(least..=most).contains(&given) {
        return Err(range);
    }
    N::try_from(given).ok().ok_or(range)
}

/// 0 leaves it to us.
fn mtu(text: &str) -> Result<Option<u32>, Rule> {
    number(text, 0, 0xffff).map(|mtu| Some(mtu).filter(|mtu| *mtu != 0))
}

fn source_address(text: &str, v6: bool) -> Result<Option<IpAddr>, Rule> {
    address_of(if is_none(text) { "" } else { text }, v6)
}

fn list(text: &str) -> Result<Vec<IpNet>, Rule> {
    if is_none(text) {
        return Ok(Vec::new());
    }
    text.split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .map(|entry| address_or_prefix(entry).map(|net| net.trunc()))
        .collect()
}
