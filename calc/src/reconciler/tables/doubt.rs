//! What is no longer known once something has become of an interface.

use std::net::IpAddr;

use ipc_proto::{KernelRoute, Link, LinkAddressKey, RouteKey, RouteKind};
use ipnet::IpNet;

use super::Tables;
use crate::{delta::Actual, reconciler::links::Doubt};

impl Tables {
    /// Takes in that the kernel may have dropped what hung on an interface.
    pub(in crate::reconciler) fn doubt(&mut self, doubt: &Doubt) {
        self.doubt_l2(doubt);
        self.doubt_routes(doubt);
    }

    /// As [`doubt`](Self::doubt), for all but routes.
    pub(in crate::reconciler) fn doubt_l2(&mut self, doubt: &Doubt) {
        let Doubt {
            link,
            hung,
            dropped,
            gone,
            ..
        } = doubt;
        if *dropped {
            self.link_addresses
                .doubt(&Actual::Wrong, |key, _| key.link == *link);
        }
        if *gone {
            // What has the interface in its key cannot even be named any more.
            self.link_settings
                .doubt(&Actual::Absent, |key, _| key == link);
            self.neighbours
                .doubt(&Actual::Absent, |key, _| key.link == *link);
            self.fdb.doubt(&Actual::Absent, |key, _| key.link == *link);
            self.link_addresses
                .doubt(&Actual::Absent, |key, _| key.link == *link);
            self.endpoints.doubt(&Actual::Absent, |key, _| key == link);
            self.attachments
                .doubt(&Actual::Absent, |key, _| key.link == *link);
        } else if *hung {
            self.neighbours
                .doubt(&Actual::Wrong, |key, _| key.link == *link);
        }
    }

    /// Returns whether an interface that has dropped nothing is without an address that it should have:
    /// others have taken that away.
    pub(in crate::reconciler) fn misses(&self, doubt: &Doubt) -> bool {
        let key = |address: &IpAddr| LinkAddressKey {
            link: doubt.link.clone(),
            address: *address,
        };
        let mut lost = doubt.lost.iter().map(key);
        !doubt.dropped && lost.any(|key| self.link_addresses.desired(&key).is_some())
    }

    fn doubt_routes(&mut self, doubt: &Doubt) {
        let Doubt {
            link,
            hung,
            addresses,
            ..
        } = doubt;
        self.doubt_routes_that(|route| {
            *hung && uses(route, link)
                || route
                    .source
                    .is_some_and(|source| addresses.contains(&source))
        });
    }

    /// Takes in, before all is read, that the kernel may have dropped what goes with the last IPv4 address
    /// of a link: that it is gone is no deed of others then.
    pub(in crate::reconciler) fn doubt_dropped(&mut self, link: &Link, routes_as_known: bool) {
        self.neighbours.doubt(&Actual::Wrong, |key, _| {
            key.link == *link && key.address.is_ipv4()
        });
        // Those that were found as they were are not read.
        if !routes_as_known {
            let is_v4 = |key: &RouteKey| matches!(key.prefix, IpNet::V4(_));
            self.kernel_routes.doubt(&Actual::Wrong, |key, route| {
                is_v4(key) && route.is_some_and(|route| uses(route, link))
            });
        }
    }

    /// Has the routes that are as `is_meant` says in doubt until they are read or set.
    pub(in crate::reconciler) fn doubt_routes_that(
        &mut self,
        is_meant: impl Fn(&KernelRoute) -> bool,
    ) {
        let is_meant = |route: Option<&KernelRoute>| route.is_some_and(&is_meant);
        self.kernel_routes
            .doubt(&Actual::Wrong, |_, route| is_meant(route));
    }

    /// Tries again what failed on an interface.
    pub(in crate::reconciler) fn retry_on(&mut self, link: &Link) {
        self.link_settings.retry(|key, _, _| key == link);
        self.tunnel_devices
            .retry(|_, device, _| device.is_some_and(|device| device.parent == *link));
        self.neighbours.retry(|key, _, _| key.link == *link);
        self.fdb.retry(|key, _, _| key.link == *link);
        self.link_addresses.retry(|key, _, _| key.link == *link);
        self.kernel_routes
            .retry(|_, route, _| route.is_some_and(|route| uses(route, link)));
        self.endpoints.retry(|key, _, _| key == link);
        self.attachments.retry(|key, _, _| key.link == *link);
    }
}

/// Returns whether a route hangs on an interface.
fn uses(route: &KernelRoute, link: &Link) -> bool {
    match &route.kind {
        RouteKind::Local(local) => local == link,
        RouteKind::Unicast(_)
        | RouteKind::Multipath(_)
        | RouteKind::Blackhole
        | RouteKind::Prohibit
        | RouteKind::Unreachable
        | RouteKind::Throw => route.hops().iter().any(|hop| hop.link == *link),
    }
}
