//! Workload endpoints.

use ipnet::IpNet;

use crate::event::{MigrationRole, Workload, WorkloadKey};

use super::{Flaw, Rule, Value, address, address_of, address_or_prefix, mac};
use crate::datastore::{
    document::ObjectKey,
    resource::{Resource, WorkloadSpec},
};

/// None for one without addresses, as a finished pod leaves it.
pub(super) fn workload(
    object: &ObjectKey,
    resource: Resource<WorkloadSpec>,
) -> Result<Option<Value>, Flaw> {
    let spec = &resource.spec;
    let key = key(object, spec)?;
    if spec.ip_networks.is_empty() {
        return Ok(None);
    }
    let nets = nets(spec)?;
    check_nats(spec, &nets)?;
    check_ports(spec)?;
    for (text, v6, field) in [
        (&spec.ipv4_gateway, false, "spec.ipv4Gateway"),
        (&spec.ipv6_gateway, true, "spec.ipv6Gateway"),
    ] {
        address_of(text, v6).map_err(|rule| rule.at(field))?;
    }
    for (place, text) in spec.allow_spoofed_source_prefixes.iter().enumerate() {
        address_or_prefix(text)
            .map_err(|rule| rule.at(format!("spec.allowSpoofedSourcePrefixes[{place}]")))?;
    }
    if spec.interface_name.is_empty() {
        return Err(Rule::Missing.at("spec.interfaceName"));
    }
    let interface = spec
        .interface_name
        .parse()
        .ok()
        .ok_or_else(|| Rule::Interface(spec.interface_name.clone()).at("spec.interfaceName"))?;
    let labels = resource.metadata.labels;
    let workload = Workload {
        interface,
        nets,
        mac: mac(&spec.mac).map_err(|rule| rule.at("spec.mac"))?,
        // A virtual machine may move, and a limit is applied on the way that a redirect skips.
        skip_ingress_redirect: spec.qos_controls.ingress_bandwidth != 0
            || spec.qos_controls.ingress_packet_rate != 0
            || labels
                .get("kubevirt.io")
                .is_some_and(|role| role == "virt-launcher"),
        migration: MigrationRole::None,
        bgp_peer: false,
    };
    let spoofs = !spec.allow_spoofed_source_prefixes.is_empty();
    Ok(Some(Value::Workload {
        key: Box::new(key),
        workload: Box::new(workload),
        labels,
        spoofs,
    }))
}

/// The name decides; what else is said about the same must agree with it.
fn key(object: &ObjectKey, spec: &WorkloadSpec) -> Result<WorkloadKey, Flaw> {
    if object.namespace.is_empty() {
        return Err(Rule::Missing.at("metadata.namespace"));
    }
    // A slash is between the namespace and the name where both are one.
    if object.namespace.contains('/') || object.name.contains('/') {
        return Err(Rule::EndpointName(object.name.to_string()).at("metadata.name"));
    }
    let [node, orchestrator, workload, endpoint] = name_parts(&object.name)
        .ok_or_else(|| Rule::EndpointName(object.name.to_string()).at("metadata.name"))?;
    let (said, field) = match orchestrator.as_str() {
        "k8s" => (spec.pod.as_str(), "spec.pod"),
        "cni" => (spec.container_id.as_str(), "spec.containerID"),
        "libnetwork" => ("libnetwork", "metadata.name"),
        _ => (spec.workload.as_str(), "spec.workload"),
    };
    for (given, named, field) in [
        (spec.node.as_str(), &node, "spec.node"),
        (
            spec.orchestrator.as_str(),
            &orchestrator,
            "spec.orchestrator",
        ),
        (said, &workload, field),
        (spec.endpoint.as_str(), &endpoint, "spec.endpoint"),
    ] {
        if !given.is_empty() && given != named {
            let (given, named) = (given.to_owned(), named.clone());
            return Err(Rule::Contradiction { given, named }.at(field));
        }
    }
    let workload = format!("{}/{workload}", object.namespace);
    Ok(WorkloadKey {
        node,
        orchestrator,
        workload,
        endpoint,
    })
}

/// A single dash ends a part, a doubled one is a dash of the part, which neither begins nor ends
/// with one.
fn name_parts(name: &str) -> Option<[String; 4]> {
    let mut parts = vec![String::new()];
    let mut letters = name.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == '-' && letters.next_if_eq(&'-').is_none() {
            parts.push(String::new());
        } else {
            parts.last_mut()?.push(letter);
        }
    }
    let sound = |part: &String| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-');
    <[String; 4]>::try_from(parts)
        .ok()
        .filter(|parts| parts.iter().all(sound))
}

fn nets(spec: &WorkloadSpec) -> Result<Vec<IpNet>, Flaw> {
    let mut nets = Vec::new();
    for (place, text) in spec.ip_networks.iter().enumerate() {
        let net = address_or_prefix(text)
            .and_then(|net| {
                if net.prefix_len() == net.max_prefix_len() {
                    Ok(net)
                } else {
                    Err(Rule::NotSingle(text.clone()))
                }
            })
            .map_err(|rule| rule.at(format!("spec.ipNetworks[{place}]")))?;
        nets.push(net);
    }
    Ok(nets)
}

fn check_nats(spec: &WorkloadSpec, nets: &[IpNet]) -> Result<(), Flaw> {
    for (place, nat) in spec.ip_nats.iter().enumerate() {
        let at = |field| format!("spec.ipNATs[{place}].{field}");
        let internal = address(&nat.internal_ip).map_err(|rule| rule.at(at("internalIP")))?;
        address(&nat.external_ip).map_err(|rule| rule.at(at("externalIP")))?;
        if !nets.iter().any(|net| net.addr() == internal) {
            return Err(Rule::NotOwn(internal).at(at("internalIP")));
        }
    }
    Ok(())
}

fn check_ports(spec: &WorkloadSpec) -> Result<(), Flaw> {
    for (place, port) in spec.ports.iter().enumerate() {
        if port.name.is_empty() && port.host_port == 0 {
            return Err(Rule::NamelessPort.at(format!("spec.ports[{place}]")));
        }
        let protocol = port.protocol.to_ascii_lowercase();
        let has_ports = matches!(
            protocol.as_str(),
            "tcp" | "udp" | "sctp" | "6" | "17" | "132"
        );
        if !port.name.is_empty() && !has_ports {
            let given = port.protocol.clone();
            let allowed = "TCP, UDP and SCTP";
            return Err(Rule::OneOf { given, allowed }.at(format!("spec.ports[{place}].protocol")));
        }
    }
    Ok(())
}
