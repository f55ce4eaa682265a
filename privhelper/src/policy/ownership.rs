//! Whose a kernel route is, told from the kernel's own report alone.

use ipc_proto::{LinkRole, Protocol, Table};
use ipnet::IpNet;

use super::Policy;

/// Protocols of routes that the kernel makes by itself: redirect, kernel, ra.
const KERNEL_PROTOCOLS: [u8; 3] = [1, 2, 9];

/// What tells whose a route is.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The table.
    pub table: Table,
    /// The destination.
    pub prefix: IpNet,
    /// The number of who made it.
    pub protocol: u8,
    /// The roles of the interfaces that it leads to; none for one that refuses packets.
    pub outputs: &'a [LinkRole],
}

impl Policy {
    /// Returns whether a route is ours, so that it may be reported and cleared.
    #[must_use]
    pub fn owns(&self, found: &Found<'_>) -> bool {
        if KERNEL_PROTOCOLS.contains(&found.protocol) || is_link_local(&found.prefix) {
            return false;
        }
        if found.table == Table::Second
            || found.protocol == self.safe_protocol
            || self.former_protocols.contains(&found.protocol)
        {
            return true;
        }
        !found.outputs.is_empty()
            && found.outputs.iter().all(|role| match role {
                LinkRole::Workload => {
                    self.remove_external_routes || found.protocol == self.device_protocol
                }
                LinkRole::Tunnel(_) => true,
                LinkRole::Uplink | LinkRole::Other => false,
            })
    }

    /// Returns whether a route that is not ours, and lies within one of ours, is worth telling: not what
    /// follows from the host's own addresses, nor what BIRD or a network plugin has made for a workload.
    #[must_use]
    pub fn is_intruder(&self, found: &Found<'_>) -> bool {
        let to_workload =
            |role: &LinkRole| matches!(role, LinkRole::Workload | LinkRole::Tunnel(_));
        let made_for_one = !found.outputs.is_empty() && found.outputs.iter().all(to_workload);
        !(KERNEL_PROTOCOLS.contains(&found.protocol)
            || found.protocol == BIRD
            || is_link_local(&found.prefix)
            || self.owns(found)
            || made_for_one)
    }

    /// Returns the number of a protocol, if it has one.
    #[must_use]
    pub fn protocol(&self, protocol: Protocol) -> Option<u8> {
        match protocol {
            Protocol::Device => Some(self.device_protocol),
            Protocol::Safe => Some(self.safe_protocol),
            Protocol::Foreign | Protocol::Bird => None,
        }
    }

    /// Returns the protocol that a route that is ours was made with. Where two have one number, the
    /// interfaces tell, as they do when a route is made.
    #[must_use]
    pub fn protocol_of(&self, found: &Found<'_>) -> Protocol {
        let by_link = !found.outputs.is_empty()
            && found
                .outputs
                .iter()
                .all(|role| matches!(role, LinkRole::Workload | LinkRole::Tunnel(_)));
        let device = found.protocol == self.device_protocol;
        let safe = found.protocol == self.safe_protocol;
        match (device, safe) {
            (true, true) if by_link => Protocol::Device,
            (_, true) => Protocol::Safe,
            (true, false) => Protocol::Device,
            (false, false) if found.protocol == BIRD => Protocol::Bird,
            (false, false) => Protocol::Foreign,
        }
    }

    /// Returns the number of a table.
    #[must_use]
    pub fn table(&self, table: Table) -> Option<u32> {
        match table {
            Table::Main => Some(MAIN),
            Table::Second => self.second_table,
        }
    }

    /// Returns the tables that we look at.
    pub fn tables(&self) -> impl Iterator<Item = (Table, u32)> {
        [Table::Main, Table::Second]
            .into_iter()
            .filter_map(|table| Some((table, self.table(table)?)))
    }
}

/// The protocol of BIRD's routes.
const BIRD: u8 = 12;
/// The number of the main table.
const MAIN: u32 = 254;

fn is_link_local(prefix: &IpNet) -> bool {
    match prefix {
        IpNet::V4(_) => false,
        IpNet::V6(prefix) => prefix.addr().is_unicast_link_local(),
    }
}
