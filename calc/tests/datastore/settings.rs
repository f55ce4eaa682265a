//! The rules for settings and for the prefixes of services.

use std::{net::IpAddr, time::Duration};

use calc::event::{Config, Event, RouteSource, ServiceLoopPrevention, SourceHint};
use ipnet::IpNet;

use super::{document, read};

/// The settings in force, and what is wrong.
pub(super) fn config(text: &str) -> (Config, Vec<String>) {
    let update = read(text);
    let config = update.events.iter().find_map(|event| {
        if let Event::Config(config) = event {
            Some(config.clone())
        } else {
            None
        }
    });
    (config.unwrap_or_default(), update.problems)
}

#[test]
fn every_setting_is_taken() {
    let cases: [Case; 34] = [
        ("", |_| {}),
        ("routeSource: workloadips", |c| {
            c.route_source = RouteSource::WorkloadIps;
        }),
        ("externalNodesList: [10.9.9.1/24]", |c| {
            c.external_nodes = nets("10.9.9.0/24");
        }),
        ("externalNodesList: [10.0.0.1]", |c| {
            c.external_nodes = nets("10.0.0.1/32");
        }),
        ("bpfDSROptoutCIDRs: ['fd00::/64']", |c| {
            c.dsr_optout = nets("fd00::/64");
        }),
        ("wireguardEnabled: true", |c| c.wireguard = true),
        ("wireguardEnabledV6: true, wireguardEnabled: false", |c| {
            c.wireguard = true;
        }),
        ("serviceLoopPrevention: Reject", |c| {
            c.service_loop_prevention = ServiceLoopPrevention::Reject;
        }),
        ("serviceLoopPrevention: Disabled", |c| {
            c.service_loop_prevention = ServiceLoopPrevention::Disabled;
        }),
        ("programClusterRoutes: Enabled", |c| {
            c.program_no_encap = true;
        }),
        ("programClusterRoutes: EnabledNoEncapOnly", |c| {
            c.program_no_encap = true;
        }),
        ("programClusterRoutes: EnabledIPIPOnly", |_| {}),
        ("bpfRedirectToPeer: Disabled", |c| {
            c.redirect_to_peer = false;
        }),
        ("bpfRedirectToPeer: L2Only", |_| {}),
        ("routeSyncDisabled: true", |c| c.route_sync_disabled = true),
        ("ipv6Support: false", |c| c.ipv6 = false),
        ("ipv6Support: true, vxlanEnabled: true", |_| {}),
        ("vxlanEnabled: false", |c| c.vxlan = false),
        ("vxlanMTU: 576, vxlanMTUV6: 1280", |c| {
            (c.vxlan_mtu, c.vxlan_mtu_v6) = (Some(576), Some(1280));
        }),
        ("vxlanVNI: 5, vxlanPort: 8472", |c| {
            (c.vxlan_vni, c.vxlan_port) = (5, 8472);
        }),
        ("vxlanMTU: 1400, vxlanMTUV6: 0", |c| {
            c.vxlan_mtu = Some(1400);
        }),
        ("vxlanMTUV6: 1380", |c| c.vxlan_mtu_v6 = Some(1380)),
        ("deviceRouteSourceAddress: 10.0.0.1", |c| {
            c.source_hint_v4 = address("10.0.0.1").map(SourceHint::Address);
        }),
        ("deviceRouteSourceAddressIPv6: 'fd00::1'", |c| {
            c.source_hint_v6 = address("fd00::1").map(SourceHint::Address);
        }),
        ("deviceRouteSourceAddress: 'iface:eth1'", |c| {
            c.source_hint_v4 = Some(SourceHint::Interface("eth1".parse().unwrap()));
        }),
        ("deviceRouteSourceAddress: none", |_| {}),
        ("ipv4NormalRoutePriority: 513", |c| {
            c.workload_metric_v4 = 513;
        }),
        ("ipv6NormalRoutePriority: 2147483646", |c| {
            c.workload_metric_v6 = 2_147_483_646;
        }),
        ("ipv4ElevatedRoutePriority: 1", |c| c.elevated_metric_v4 = 1),
        ("ipv6ElevatedRoutePriority: 1023", |c| {
            c.elevated_metric_v6 = 1023;
        }),
        ("liveMigrationRouteConvergenceTime: 1m30s", |c| {
            c.migration_convergence = Duration::from_secs(90);
        }),
        ("liveMigrationRouteConvergenceTime: 1h0.5s250ms", |c| {
            c.migration_convergence = Duration::from_millis(3_600_750);
        }),
        ("liveMigrationRouteConvergenceTime: 0s", |c| {
            c.migration_convergence = Duration::ZERO;
        }),
        ("liveMigrationRouteConvergenceTime: null", |_| {}),
    ];
    for (spec, change) in cases {
        let mut expected = Config::default();
        change(&mut expected);
        let (found, problems) = config(&document("FelixConfiguration", "default", spec));
        assert_eq!(found, expected, "{spec}");
        assert_eq!(problems, Vec::<String>::new(), "{spec}");
    }
}

/// A specification and what it changes.
type Case = (&'static str, fn(&mut Config));

fn nets(text: &str) -> Vec<IpNet> {
    text.parse().into_iter().collect()
}

fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

#[test]
fn a_wrong_setting_is_the_default_and_a_problem() {
    for (spec, field) in [
        ("routeSource: Guess", "spec.routeSource"),
        ("externalNodesList: [x]", "spec.externalNodesList"),
        ("externalNodesList: ['fd00::/64']", "spec.externalNodesList"),
        ("bpfDSROptoutCIDRs: [x]", "spec.bpfDSROptoutCIDRs"),
        (
            "serviceLoopPrevention: Sometimes",
            "spec.serviceLoopPrevention",
        ),
        ("programClusterRoutes: Maybe", "spec.programClusterRoutes"),
        ("bpfRedirectToPeer: Maybe", "spec.bpfRedirectToPeer"),
        ("vxlanVNI: 16777216", "spec.vxlanVNI"),
        ("vxlanPort: 0", "spec.vxlanPort"),
        ("vxlanMTU: -1", "spec.vxlanMTU"),
        (
            "deviceRouteSourceAddress: 'fd00::1'",
            "spec.deviceRouteSourceAddress",
        ),
        (
            "deviceRouteSourceAddressIPv6: 10.0.0.1",
            "spec.deviceRouteSourceAddressIPv6",
        ),
        (
            "ipv4NormalRoutePriority: 2147483647",
            "spec.ipv4NormalRoutePriority",
        ),
        (
            "ipv6ElevatedRoutePriority: 0",
            "spec.ipv6ElevatedRoutePriority",
        ),
        (
            "liveMigrationRouteConvergenceTime: -5s",
            "spec.liveMigrationRouteConvergenceTime",
        ),
        (
            "liveMigrationRouteConvergenceTime: soon",
            "spec.liveMigrationRouteConvergenceTime",
        ),
        ("workloadSourceSpoofing: All", "spec.workloadSourceSpoofing"),
    ] {
        let (found, problems) = config(&document("FelixConfiguration", "default", spec));
        assert_eq!(found, Config::default(), "{spec}");
        assert_eq!(problems.len(), 1, "{spec}");
        assert!(problems[0].contains(field), "{problems:?}");
    }
}

#[test]
fn an_mtu_out_of_bounds_is_told_with_the_bounds() {
    for (spec, told) in [
        (
            "vxlanMTU: 575",
            "spec.vxlanMTU: 575 is not within 576 and 65535",
        ),
        (
            "vxlanMTU: 65536",
            "spec.vxlanMTU: 65536 is not within 576 and 65535",
        ),
        (
            "vxlanMTUV6: 1279",
            "spec.vxlanMTUV6: 1279 is not within 1280 and 65535",
        ),
    ] {
        let (found, problems) = config(&document("FelixConfiguration", "default", spec));
        assert_eq!(found, Config::default(), "{spec}");
        assert!(problems[0].contains(told), "{problems:?}");
    }
}

#[test]
fn an_elevated_metric_that_does_not_win_is_refused_with_both_values_and_nothing_else_is() {
    let both = "ipv4ElevatedRoutePriority: 3000, ipv4NormalRoutePriority: 2000, vxlanPort: 5000";
    let only = "ipv6NormalRoutePriority: 400, ipv4ElevatedRoutePriority: 7";
    for (spec, v4, v6, words) in [
        (
            both,
            [512, 2000],
            [512, 1024],
            "ipv4ElevatedRoutePriority: 3000 does not win over ipv4NormalRoutePriority, 2000: it must \
             be lower; 512 and 2000 are in force",
        ),
        (
            only,
            [7, 1024],
            [512, 1024],
            "ipv6ElevatedRoutePriority: 512 does not win over ipv6NormalRoutePriority, 400: it must be \
             lower; 512 and 1024 are in force",
        ),
        (
            "ipv6ElevatedRoutePriority: 1024",
            [512, 1024],
            [512, 1024],
            "ipv6ElevatedRoutePriority: 1024 does not win over ipv6NormalRoutePriority, 1024",
        ),
    ] {
        let (found, problems) = config(&document("FelixConfiguration", "default", spec));
        assert_eq!([found.elevated_metric_v4, found.workload_metric_v4], v4);
        assert_eq!([found.elevated_metric_v6, found.workload_metric_v6], v6);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains("FelixConfiguration default"));
        assert!(problems[0].contains(words), "{problems:?}");
        assert_eq!(found.vxlan_port == 5000, spec == both);
    }
    // Each alone is right; the object that sets the elevated one is named.
    let default = document(
        "FelixConfiguration",
        "default",
        "ipv4ElevatedRoutePriority: 600",
    );
    let ours = document(
        "FelixConfiguration",
        "node.node-1",
        "ipv4NormalRoutePriority: 600",
    );
    let (found, problems) = config(&format!("{ours}{default}"));
    assert_eq!(
        (found.elevated_metric_v4, found.workload_metric_v4),
        (512, 600)
    );
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("FelixConfiguration default"));
}

#[test]
fn our_node_wins_over_the_cluster_and_an_annotation_over_its_field() {
    let default = document(
        "FelixConfiguration",
        "default",
        "vxlanMTU: 1400, vxlanPort: 5000",
    );
    let ours = document(
        "FelixConfiguration",
        "node.node-1",
        "vxlanMTU: 1410, routeSource: ''",
    );
    let other = document("FelixConfiguration", "node.node-2", "vxlanMTU: 1420");
    let (found, problems) = config(&format!("{default}{ours}{other}"));
    assert_eq!((found.vxlan_mtu, found.vxlan_port), (Some(1410), 5000));
    assert_eq!(problems, Vec::<String>::new());

    let wrong = document("FelixConfiguration", "node.node-1", "vxlanMTU: -5");
    let (found, problems) = config(&format!("{default}{wrong}"));
    assert_eq!((found.vxlan_mtu, problems.len()), (None, 1));

    for (annotation, expected) in [
        ("config.projectcalico.org/VXLANMTU: '1430'", Some(1430)),
        ("config.projectcalico.org/vxlanmtu: '0x5dc'", Some(1500)),
        (
            "projectcalico.org/metadata: '{\"annotations\":{\"config.projectcalico.org/VXLANMTU\":\"1300\"}}'",
            Some(1300),
        ),
        ("config.projectcalico.org/Unknown: '1'", Some(1400)),
    ] {
        let text = default.replace(
            "default}",
            &format!("default, annotations: {{{annotation}}}}}"),
        );
        let (found, problems) = config(&text);
        assert_eq!(found.vxlan_mtu, expected, "{annotation} {problems:?}");
    }
}

#[test]
fn one_wrong_service_prefix_takes_all_of_them() {
    let services = |spec: &str, name: &str| {
        let update = read(&document("BGPConfiguration", name, spec));
        let prefixes: Vec<String> = update
            .events
            .iter()
            .flat_map(|event| {
                if let Event::Bgp(services) = event {
                    services.services.as_slice()
                } else {
                    &[]
                }
            })
            .map(ToString::to_string)
            .collect();
        (prefixes.join(" "), update.problems.join(" "))
    };
    let good = "serviceClusterIPs: [{cidr: 10.96.0.0/16}, {cidr: ''}], \
                serviceExternalIPs: [{cidr: 'fd96::/112'}], serviceLoadBalancerIPs: [{cidr: 10.1.0.0/24}]";
    assert_eq!(
        services(good, "default"),
        (
            "10.96.0.0/16 fd96::/112 10.1.0.0/24".to_owned(),
            String::new()
        )
    );
    assert_eq!(
        services(good, "node.node-1"),
        (String::new(), String::new())
    );
    let (prefixes, problem) = services(&good.replace("fd96::/", "fd96::1/"), "default");
    assert_eq!(prefixes, "");
    assert!(
        problem.contains("spec.serviceExternalIPs[0].cidr"),
        "{problem}"
    );
}

#[test]
fn a_wrong_peering_address_takes_nothing_else() {
    let spec = "serviceClusterIPs: [{cidr: 10.96.0.0/16}], localWorkloadPeeringIPV4: '169.254.0.179', \
                localWorkloadPeeringIPV6: 'fe80::179'";
    let bgp = |spec: &str| {
        let update = read(&document("BGPConfiguration", "default", spec));
        let mut found = update.events.iter().filter_map(|event| {
            if let Event::Bgp(bgp) = event {
                Some(bgp.clone())
            } else {
                None
            }
        });
        (found.next_back().unwrap(), update.problems.join(" "))
    };
    let (good, problems) = bgp(spec);
    assert_eq!(good.peering.v4, Some("169.254.0.179".parse().unwrap()));
    assert_eq!(good.peering.v6, Some("fe80::179".parse().unwrap()));
    assert_eq!((good.services.len(), problems.as_str()), (1, ""));
    for (wrong, said) in [
        ("fe80::1", "is not of the family IPv4"),
        ("169.254.0.179/32", "is not an IP address"),
        (
            "127.0.0.1",
            "is not an address that a host can be reached by",
        ),
        (
            "255.255.255.255",
            "is not an address that a host can be reached by",
        ),
        (
            "224.0.0.5",
            "is not an address that a host can be reached by",
        ),
    ] {
        let (found, problems) = bgp(&spec.replace("169.254.0.179", wrong));
        let mut without = good.clone();
        without.peering.v4 = None;
        assert_eq!(found, without);
        assert!(
            problems.contains("spec.localWorkloadPeeringIPV4"),
            "{problems}"
        );
        assert!(problems.contains(said), "{problems}");
    }
}
