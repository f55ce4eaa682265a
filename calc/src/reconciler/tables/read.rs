//! What a reading of the kernel says of all tables.

use std::{collections::BTreeSet, ops::RangeInclusive, time::Instant};

use ipc_proto::{KernelRoute, Known, Link, LinkAddressKey, LinkState, Many, Op, RouteKey};

use super::Tables;
use crate::{
    prefix::Family,
    reading::{All, Reading},
    table::{Kind, Table},
};

impl Tables {
    /// Returns what need not be read if it is so.
    pub(in crate::reconciler) fn known(&self, seed: u64) -> Known {
        Known {
            seed,
            bpf_v4: self.bpf_v4.sum(seed),
            bpf_v6: self.bpf_v6.sum(seed),
            kernel_routes: self.routes().and_then(|routes| routes.sum(seed)),
        }
    }

    /// Returns whether it is still known what there is of a kind.
    pub(in crate::reconciler) fn is_known(&self, many: Many) -> bool {
        match many {
            Many::BpfV4 => self.bpf_v4.is_known(),
            Many::BpfV6 => self.bpf_v6.is_known(),
            Many::KernelRoutes => self.routes().is_some_and(Table::is_known),
        }
    }

    /// Returns the kernel's routes that are there and that nobody wants.
    pub(in crate::reconciler) fn stray_routes(
        &self,
    ) -> impl Iterator<Item = (&RouteKey, &KernelRoute)> {
        self.kernel_routes.strays()
    }

    /// Takes in all that the helper has read. Returns the interfaces among it, and what failed
    /// before and is as it should be.
    pub(in crate::reconciler) fn resync(
        &mut self,
        now: Instant,
        reading: Reading,
    ) -> (Vec<LinkState>, Vec<Op>) {
        let Reading {
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
        } = reading;
        self.rivals = rivals.into();
        let has = |many| as_known.contains(&many);
        let routes_as_known = has(Many::KernelRoutes);
        let link_addresses = self.less_others_addresses(link_addresses);
        for link in self.bereft(&link_addresses) {
            self.doubt_dropped(&link, routes_as_known);
        }
        let mut recovered = resync(now, &mut self.link_settings, link_settings);
        recovered.extend(resync(now, &mut self.tunnel_devices, tunnel_devices));
        recovered.extend(resync(now, &mut self.neighbours, neighbours));
        recovered.extend(resync(now, &mut self.fdb, fdb));
        recovered.extend(resync(now, &mut self.link_addresses, link_addresses));
        let Self {
            bpf_v4: v4,
            bpf_v6: v6,
            kernel_routes: routes,
            ..
        } = self;
        recovered.extend(resync_many(now, v4, bpf_v4, has(Many::BpfV4)));
        recovered.extend(resync_many(now, v6, bpf_v6, has(Many::BpfV6)));
        recovered.extend(resync_many(now, routes, kernel_routes, routes_as_known));
        recovered.extend(resync(now, &mut self.rules, rules));
        recovered.extend(resync(now, &mut self.endpoints, endpoints));
        recovered.extend(resync(now, &mut self.attachments, attachments));
        (links, recovered)
    }

    /// Leaves out addresses that are not ours, where none of their family is wanted on that link.
    fn less_others_addresses(
        &mut self,
        mut read: All<LinkAddressKey, ()>,
    ) -> All<LinkAddressKey, ()> {
        let has_wanted = |other: &LinkAddressKey| {
            let mut wanted = self.link_addresses.wanted(of_the_family(other));
            wanted.next().is_some()
        };
        let is_others =
            |(key, ours): &mut (LinkAddressKey, Option<()>)| ours.is_none() && !has_wanted(key);
        let others = read.extract_if(.., is_others).map(|(key, _)| key);
        self.others_addresses = others.collect();
        read
    }

    /// Returns whether an address that is wanted makes others ours that the last reading has left out.
    pub(in crate::reconciler) fn claims_others(&self, wanted: &Op) -> bool {
        let Op::LinkAddress(key, true) = wanted else {
            return false;
        };
        let mut others = self.others_addresses.range(of_the_family(key));
        others.next().is_some()
    }

    /// Returns the links on which an IPv4 address that was there is not as it was: others have taken it
    /// away, be it to put their own in its place.
    fn bereft(&self, read: &All<LinkAddressKey, ()>) -> BTreeSet<Link> {
        let right = read.iter().filter(|(_, ours)| ours.is_some());
        let right: BTreeSet<&LinkAddressKey> = right.map(|(key, _)| key).collect();
        let known = self.link_addresses.present().map(|(key, ())| key);
        let lost = known.filter(|key| key.address.is_ipv4() && !right.contains(key));
        lost.map(|key| key.link.clone()).collect()
    }
}

/// Returns the keys of all addresses on the same link that are of the same family.
fn of_the_family(key: &LinkAddressKey) -> RangeInclusive<LinkAddressKey> {
    let key_of = |address| LinkAddressKey {
        link: key.link.clone(),
        address,
    };
    let [first, last] = Family::of(key.address).ends();
    key_of(first)..=key_of(last)
}

/// As [`resync`]; nothing was read of what is as it is known to be.
fn resync_many<K: Kind>(
    now: Instant,
    table: &mut Table<K>,
    all: All<K::Key, K::Value>,
    is_known: bool,
) -> Vec<Op> {
    if !is_known {
        return resync(now, table, all);
    }
    let recovered = table.confirm(now);
    recovered.into_iter().map(|key| table.op(key)).collect()
}

fn resync<K: Kind>(now: Instant, table: &mut Table<K>, all: All<K::Key, K::Value>) -> Vec<Op> {
    let recovered = table.resync(now, all);
    recovered.into_iter().map(|key| table.op(key)).collect()
}
