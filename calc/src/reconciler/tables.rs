//! All tables: which op belongs to which, and in what order their changes are made.
//!
//! Make before break: what a packet needs is set before what leads to it, and cleared after.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    ops::RangeInclusive,
    time::Instant,
};

use ipc_proto::{
    self as wire, BpfRoute, KernelRoute, Known, Link, LinkAddressKey, LinkState, Many, Op, OpError,
    Rival, RouteKey, RouteKind, Tunnel, TunnelDevice,
    view::{self, Reason, Row},
};
use ipnet::IpNet;

use super::{
    devices::Finding,
    links::Doubt,
    notice::Notice,
    readings::Drift,
    rivals::Rivals,
    steps::{At, Steps, hops},
};
use crate::{
    delta::{Actual, Change},
    flows::{Flows, Gate, Lead, Leads, Owner, Pods, is_others, of_bpf, of_kernel},
    prefix::Family,
    reading::{All, Reading},
    table::{
        Act, Alarm, AnyTable, Attachments, BpfRoutes, Changes, Counts, Endpoints, Entry, Fdb,
        KernelRoutes, Kind, LinkAddresses, LinkSettings, Neighbours, Rules, Table, TunnelDevices,
        Verdict,
    },
};

/// No table takes this op.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no table for {0:?}: this is a bug of calc")]
pub struct Unplaced(pub Op);

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Tables {
    link_settings: Table<LinkSettings>,
    tunnel_devices: Table<TunnelDevices>,
    neighbours: Table<Neighbours>,
    fdb: Table<Fdb>,
    link_addresses: Table<LinkAddresses>,
    bpf_v4: Table<BpfRoutes>,
    bpf_v6: Table<BpfRoutes>,
    kernel_routes: Table<KernelRoutes>,
    /// Whether the kernel's routes are left to others: then it is known what should be, and nothing
    /// is asked for, shown or waited for.
    routes_left: bool,
    /// What of others may count in place of those.
    rivals: Rivals,
    rules: Table<Rules>,
    endpoints: Table<Endpoints>,
    attachments: Table<Attachments>,
}

impl Tables {
    /// Says what one key should be.
    pub(super) fn want(&mut self, op: Op) -> Result<(), Unplaced> {
        self.act(op, Act::Want).map(|_| ())
    }

    /// Spares no route any longer to which a prefix led that is wanted.
    pub(super) fn spare_none_for(&mut self, op: &Op) {
        if let Op::KernelRoute(key, Some(_)) = op {
            for keys in keys_of(key.prefix) {
                self.kernel_routes.spare_none_of(keys);
            }
        }
    }

    /// Says whether the kernel's routes are ours to change, and returns whether that is news.
    pub(super) fn sync_routes(&mut self, syncs: bool) -> bool {
        let is_news = std::mem::replace(&mut self.routes_left, !syncs) == syncs;
        if is_news {
            self.kernel_routes.forget();
            self.rivals = Rivals::default();
        }
        is_news
    }

    /// Returns whether the kernel's routes are ours to change.
    pub(super) fn syncs_routes(&self) -> bool {
        !self.routes_left
    }

    /// Returns the kernel's routes, where they are ours to change.
    fn routes(&self) -> Option<&Table<KernelRoutes>> {
        self.syncs_routes().then_some(&self.kernel_routes)
    }

    /// Says what entries of one BPF route map and what routes should be, which are in order and all
    /// new.
    pub(super) fn want_new(
        &mut self,
        entries: Vec<(IpNet, BpfRoute)>,
        routes: Vec<(RouteKey, KernelRoute)>,
    ) {
        match entries.first() {
            None => {}
            Some((IpNet::V4(_), _)) => self.bpf_v4.want_new(entries),
            Some((IpNet::V6(_), _)) => self.bpf_v6.want_new(entries),
        }
        self.kernel_routes.want_new(routes);
    }

    /// Returns whether an entry of a BPF route map is neither wanted nor there.
    pub(super) fn is_new_entry(&self, prefix: &IpNet) -> bool {
        self.map(prefix).is_new(prefix)
    }

    /// Returns whether a route is neither wanted nor there.
    pub(super) fn is_new_route(&self, key: &RouteKey) -> bool {
        self.kernel_routes.is_new(key)
    }

    /// Returns how many entries of the BPF route maps are wanted, and how many routes.
    pub(super) fn desired_lens(&self) -> [usize; 2] {
        [
            self.bpf_v4.desired_len() + self.bpf_v6.desired_len(),
            self.kernel_routes.desired_len(),
        ]
    }

    /// Takes no more room than it must, where there may be many.
    pub(super) fn pack(&mut self) {
        self.bpf_v4.pack();
        self.bpf_v6.pack();
        self.kernel_routes.pack();
    }

    /// Takes in what became of a change.
    pub(super) fn settle(&mut self, now: Instant, op: Op, failed: Option<OpError>) -> Verdict {
        // Only what has a table is ever sent.
        self.act(op, Act::Settle(now, failed))
            .unwrap_or(Verdict::Unchanged)
    }

    /// Takes in that a change may have been made or not.
    pub(super) fn lose(&mut self, op: Op) {
        // As above.
        self.act(op, Act::Lose).unwrap_or(Verdict::Unchanged);
    }

    /// Returns what need not be read if it is so.
    pub(super) fn known(&self, seed: u64) -> Known {
        Known {
            seed,
            bpf_v4: self.bpf_v4.sum(seed),
            bpf_v6: self.bpf_v6.sum(seed),
            kernel_routes: self.routes().and_then(|routes| routes.sum(seed)),
        }
    }

    /// Returns whether it is still known what there is of a kind.
    pub(super) fn is_known(&self, many: Many) -> bool {
        match many {
            Many::BpfV4 => self.bpf_v4.is_known(),
            Many::BpfV6 => self.bpf_v6.is_known(),
            Many::KernelRoutes => self.routes().is_some_and(Table::is_known),
        }
    }

    /// Returns the kernel's routes that are there and that nobody wants.
    pub(super) fn stray_routes(&self) -> impl Iterator<Item = (&RouteKey, &KernelRoute)> {
        self.kernel_routes.strays()
    }

    /// Takes in all that the helper has read. Returns the interfaces among it, and what failed
    /// before and is as it should be.
    pub(super) fn resync(&mut self, now: Instant, reading: Reading) -> (Vec<LinkState>, Vec<Op>) {
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
        let mut recovered = resync(now, &mut self.link_settings, link_settings);
        recovered.extend(resync(now, &mut self.tunnel_devices, tunnel_devices));
        recovered.extend(resync(now, &mut self.neighbours, neighbours));
        recovered.extend(resync(now, &mut self.fdb, fdb));
        let link_addresses = self.less_others_addresses(link_addresses);
        recovered.extend(resync(now, &mut self.link_addresses, link_addresses));
        let Self {
            bpf_v4: v4,
            bpf_v6: v6,
            kernel_routes: routes,
            ..
        } = self;
        let has = |many| as_known.contains(&many);
        recovered.extend(resync_many(now, v4, bpf_v4, has(Many::BpfV4)));
        recovered.extend(resync_many(now, v6, bpf_v6, has(Many::BpfV6)));
        let is_known = has(Many::KernelRoutes);
        recovered.extend(resync_many(now, routes, kernel_routes, is_known));
        recovered.extend(resync(now, &mut self.rules, rules));
        recovered.extend(resync(now, &mut self.endpoints, endpoints));
        recovered.extend(resync(now, &mut self.attachments, attachments));
        (links, recovered)
    }

    /// Leaves out addresses that are not ours, where none of their family is wanted on that link.
    fn less_others_addresses(&self, mut read: All<LinkAddressKey, ()>) -> All<LinkAddressKey, ()> {
        let is_peer = |other: &LinkAddressKey| {
            let key = |address| LinkAddressKey {
                link: other.link.clone(),
                address,
            };
            let [first, last] = Family::of(other.address).ends();
            let mut wanted = self.link_addresses.wanted(key(first)..=key(last));
            wanted.next().is_some()
        };
        read.retain(|(key, ours)| ours.is_some() || is_peer(key));
        read
    }

    /// Has routes that nobody wants stay until then, but for those whose prefix is wanted otherwise:
    /// they lead astray.
    pub(super) fn spare(&mut self, mut routes: BTreeMap<RouteKey, Instant>) {
        let is_wanted = |key: &RouteKey| {
            let keys = keys_of(key.prefix);
            let mut routes = keys.flat_map(|keys| self.kernel_routes.range(keys));
            routes.any(|(desired, _)| desired.is_some())
        };
        routes.retain(|key, _| !is_wanted(key));
        self.kernel_routes.spare(routes);
    }

    /// Lets go of those that are no longer to stay.
    pub(super) fn spare_only(&mut self, stays: impl Fn(&KernelRoute) -> bool) {
        self.kernel_routes.spare_only(stays);
    }

    /// Takes in that the kernel may have dropped what hung on an interface.
    pub(super) fn doubt(&mut self, doubt: &Doubt) {
        self.doubt_l2(doubt);
        self.doubt_routes(doubt);
    }

    /// As [`doubt`](Self::doubt), for all but routes.
    pub(super) fn doubt_l2(&mut self, doubt: &Doubt) {
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
    pub(super) fn misses(&self, doubt: &Doubt) -> bool {
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

    /// Has the routes that are as `is_meant` says in doubt until they are read or set.
    pub(super) fn doubt_routes_that(&mut self, is_meant: impl Fn(&KernelRoute) -> bool) {
        let is_meant = |route: Option<&KernelRoute>| route.is_some_and(&is_meant);
        self.kernel_routes
            .doubt(&Actual::Wrong, |_, route| is_meant(route));
    }

    /// Returns whether anything is known to hang on an interface that has it in its key.
    pub(super) fn has_any_on(&self, link: &Link) -> bool {
        self.neighbours.has_any(|key| key.link == *link)
            || self.link_addresses.has_any(|key| key.link == *link)
            || self.fdb.has_any(|key| key.link == *link)
            || self.endpoints.has_any(|key| key == link)
            || self.attachments.has_any(|key| key.link == *link)
    }

    /// Takes in what has become of a tunnel device, by what is seen of it.
    pub(super) fn look(
        &mut self,
        now: Instant,
        tunnel: Tunnel,
        compare: impl FnOnce(&TunnelDevice) -> Finding,
    ) {
        let made = self.tunnel_devices.actual(&tunnel).known();
        let made = made.or_else(|| self.tunnel_devices.contested(&tunnel));
        match made.map_or(Finding::Right, compare) {
            Finding::Right => {}
            Finding::Replaced => self
                .tunnel_devices
                .doubt(&Actual::Wrong, |key, _| *key == tunnel),
            Finding::Undone(deed) => self.tunnel_devices.undone(now, &tunnel, &deed),
        }
    }

    /// Returns what others undo again and again, by what would make it.
    pub(super) fn contested(&self) -> impl Iterator<Item = (Op, &Alarm)> {
        self.all().flat_map(|(_, table)| table.contested())
    }

    /// Says which routes of others may count in place of those that are wanted.
    pub(super) fn rivals(&self) -> impl Iterator<Item = String> {
        let keys = self.rivals.prefixes().flat_map(keys_of);
        let wanted = keys.flat_map(|keys| self.kernel_routes.wanted(keys));
        let lines = wanted.filter_map(|key| {
            let subject = Notice::subject(&self.kernel_routes.op(key.clone()));
            Some(format!("{subject}: {}", self.rivals.of(key)?))
        });
        lines.chain(self.rivals.rest())
    }

    /// Adds those of BIRD's own routes that come before routes that are wanted, and lead elsewhere: it has
    /// them from a workload.
    pub(super) fn add_outdone(
        &self,
        birds: &All<RouteKey, KernelRoute>,
        rivals: &mut wire::Rivals,
    ) {
        let links = |route: &KernelRoute| -> BTreeSet<Link> {
            hops(route).iter().map(|hop| hop.link.clone()).collect()
        };
        let outdone = birds.iter().filter_map(|(other, route)| {
            let ways = links(route.as_ref()?);
            let keys = keys_of(other.prefix).flat_map(|keys| self.kernel_routes.wanted(keys));
            let mut keys = keys.filter(|key| {
                key.table == other.table && (other.tos != 0 || other.metric <= key.metric)
            });
            keys.any(|key| {
                let ours = self.kernel_routes.desired(key);
                ours.is_some_and(|ours| links(ours) != ways)
            })
            .then_some((other, ways))
        });
        for (other, ways) in outdone {
            if rivals.told.len() < wire::Rivals::MAX {
                let ways = ways.iter().map(|link| format!(" dev {}", link.name));
                rivals.told.push(Rival {
                    key: other.clone(),
                    ours: other.prefix,
                    way: format!("protocol bird{}", ways.collect::<String>()),
                });
            } else {
                rivals.more = rivals.more.saturating_add(1);
            }
        }
    }

    /// Tries again what failed on an interface.
    pub(super) fn retry_on(&mut self, link: &Link) {
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

    /// Tries again what waits for a neighbour.
    pub(super) fn retry_not_tried(&mut self) {
        self.kernel_routes
            .retry(|_, _, error| matches!(error, OpError::NotTried(_)));
    }

    /// Ends the waiting that is over by `now`.
    pub(super) fn tick(&mut self, now: Instant) {
        self.link_settings.tick(now);
        self.tunnel_devices.tick(now);
        self.neighbours.tick(now);
        self.fdb.tick(now);
        self.link_addresses.tick(now);
        self.bpf_v4.tick(now);
        self.bpf_v6.tick(now);
        self.kernel_routes.tick(now);
        self.rules.tick(now);
        self.endpoints.tick(now);
        self.attachments.tick(now);
    }

    /// Returns when the next waiting is over.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.all()
            .filter_map(|(_, table)| table.poll_timeout())
            .min()
    }

    /// Adds to `steps` what there is room for.
    ///
    /// The entries of a BPF route map that are there are brought up to date first. New ones come
    /// before the end of old ones, so that no address is without an entry; where the map has no
    /// room for both, only as many end before as must. What waits for `flows` is left out, and what leads to a former owner cleared.
    pub(super) fn offer(
        &self,
        bpf_max_entries: usize,
        sweep: bool,
        flows: &Flows,
        steps: &mut Steps,
    ) {
        const SETS: [Change; 2] = [Change::Update, Change::Insert];
        let clears: &[Change] = if sweep {
            &[Change::Clear, Change::Sweep]
        } else {
            &[Change::Clear]
        };
        let maps = [&self.bpf_v4, &self.bpf_v6];
        let in_the_way = |map: &Table<BpfRoutes>| match map.ready_len(Change::Insert) {
            0 => 0,
            inserts => (map.present_len() + inserts).saturating_sub(bpf_max_entries),
        };

        offer(&self.link_settings, &SETS, steps);
        offer(&self.tunnel_devices, &SETS, steps);
        offer(&self.fdb, &SETS, steps);
        offer(&self.neighbours, &SETS, steps);
        offer(&self.link_addresses, &SETS, steps);
        offer(&self.endpoints, &SETS, steps);
        let gate = |op: &Op| flows.gate(op, |pods| self.leads_to(op, pods));
        let is_open = |op: &Op| gate(op) == Gate::Open;
        let breaks = |op: &Op| gate(op) == Gate::Break;
        for map in maps {
            steps.extend(map.ready(Change::Update).filter(is_open));
            steps.extend(ready(map, clears).take(in_the_way(map)));
            steps.extend(map.ready(Change::Insert).filter(is_open));
        }
        if let Some(routes) = self.routes() {
            for change in SETS {
                steps.extend(routes.ready(change).filter(is_open));
            }
        }
        offer(&self.rules, &SETS, steps);
        offer(&self.attachments, &SETS, steps);

        offer(&self.attachments, clears, steps);
        offer(&self.rules, clears, steps);
        if let Some(routes) = self.routes() {
            let routes = routes.ready(Change::Update);
            steps.extend(routes.filter(breaks).map(cleared));
            self.offer_clears_of_routes(clears, is_open, steps);
        }
        for map in maps {
            steps.extend(map.ready(Change::Update).filter(breaks).map(cleared));
        }
        for map in maps {
            steps.extend(ready(map, clears).skip(in_the_way(map)));
        }
        offer(&self.endpoints, clears, steps);
        offer(&self.link_addresses, clears, steps);
        offer(&self.neighbours, clears, steps);
        offer(&self.fdb, clears, steps);
        offer(&self.tunnel_devices, clears, steps);
    }

    /// Adds the ends of kernel routes. One in whose place another is wanted ends only once that is made,
    /// be it that the kernel takes it only later; where it leads to another owner, that waits for the
    /// end of this one.
    fn offer_clears_of_routes(
        &self,
        clears: &[Change],
        is_open: impl Fn(&Op) -> bool,
        steps: &mut Steps,
    ) {
        let set = if clears
            .iter()
            .any(|change| self.kernel_routes.ready_len(*change) > 0)
        {
            steps.routes()
        } else {
            return;
        };
        let ended = |op: Op| {
            let Op::KernelRoute(cleared, _) = &op else {
                return Some((op, None));
            };
            let mut after: Option<At> = None;
            for keys in keys_of(cleared.prefix) {
                for key in self.kernel_routes.due(keys) {
                    if is_open(&self.kernel_routes.op(key.clone())) {
                        after = after.max(Some(*set.get(key)?));
                    }
                }
            }
            Some((op, after))
        };
        for change in clears {
            steps.extend_after(self.kernel_routes.ready(*change).filter_map(ended));
        }
    }

    /// Returns the routes that are to be set.
    pub(super) fn sets_of_routes(&self) -> impl Iterator<Item = Op> {
        let changes = [Change::Update, Change::Insert];
        let maps = [&self.bpf_v4, &self.bpf_v6];
        let bpf = maps.map(|map| changes.map(|change| map.ready(change)));
        let kernel = self.routes().into_iter();
        let kernel = kernel.flat_map(move |table| changes.map(|change| table.ready(change)));
        bpf.into_iter().flatten().flatten().chain(kernel.flatten())
    }

    /// Returns whom the route under the key of an op leads to.
    fn leads_to(&self, op: &Op, pods: &Pods) -> Actual<Option<Owner>> {
        match op {
            Op::BpfRoute(prefix, _) => self.map(prefix).actual(prefix).map(of_bpf),
            Op::KernelRoute(key, _) => {
                let actual = self.kernel_routes.actual(key);
                actual.map(|route| of_kernel(route, pods))
            }
            Op::LinkSettings(..)
            | Op::TunnelDevice(..)
            | Op::Neighbour(..)
            | Op::Fdb(..)
            | Op::LinkAddress(..)
            | Op::Rule(..)
            | Op::Attachment(..)
            | Op::Endpoint(..)
            | Op::Vtep(..)
            | Op::ProgramSettings(_)
            | Op::Masquerade(_)
            | Op::FlowFlush(_) => Actual::Absent,
        }
    }

    fn map(&self, prefix: &IpNet) -> &Table<BpfRoutes> {
        match prefix {
            IpNet::V4(_) => &self.bpf_v4,
            IpNet::V6(_) => &self.bpf_v6,
        }
    }

    /// Counts the keys of a table.
    pub(super) fn counts(&self, kind: view::Kind, sweep: bool) -> Counts {
        match kind {
            view::Kind::LinkSettings => self.link_settings.counts(sweep),
            view::Kind::TunnelDevices => self.tunnel_devices.counts(sweep),
            view::Kind::Neighbours => self.neighbours.counts(sweep),
            view::Kind::Fdb => self.fdb.counts(sweep),
            view::Kind::LinkAddresses => self.link_addresses.counts(sweep),
            view::Kind::BpfRoutes => self.bpf_v4.counts(sweep) + self.bpf_v6.counts(sweep),
            view::Kind::KernelRoutes => {
                let routes = self.routes();
                routes.map_or_else(Counts::default, |table| table.counts(sweep))
            }
            view::Kind::Rules => self.rules.counts(sweep),
            view::Kind::Endpoints => self.endpoints.counts(sweep),
            view::Kind::Attachments => self.attachments.counts(sweep),
        }
    }

    /// Counts the keys of all tables.
    pub(super) fn totals(&self, sweep: bool) -> Counts {
        let zero = Counts::default();
        self.all()
            .fold(zero, |sum, (_, table)| sum + table.counts(sweep))
    }

    /// Returns how much of each kind the last reading found that others have changed.
    pub(super) fn drift(&self) -> Drift {
        let mut drift = Drift::new();
        for (kind, table) in self.all() {
            let count = table.drift();
            if count > 0 {
                *drift.entry(kind).or_default() += count;
            }
        }
        drift
    }

    /// Returns rows of a table, as `page` says; what nobody wants stays unless it `sweep`s.
    pub(super) fn rows(&self, page: &Page, sweep: bool, flows: &Flows) -> Vec<Row> {
        let rows = Rows {
            page,
            sweep,
            waits: &|op| flows.gate(op, |pods| self.leads_to(op, pods)) != Gate::Open,
        };
        match page.kind {
            view::Kind::LinkSettings => rows.of(self.link_settings.entries()),
            view::Kind::TunnelDevices => rows.of(self.tunnel_devices.entries()),
            view::Kind::Neighbours => rows.of(self.neighbours.entries()),
            view::Kind::Fdb => rows.of(self.fdb.entries()),
            view::Kind::LinkAddresses => rows.of(self.link_addresses.entries()),
            view::Kind::BpfRoutes => rows.of(self.bpf_v4.entries().chain(self.bpf_v6.entries())),
            view::Kind::KernelRoutes => {
                let entries = self.routes().into_iter().flat_map(Table::entries);
                rows.of(entries.map(|mut entry| {
                    if entry.reason.is_none() {
                        entry.reason = self.rivals.of(entry.key).map(Reason::Foreign);
                    }
                    entry
                }))
            }
            view::Kind::Rules => rows.of(self.rules.entries()),
            view::Kind::Endpoints => rows.of(self.endpoints.entries()),
            view::Kind::Attachments => rows.of(self.attachments.entries()),
        }
    }

    /// Returns what the BPF route maps have become since the last call; see [`Table::tell`].
    pub(super) fn tell(&mut self) -> Option<Changes<BpfRoutes>> {
        let (v4, v6) = (self.bpf_v4.tell(), self.bpf_v6.tell());
        Some(v4?.into_iter().chain(v6?).collect())
    }

    /// Returns the BPF routes as they were last told; see [`Table::told_after`].
    pub(super) fn told_after(
        &self,
        after: Option<&IpNet>,
    ) -> Option<impl Iterator<Item = (&IpNet, &BpfRoute)>> {
        let v6 = self.bpf_v6.told_after(after)?;
        Some(self.bpf_v4.told_after(after)?.chain(v6))
    }

    /// Returns whether a change of a BPF route is to be made or not answered yet.
    pub(super) fn awaits(&self, prefix: &IpNet) -> bool {
        self.bpf_v4.awaits(prefix) || self.bpf_v6.awaits(prefix)
    }

    /// Does with the table of an op what `act` says.
    fn act(&mut self, op: Op, act: Act) -> Result<Verdict, Unplaced> {
        Ok(match op {
            Op::LinkSettings(key, value) => self.link_settings.act(key, value, act),
            Op::TunnelDevice(key, value) => self.tunnel_devices.act(key, value, act),
            Op::Neighbour(key, value) => self.neighbours.act(key, value, act),
            Op::Fdb(key, value) => self.fdb.act(key, value, act),
            Op::LinkAddress(key, set) => self.link_addresses.act(key, set.then_some(()), act),
            Op::BpfRoute(key @ IpNet::V4(_), value) => self.bpf_v4.act(key, value, act),
            Op::BpfRoute(key @ IpNet::V6(_), value) => self.bpf_v6.act(key, value, act),
            Op::KernelRoute(key, value) => self.kernel_routes.act(key, value, act),
            Op::Endpoint(key, value) => self.endpoints.act(key, value, act),
            Op::Attachment(key, attached) => self.attachments.act(key, attached.then_some(()), act),
            Op::Rule(key, wanted) => self.rules.act(key, wanted.then_some(()), act),
            op @ (Op::Vtep(..) | Op::ProgramSettings(_) | Op::Masquerade(_) | Op::FlowFlush(_)) => {
                return Err(Unplaced(op));
            }
        })
    }

    /// All tables but those that are left to others.
    fn all(&self) -> impl Iterator<Item = (view::Kind, &dyn AnyTable)> {
        let routes = self.routes().map(|table| -> &dyn AnyTable { table });
        let all: [(view::Kind, Option<&dyn AnyTable>); 11] = [
            (view::Kind::LinkSettings, Some(&self.link_settings)),
            (view::Kind::TunnelDevices, Some(&self.tunnel_devices)),
            (view::Kind::Neighbours, Some(&self.neighbours)),
            (view::Kind::Fdb, Some(&self.fdb)),
            (view::Kind::LinkAddresses, Some(&self.link_addresses)),
            (view::Kind::BpfRoutes, Some(&self.bpf_v4)),
            (view::Kind::BpfRoutes, Some(&self.bpf_v6)),
            (view::Kind::KernelRoutes, routes),
            (view::Kind::Rules, Some(&self.rules)),
            (view::Kind::Endpoints, Some(&self.endpoints)),
            (view::Kind::Attachments, Some(&self.attachments)),
        ];
        let all = all.into_iter();
        all.filter_map(|(kind, table)| Some((kind, table?)))
    }
}

impl Leads for Tables {
    fn leads(&self, address: IpAddr, pods: &Pods) -> Vec<Lead> {
        let prefix = IpNet::from(address);
        let bpf = self.map(&prefix).range(prefix..=prefix);
        let bpf = bpf.map(|(desired, actual)| Lead {
            is_others: desired.is_some_and(is_others),
            decides: false,
            desired: desired.and_then(of_bpf),
            actual: actual.map(of_bpf),
        });
        let keys = || keys_of(prefix);
        let kernel = self.routes().into_iter();
        let kernel = kernel.flat_map(|table| keys().flat_map(|keys| table.range(keys)));
        let kernel = kernel.map(|(desired, actual)| Lead {
            is_others: false,
            decides: true,
            desired: desired.and_then(|route| of_kernel(route, pods)),
            actual: actual.map(|route| of_kernel(route, pods)),
        });
        bpf.chain(kernel).collect()
    }

    fn is_elsewhere(&self, address: IpAddr) -> bool {
        let whole = IpNet::from(address);
        let map = self.map(&whole);
        let mut wider = (0..whole.max_prefix_len()).rev().filter_map(|length| {
            let net = IpNet::new(address, length).ok()?.trunc();
            map.desired(&net)
        });
        wider.next().and_then(of_bpf) == Some(Owner::Elsewhere)
    }
}

/// Returns the keys that routes of a prefix may have, by table.
fn keys_of(prefix: IpNet) -> impl Iterator<Item = RangeInclusive<RouteKey>> {
    let tables = [ipc_proto::Table::Main, ipc_proto::Table::Second];
    tables.into_iter().map(move |table| {
        let key = |tos, metric| RouteKey {
            table,
            prefix,
            tos,
            metric,
        };
        key(0, 0)..=key(u8::MAX, u32::MAX)
    })
}

/// Returns the op that clears what another one sets.
fn cleared(op: Op) -> Op {
    match op {
        Op::BpfRoute(prefix, _) => Op::BpfRoute(prefix, None),
        Op::KernelRoute(key, _) => Op::KernelRoute(key, None),
        op @ (Op::LinkSettings(..)
        | Op::TunnelDevice(..)
        | Op::Neighbour(..)
        | Op::Fdb(..)
        | Op::LinkAddress(..)
        | Op::Rule(..)
        | Op::Attachment(..)
        | Op::Endpoint(..)
        | Op::Vtep(..)
        | Op::ProgramSettings(_)
        | Op::Masquerade(_)
        | Op::FlowFlush(_)) => op,
    }
}

/// Adds changes of a table to `steps`, as many as there is room for.
fn offer<K: Kind>(table: &Table<K>, changes: &[Change], steps: &mut Steps) {
    steps.extend(ready(table, changes));
}

/// Returns what can be made of these changes, in their order.
fn ready<K: Kind>(table: &Table<K>, changes: &[Change]) -> impl Iterator<Item = Op> {
    changes.iter().flat_map(|change| table.ready(*change))
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

/// Which rows are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Of which table.
    pub kind: view::Kind,
    /// How many to leave out at the start.
    pub skip: usize,
    /// How many at most.
    pub max: usize,
    /// Whether only those that are not as they should be.
    pub differing: bool,
}

/// What rows are made by.
struct Rows<'a> {
    page: &'a Page,
    sweep: bool,
    waits: &'a dyn Fn(&Op) -> bool,
}

impl Rows<'_> {
    fn of<'a, K: Kind + 'a>(&self, entries: impl Iterator<Item = Entry<'a, K>>) -> Vec<Row> {
        entries
            .filter(|entry| !self.page.differing || entry.reason.is_some())
            .skip(self.page.skip)
            .take(self.page.max)
            .map(|entry| self.row(entry))
            .collect()
    }

    /// Makes a row, with the reasons that its table does not know.
    fn row<K: Kind>(&self, entry: Entry<'_, K>) -> Row {
        let mut row = entry.row();
        if row.reason == Some(Reason::Pending) {
            row.reason = Some(match &row.desired {
                None if !self.sweep => Reason::Unread,
                Some(op) if (self.waits)(op) => Reason::Flows,
                None | Some(_) => Reason::Pending,
            });
        }
        row
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
        | RouteKind::Throw => hops(route).iter().any(|hop| hop.link == *link),
    }
}
