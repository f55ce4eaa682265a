//! From decoded resources to what the calculator hears, by Calico's rules.
//!
//! A resource that breaks them is absent, and a flaw says why. A flaw that costs less than the
//! whole resource, such as one address of a node, leaves the rest. Never looks at other objects.

mod block;
mod migration;
mod node;
mod peer;
mod pool;
mod workload;

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::event;

pub(super) use self::{migration::Migration, peer::Peers};
use super::{
    document::{Kind, ObjectKey},
    resource::{BgpSpec, Resource},
    selector::{self, Labels},
    settings::{Selected, Settings, settings},
    tree::{Fault, Tree},
};

/// What an object means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Value {
    Node(Box<event::Node>, Labels),
    Pool(IpNet, event::Pool),
    Block(IpNet, event::Block),
    Workload {
        key: Box<event::WorkloadKey>,
        /// In no migration, as far as it says itself.
        workload: Box<event::Workload>,
        labels: Labels,
        /// Whether it may only exist where workloads may use foreign source addresses.
        spoofs: bool,
    },
    Bgp(event::Bgp),
    Settings(Settings),
    SelectedSettings(Box<Selected>),
    Migration(Box<Migration>),
    Peers(Box<Peers>),
}

/// A breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flaw {
    /// The path of the field.
    pub(super) field: String,
    /// The rule.
    pub(super) rule: Rule,
}

/// What is wrong with a field, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Rule {
    #[error("is missing; the object needs it")]
    Missing,
    #[error("is there but empty; fill it in or leave it out")]
    Empty,
    #[error("{0:?} is not an IP address")]
    Address(String),
    #[error("{0:?} is not an address that a host can be reached by")]
    NotUnicast(String),
    #[error("{0:?} is not a prefix such as 10.0.0.0/24 or fd00::/64")]
    Prefix(String),
    #[error("{given:?} has bits beyond its prefix length; write {masked}")]
    HostBits { given: String, masked: IpNet },
    #[error("{given:?} is not of the family {wanted}")]
    Family { given: String, wanted: &'static str },
    #[error("{0:?} is not a single address (/32 or /128)")]
    NotSingle(String),
    #[error("{0:?} is not a MAC address such as 66:0c:13:00:00:01")]
    Mac(String),
    #[error("{0:?} is not a name that an interface can have (1 to 15 characters)")]
    Interface(String),
    #[error("is not a WireGuard key (base64 of 32 bytes)")]
    WireguardKey,
    #[error("{0:?} is not a lower-case DNS name")]
    ObjectName(String),
    #[error(
        "{0:?} does not consist of node, orchestrator, workload and endpoint with single dashes \
         between and doubled ones within"
    )]
    EndpointName(String),
    #[error("{given:?} contradicts the object's name, which says {named:?}; correct one of them")]
    Contradiction { given: String, named: String },
    #[error("{given:?} is none of {allowed}")]
    OneOf {
        given: String,
        allowed: &'static str,
    },
    #[error("{given} is not within {least} and {most}")]
    Range { given: i64, least: i64, most: i64 },
    #[error(
        "{} does not win over {normal}, {}: it must be lower; {} and {} are in force",
        given[0], given[1], used[0], used[1]
    )]
    NotElevated {
        /// The elevated metric, then the normal one; so also `used`.
        given: [u32; 2],
        /// The field of the normal one.
        normal: &'static str,
        used: [u32; 2],
    },
    #[error(
        "{given} is not within {least} and {most}, nor 0, which is as much as the uplink leaves"
    )]
    Mtu { given: i64, least: i64, most: i64 },
    #[error("{0:?} is not a number")]
    Number(String),
    #[error("{0:?} is neither true nor false")]
    Bool(String),
    #[error(
        "{cidr} is longer than a block (/{block_size}); make the pool larger or its blocks smaller"
    )]
    PoolBelowBlock { cidr: IpNet, block_size: i64 },
    #[error("{0} overlaps the link-local addresses; use another prefix")]
    LinkLocal(IpNet),
    #[error("is combined with another encapsulation; one of vxlanMode and ipipMode must be Never")]
    TwoEncapsulations,
    #[error("IPIP carries IPv4 only; use vxlanMode")]
    IpipForIpv6,
    #[error("does not go together with the use LoadBalancer; {0}")]
    LoadBalancer(&'static str),
    #[error("does not go together with the use Tunnel; remove one of them")]
    TunnelPool,
    #[error("{0:?} is neither host:<node> nor virtual:<owner>; the block counts as owned by none")]
    Affinity(String),
    #[error("refers to attributes number {index}, of {count}; the address is left out")]
    NoAttributes { index: i64, count: usize },
    #[error("is an address beyond the end of the block; it is left out")]
    BeyondBlock,
    #[error("{0} is not one of the endpoint's own addresses")]
    NotOwn(IpAddr),
    #[error("needs a name or a hostPort")]
    NamelessPort,
    #[error("is not allowed on \"default\" and \"node.<name>\"; remove it or rename the object")]
    SelectorNotAllowed,
    #[error("is not a selector: {0}")]
    Selector(selector::Error),
    #[error("{0:?} is not a time such as 2026-08-20T08:00:00Z")]
    Time(String),
    #[error("{0:?} is not a duration such as 1m30s")]
    Duration(String),
    #[error("is combined with {0}; remove one of them")]
    TwoNames(&'static str),
    #[error("is not valid JSON; the labels and annotations in it are left out")]
    InnerMetadata,
}

impl Rule {
    fn at(self, field: impl Into<String>) -> Flaw {
        Flaw {
            field: field.into(),
            rule: self,
        }
    }
}

/// The meaning of an object; None if it counts as absent. Flaws are added to `flaws`, fatal or not.
///
/// # Errors
/// A fault if it cannot be decoded, which says nothing about what it would mean.
pub(super) fn convert(
    key: &ObjectKey,
    tree: &Tree,
    flaws: &mut Vec<Flaw>,
) -> Result<Option<Value>, Fault> {
    let converted = match key.kind {
        Kind::Node => node::node(&key.name, tree.decode()?, flaws).map(Some),
        Kind::IpPool => pool::pool(&tree.decode()?).map(Some),
        Kind::IpamBlock => block::block(&tree.decode()?, flaws),
        Kind::LiveMigration => migration::migration(key, tree.decode()?),
        Kind::WorkloadEndpoint => workload::workload(key, tree.decode()?),
        Kind::BgpPeer => peer::peers(tree.decode()?),
        Kind::BgpConfiguration => bgp(&key.name, &tree.decode()?, flaws),
        Kind::FelixConfiguration => settings(&key.name, tree.decode()?, flaws),
    };
    Ok(converted.unwrap_or_else(|flaw| {
        flaws.push(flaw);
        None
    }))
}

fn bgp(
    name: &str,
    resource: &Resource<BgpSpec>,
    flaws: &mut Vec<Flaw>,
) -> Result<Option<Value>, Flaw> {
    let spec = &resource.spec;
    let lists = [
        ("serviceClusterIPs", &spec.cluster),
        ("serviceExternalIPs", &spec.external),
        ("serviceLoadBalancerIPs", &spec.load_balancer),
    ];
    let mut services = Vec::new();
    for (list, entries) in lists {
        for (place, entry) in entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| !entry.cidr.is_empty())
        {
            let net = masked(&entry.cidr)
                .map_err(|rule| rule.at(format!("spec.{list}[{place}].cidr")))?;
            services.push(net);
        }
    }
    // One that is none has no say over the rest.
    let mut peering = |field: &str, text: &str, v6| {
        let address = address_of(text, v6).and_then(|address| match address {
            Some(address) if !is_unicast(address) => Err(Rule::NotUnicast(text.to_owned())),
            address => Ok(address),
        });
        address.unwrap_or_else(|rule| {
            flaws.push(rule.at(format!("spec.{field}")));
            None
        })
    };
    let peering = event::Peering {
        v4: peering("localWorkloadPeeringIPV4", &spec.peering_v4, false),
        v6: peering("localWorkloadPeeringIPV6", &spec.peering_v6, true),
    };
    // The others are for BGP speakers of single nodes.
    let bgp = event::Bgp { services, peering };
    Ok((name == "default").then_some(Value::Bgp(bgp)))
}

/// A prefix with a length; host bits stay.
fn prefix(text: &str) -> Result<IpNet, Rule> {
    text.parse()
        .ok()
        .ok_or_else(|| Rule::Prefix(text.to_owned()))
}

/// A prefix with a length and without host bits.
fn masked(text: &str) -> Result<IpNet, Rule> {
    let net = prefix(text)?;
    if net.trunc() == net {
        Ok(net)
    } else {
        Err(Rule::HostBits {
            given: text.to_owned(),
            masked: net.trunc(),
        })
    }
}

pub(super) fn address(text: &str) -> Result<IpAddr, Rule> {
    text.parse()
        .map(|address: IpAddr| address.to_canonical())
        .ok()
        .ok_or_else(|| Rule::Address(text.to_owned()))
}

/// A prefix, or an address as one of full length.
pub(super) fn address_or_prefix(text: &str) -> Result<IpNet, Rule> {
    if text.contains('/') {
        prefix(text)
    } else {
        address(text).map(IpNet::from)
    }
}

/// An address of one family; none if there is no text.
pub(super) fn address_of(text: &str, v6: bool) -> Result<Option<IpAddr>, Rule> {
    if text.is_empty() {
        return Ok(None);
    }
    let address = address(text)?;
    of_family(address, text, v6).map(Some)
}

fn is_unicast(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || broadcast)
}

fn of_family(address: IpAddr, text: &str, v6: bool) -> Result<IpAddr, Rule> {
    if address.is_ipv6() == v6 {
        Ok(address)
    } else {
        Err(Rule::Family {
            given: text.to_owned(),
            wanted: if v6 { "IPv6" } else { "IPv4" },
        })
    }
}

/// A MAC address; none if there is no text.
fn mac(text: &str) -> Result<Option<ipc_proto::Mac>, Rule> {
    if text.is_empty() {
        return Ok(None);
    }
    let mac = text.replace('-', ":").parse();
    mac.map(Some).ok().ok_or_else(|| Rule::Mac(text.to_owned()))
}
