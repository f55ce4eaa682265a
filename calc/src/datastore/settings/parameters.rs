//! The parameters that routes depend on: their names, their fields in the resource, and how text
//! becomes a value. Knows nothing of sources and their order.

use std::time::Duration;

use ipnet::IpNet;

use crate::{
    datastore::{
        convert::{Rule, address_of, address_or_prefix},
        resource::FelixSpec,
    },
    event::{RouteSource, ServiceLoopPrevention, SourceHint},
};

use super::Effective;

/// A setting: its internal name, its field in the resource, and how a value is applied.
pub(super) type Parameter = (
    &'static str,
    &'static str,
    fn(&mut Effective, &str) -> Result<(), Rule>,
);

pub(super) const PARAMETERS: [Parameter; 23] = [
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
    ("RouteSyncDisabled", "routeSyncDisabled", |to, text| {
        to.config.route_sync_disabled = boolean(text)?;
        Ok(())
    }),
    ("Ipv6Support", "ipv6Support", |to, text| {
        to.config.ipv6 = boolean(text)?;
        Ok(())
    }),
    ("VXLANEnabled", "vxlanEnabled", |to, text| {
        to.config.vxlan = boolean(text)?;
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
        to.config.vxlan_mtu = mtu(text, MIN_MTU)?;
        Ok(())
    }),
    ("VXLANMTUV6", "vxlanMTUV6", |to, text| {
        to.config.vxlan_mtu_v6 = mtu(text, MIN_MTU_V6)?;
        Ok(())
    }),
    (
        "DeviceRouteSourceAddress",
        "deviceRouteSourceAddress",
        |to, text| {
            to.config.source_hint_v4 = source_hint(text, false)?;
            Ok(())
        },
    ),
    (
        "DeviceRouteSourceAddressIPv6",
        "deviceRouteSourceAddressIPv6",
        |to, text| {
            to.config.source_hint_v6 = source_hint(text, true)?;
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
        "IPv4ElevatedRoutePriority",
        "ipv4ElevatedRoutePriority",
        |to, text| {
            to.config.elevated_metric_v4 = number(text, 1, MAX_PRIORITY)?;
            Ok(())
        },
    ),
    (
        "IPv6ElevatedRoutePriority",
        "ipv6ElevatedRoutePriority",
        |to, text| {
            to.config.elevated_metric_v6 = number(text, 1, MAX_PRIORITY)?;
            Ok(())
        },
    ),
    (
        "LiveMigrationRouteConvergenceTime",
        "liveMigrationRouteConvergenceTime",
        |to, text| {
            to.config.migration_convergence = seconds(text)?;
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
/// The packets that each IPv4 host takes in (RFC 791), and each link of IPv6 carries (RFC 8200).
const MIN_MTU: i64 = 576;
const MIN_MTU_V6: i64 = 1280;
const MAX_MTU: i64 = 0xffff;

impl FelixSpec {
    /// The raw text of each field by the internal name of its parameter; none where unset.
    pub(super) fn raw(self) -> [(&'static str, Option<String>); 23] {
        let integer = |value: Option<i64>| value.map(|value| value.to_string());
        let boolean = |value: Option<bool>| value.map(|value| value.to_string());
        let list = |value: Option<Vec<String>>| value.map(|values| values.join(","));
        // What is no duration stays what it is, and is refused as that.
        let duration = |value: Option<String>| {
            value.map(|text| in_seconds(&text).map_or(text, |seconds| seconds.to_string()))
        };
        [
            ("RouteSource", Some(self.route_source)),
            ("ExternalNodesCIDRList", list(self.external_nodes_list)),
            ("BPFDSROptoutCIDRs", list(self.bpf_dsr_optout_cidrs)),
            ("WireguardEnabled", boolean(self.wireguard_enabled)),
            ("WireguardEnabledV6", boolean(self.wireguard_enabled_v6)),
            ("ServiceLoopPrevention", Some(self.service_loop_prevention)),
            ("ProgramClusterRoutes", Some(self.program_cluster_routes)),
            ("BPFRedirectToPeer", Some(self.bpf_redirect_to_peer)),
            ("RouteSyncDisabled", boolean(self.route_sync_disabled)),
            ("Ipv6Support", boolean(self.ipv6_support)),
            ("VXLANEnabled", boolean(self.vxlan_enabled)),
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
                "IPv4ElevatedRoutePriority",
                integer(self.ipv4_elevated_route_priority),
            ),
            (
                "IPv6ElevatedRoutePriority",
                integer(self.ipv6_elevated_route_priority),
            ),
            (
                "LiveMigrationRouteConvergenceTime",
                duration(self.live_migration_route_convergence_time),
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

fn seconds(text: &str) -> Result<Duration, Rule> {
    let seconds = if is_none(text) {
        Some(0.0)
    } else {
        text.parse().ok()
    };
    seconds
        .filter(|seconds| *seconds <= f64::from(u32::MAX))
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| Rule::Duration(text.to_owned()))
}

/// The seconds of a duration as a resource has it, such as `1m30s`.
fn in_seconds(text: &str) -> Option<f64> {
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let numeric = |letter: char| letter.is_ascii_digit() || letter == '.';
        let (value, after) = rest.split_at_checked(rest.find(|letter| !numeric(letter))?)?;
        let (unit, after) = after.split_at_checked(after.find(numeric).unwrap_or(after.len()))?;
        let factor = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total += value.parse::<f64>().ok()? * factor;
        rest = after;
    }
    Some(total)
}

/// 0 leaves it to us.
fn mtu(text: &str, least: i64) -> Result<Option<u32>, Rule> {
    match number(text, i64::MIN, i64::MAX)? {
        0 => Ok(None),
        given if (least..=MAX_MTU).contains(&given) => Ok(u32::try_from(given).ok()),
        given => Err(Rule::Mtu {
            given,
            least,
            most: MAX_MTU,
        }),
    }
}

/// Reads an address, or `iface:` and the name of an interface, which Felix does not know.
fn source_hint(text: &str, v6: bool) -> Result<Option<SourceHint>, Rule> {
    if let Some(name) = text.strip_prefix("iface:") {
        let name = name
            .parse()
            .map_err(|_invalid| Rule::Interface(name.to_owned()))?;
        return Ok(Some(SourceHint::Interface(name)));
    }
    let address = address_of(if is_none(text) { "" } else { text }, v6)?;
    Ok(address.map(SourceHint::Address))
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
