//! The rules for pools.

use calc::event::{Event, Pool, TunnelMode};

use super::{all_are_absent, all_are_present, document, objects, read};

#[test]
fn a_pool_that_calico_would_refuse_is_absent() {
    all_are_absent(
        "IPPool",
        "pool",
        &[
            ("", "spec.cidr", "missing"),
            ("cidr: 10.0.0.1/20", "spec.cidr", "10.0.0.0/20"),
            ("cidr: 10.0.0.0", "spec.cidr", "prefix"),
            ("cidr: ten", "spec.cidr", "prefix"),
            ("cidr: 10.0.0.0/33", "spec.cidr", "prefix"),
            ("cidr: 169.254.8.0/24", "spec.cidr", "link-local"),
            ("cidr: 168.0.0.0/6", "spec.cidr", "link-local"),
            ("cidr: 'fe80::/64'", "spec.cidr", "link-local"),
            ("cidr: 10.0.0.0/20, blockSize: 19", "spec.blockSize", "19"),
            ("cidr: 10.0.0.0/20, blockSize: 33", "spec.blockSize", "33"),
            ("cidr: 'fd00::/64', blockSize: 64", "spec.blockSize", "64"),
            ("cidr: 10.0.0.0/27", "spec.cidr", "/26"),
            (
                "cidr: 10.0.0.0/20, vxlanMode: always",
                "spec.vxlanMode",
                "always",
            ),
            (
                "cidr: 10.0.0.0/20, ipipMode: Sometimes",
                "spec.ipipMode",
                "Sometimes",
            ),
            (
                "cidr: 10.0.0.0/20, ipipMode: Always, vxlanMode: Always",
                "spec.ipipMode",
                "Never",
            ),
            (
                "cidr: 'fd00::/64', ipipMode: Always",
                "spec.ipipMode",
                "IPv4",
            ),
            (
                "cidr: 10.0.0.0/20, allowedUses: [Work]",
                "spec.allowedUses[0]",
                "Work",
            ),
            (
                "cidr: 10.0.0.0/20, allowedUses: [Workload, LoadBalancer]",
                "spec.allowedUses",
                "split",
            ),
            (
                "cidr: 10.0.0.0/20, allowedUses: [LoadBalancer], vxlanMode: Always",
                "spec.vxlanMode",
                "Never",
            ),
            (
                "cidr: 10.0.0.0/20, allowedUses: [LoadBalancer], ipipMode: Always",
                "spec.ipipMode",
                "Never",
            ),
            (
                "cidr: 10.0.0.0/20, allowedUses: [LoadBalancer], nodeSelector: x",
                "spec.nodeSelector",
                "all()",
            ),
            (
                "cidr: 10.0.0.0/20, allowedUses: [LoadBalancer], disableBGPExport: true",
                "spec.disableBGPExport",
                "false",
            ),
            (
                "cidr: 10.0.0.0/20, allowedUses: [Tunnel], namespaceSelector: x",
                "spec.namespaceSelector",
                "Tunnel",
            ),
        ],
    );
}

#[test]
fn a_pool_that_calico_accepts_is_present() {
    all_are_present(
        "IPPool",
        "pool",
        &[
            "cidr: 10.0.0.0/20",
            "cidr: 10.0.0.0/20, blockSize: 0, vxlanMode: null",
            "cidr: 10.0.0.0/20, blockSize: 20",
            "cidr: 10.0.0.0/32, blockSize: 32",
            "cidr: 'fd00::/64', blockSize: 128, vxlanMode: CrossSubnet",
            "cidr: 10.0.0.0/27, disabled: true",
            "cidr: 10.0.0.0/20, allowedUses: [LoadBalancer], nodeSelector: all()",
            "cidr: 10.0.0.0/20, allowedUses: [Workload], namespaceSelector: x",
            "cidr: 10.0.0.0/20, natOutgoing: yes, fieldOfTheFuture: {a: [1]}",
        ],
    );
}

#[test]
fn a_pool_keeps_what_routes_need() {
    let spec = "cidr: 10.0.0.0/20, ipipMode: CrossSubnet, natOutgoing: true, disabled: true";
    let pool = Pool {
        ipip: TunnelMode::CrossSubnet,
        nat_outgoing: true,
        ..Pool::default()
    };
    let update = read(&document("IPPool", "pool", spec));
    let event = Event::Pool("10.0.0.0/20".parse().unwrap(), Some(pool));
    assert_eq!(objects(&update), [&event]);
}
