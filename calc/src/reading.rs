//! All that the helper has read, sorted by kind: what the cores take in after a `Hello`.

use std::{collections::BTreeSet, net::IpAddr};

use ipc_proto::{
    AttachmentKey, BpfRoute, Endpoint, FdbKey, KernelRoute, Link, LinkAddressKey, LinkProfile,
    LinkState, Mac, Many, NeighbourKey, Observed, Rivals, RouteKey, Rule, Tunnel, TunnelDevice,
};
use ipnet::IpNet;

use crate::prefix::Prefix;

/// Keys with their values, or without one if it is none that a request could make.
pub(crate) type All<K, V> = Vec<(K, Option<V>)>;

/// See the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The kinds that are as they were known to be: nothing else is read of those.
    pub(crate) as_known: BTreeSet<Many>,
    pub(crate) links: Vec<LinkState>,
    pub(crate) link_settings: All<Link, LinkProfile>,
    pub(crate) tunnel_devices: All<Tunnel, TunnelDevice>,
    pub(crate) neighbours: All<NeighbourKey, Mac>,
    pub(crate) fdb: All<FdbKey, IpAddr>,
    pub(crate) link_addresses: All<LinkAddressKey, ()>,
    pub(crate) bpf_v4: All<Prefix, BpfRoute>,
    pub(crate) bpf_v6: All<Prefix, BpfRoute>,
    pub(crate) kernel_routes: All<RouteKey, KernelRoute>,
    pub(crate) rules: All<Rule, ()>,
    pub(crate) endpoints: All<Link, Endpoint>,
    pub(crate) attachments: All<AttachmentKey, ()>,
    /// What of others may count in place of routes that are ours.
    pub(crate) rivals: Rivals,
}

impl Reading {
    /// Adds what another part of the same reading has.
    pub fn append(&mut self, part: Self) {
        let Self {
            as_known,
            links,
            link_settings,
            tunnel_devices,
            neighbours,
            fdb,
            link_addresses,
            bpf_v4,
            bpf_v6,
            kernel_routes,
            rules,
            endpoints,
            attachments,
            rivals,
        } = part;
        self.as_known.extend(as_known);
        self.links.extend(links);
        self.link_settings.extend(link_settings);
        self.tunnel_devices.extend(tunnel_devices);
        self.neighbours.extend(neighbours);
        self.fdb.extend(fdb);
        self.link_addresses.extend(link_addresses);
        self.bpf_v4.extend(bpf_v4);
        self.bpf_v6.extend(bpf_v6);
        self.kernel_routes.extend(kernel_routes);
        self.rules.extend(rules);
        self.endpoints.extend(endpoints);
        self.attachments.extend(attachments);
        self.rivals.told.extend(rivals.told);
        self.rivals.more = self.rivals.more.saturating_add(rivals.more);
    }
}

impl FromIterator<Observed> for Reading {
    fn from_iter<I: IntoIterator<Item = Observed>>(items: I) -> Self {
        let mut reading = Self::default();
        for item in items {
            match item {
                Observed::AsKnown(many) => drop(reading.as_known.insert(many)),
                Observed::Link(state) => reading.links.push(state),
                Observed::LinkSettings(link, profile) => {
                    reading.link_settings.push((link, Some(profile)));
                }
                Observed::TunnelDevice(tunnel, device) => {
                    reading.tunnel_devices.push((tunnel, device));
                }
                Observed::Neighbour(key, mac) => reading.neighbours.push((key, Some(mac))),
                Observed::Fdb(key, destination) => reading.fdb.push((key, destination)),
                Observed::LinkAddress(key, ours) => {
                    reading.link_addresses.push((key, ours.then_some(())));
                }
                Observed::BpfRoute(prefix @ IpNet::V4(_), route) => {
                    reading.bpf_v4.push((Prefix(prefix), route));
                }
                Observed::BpfRoute(prefix @ IpNet::V6(_), route) => {
                    reading.bpf_v6.push((Prefix(prefix), route));
                }
                Observed::KernelRoute(key, route) => reading.kernel_routes.push((key, route)),
                Observed::Rule(rule) => reading.rules.push((rule, Some(()))),
                Observed::Endpoint(link, endpoint) => reading.endpoints.push((link, endpoint)),
                Observed::Rivals(rivals) => reading.rivals = rivals,
                Observed::Attachment(key) => reading.attachments.push((key, Some(()))),
            }
        }
        // Pages in order are merged, not sorted, in the end.
        reading.bpf_v4.sort_by_key(|(prefix, _)| *prefix);
        reading.bpf_v6.sort_by_key(|(prefix, _)| *prefix);
        reading.kernel_routes.sort_by(|(a, _), (b, _)| a.cmp(b));
        reading
    }
}
