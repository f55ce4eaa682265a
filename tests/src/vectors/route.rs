//! Routes of the graph as the vectors write them: Felix's messages.

use ::calc::route::{PoolKind, Route, Tunnels, Types};
use serde::{Deserialize, Deserializer, de::Error as _};

use super::text;

/// A route; absent fields are false or empty.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "as recorded")]
pub(super) struct RouteUpdate {
    pub(super) dst: String,
    types: Vec<TypeName>,
    ip_pool_type: PoolName,
    dst_node_name: String,
    pub(super) dst_node_ip: String,
    same_subnet: bool,
    nat_outgoing: bool,
    local_workload: bool,
    borrowed: bool,
    tunnel_type: TunnelType,
}

/// The name of a type.
#[derive(Debug)]
struct TypeName(Types);

impl<'de> Deserialize<'de> for TypeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let types = Types::named(&name);
        types
            .map(Self)
            .ok_or_else(|| D::Error::custom(format!("unknown type of route {name:?}")))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum PoolName {
    #[default]
    None,
    NoEncap,
    Vxlan,
    Ipip,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TunnelType {
    ipip: bool,
    vxlan: bool,
    wireguard: bool,
}

impl RouteUpdate {
    /// What it says of its prefix. A node's address that cannot be read is none (V2).
    pub(super) fn route(&self) -> Route {
        let TunnelType {
            ipip,
            vxlan,
            wireguard,
        } = self.tunnel_type;
        let node = &*self.dst_node_name;
        Route {
            types: self
                .types
                .iter()
                .fold(Types::NONE, |all, TypeName(one)| all.with(*one)),
            pool: match self.ip_pool_type {
                PoolName::None => PoolKind::None,
                PoolName::NoEncap => PoolKind::NoEncap,
                PoolName::Vxlan => PoolKind::Vxlan,
                PoolName::Ipip => PoolKind::Ipip,
            },
            node: (!node.is_empty()).then(|| node.into()),
            node_ip: text::address(&self.dst_node_ip),
            same_subnet: self.same_subnet,
            nat_outgoing: self.nat_outgoing,
            local_workload: self.local_workload,
            borrowed: self.borrowed,
            tunnels: Tunnels {
                wireguard,
                ipip,
                vxlan,
            },
        }
    }
}
