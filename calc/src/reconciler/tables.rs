//! All tables: which op belongs to which.

mod doubt;
mod made;
mod order;
mod read;
mod rows;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    ops::RangeInclusive,
    time::Instant,
};

use ipc_proto::{
    BpfRoute, KernelRoute, Link, LinkAddressKey, Op, OpError, Rival, Rivals, RouteKey, Tunnel,
    TunnelDevice, view,
};
use ipnet::IpNet;

pub use self::rows::Page;
use super::{devices::Finding, notice::Notice, readings::Drift, rivals::RivalsByPrefix};
use crate::{
    delta::{Actual, Fresh},
    flows::{Lead, Leads, Owner, Pods, is_others, of_bpf, of_kernel},
    prefix::Prefix,
    reading::All,
    table::{
        Act, Alarm, AnyTable, Attachments, BpfRoutes, Counts, Endpoints, Fdb, KernelRoutes,
        LinkAddresses, LinkSettings, Neighbours, Rules, Table, TunnelDevices, Verdict,
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
    /// The addresses that are not ours as long as none of their family is wanted on their link.
    others_addresses: BTreeSet<LinkAddressKey>,
    bpf_v4: Table<BpfRoutes>,
    bpf_v6: Table<BpfRoutes>,
    kernel_routes: Table<KernelRoutes>,
    /// Whether the kernel's routes are left to others: then it is known what should be, and nothing
    /// is asked for, shown or waited for.
    routes_left: bool,
    /// What of others may count in place of those.
    rivals: RivalsByPrefix,
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
            self.rivals = RivalsByPrefix::default();
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

    /// Says what entries of one BPF route map should be, all of which are new.
    pub(super) fn want_new_entries(&mut self, entries: Fresh<Prefix, BpfRoute>) {
        if let Some(map) = self.map_of(&entries) {
            map.want_new(entries);
        }
    }

    /// As [`want_new_entries`](Self::want_new_entries), of those that were asked for already.
    pub(super) fn want_asked_entries(&mut self, entries: Fresh<Prefix, BpfRoute>) {
        if let Some(map) = self.map_of(&entries) {
            map.want_asked(entries);
        }
    }

    fn map_of(&mut self, entries: &Fresh<Prefix, BpfRoute>) -> Option<&mut Table<BpfRoutes>> {
        Some(match entries.keys().next()? {
            Prefix(IpNet::V4(_)) => &mut self.bpf_v4,
            Prefix(IpNet::V6(_)) => &mut self.bpf_v6,
        })
    }

    /// Says what routes should be, all of which are new.
    pub(super) fn want_new_routes(&mut self, routes: Fresh<RouteKey, KernelRoute>) {
        self.kernel_routes.want_new(routes);
    }

    /// Says that an entry of a BPF route map was not asked for after all.
    pub(super) fn bring_back(&mut self, op: &Op) {
        let Op::BpfRoute(prefix, _) = op else {
            return;
        };
        let map = match prefix {
            IpNet::V4(_) => &mut self.bpf_v4,
            IpNet::V6(_) => &mut self.bpf_v6,
        };
        map.bring_back(Prefix(*prefix));
    }

    /// Returns whether no entry of a BPF route map is wanted or there.
    pub(super) fn have_no_entries(&self) -> bool {
        [&self.bpf_v4, &self.bpf_v6]
            .iter()
            .all(|map| map.is_known() && map.desired_len() == 0 && map.present_len() == 0)
    }

    /// Returns whether an entry of a BPF route map is neither wanted nor there.
    pub(super) fn is_new_entry(&self, prefix: &IpNet) -> bool {
        self.map(prefix).is_new(&Prefix(*prefix))
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

    /// Takes in what is seen of a tunnel device that a reading has found undone.
    pub(super) fn name_deed(
        &mut self,
        tunnel: Tunnel,
        compare: impl FnOnce(&TunnelDevice) -> Finding,
    ) {
        let wanted = self.tunnel_devices.contested(&tunnel);
        if let Some(Finding::Undone(deed)) = wanted.map(compare) {
            self.tunnel_devices.seen(&tunnel, &deed);
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
        wanted.filter_map(|key| {
            let subject = Notice::subject(&self.kernel_routes.op(key.clone()));
            Some(format!("{subject}: {}", self.rivals_of(key)?))
        })
    }

    /// Says how many more there are.
    pub(super) fn more_rivals(&self) -> Option<String> {
        self.rivals.rest()
    }

    /// Says which of them may count in place of one route.
    fn rivals_of(&self, key: &RouteKey) -> Option<String> {
        let is_wanted = |other: &RouteKey| self.kernel_routes.desired(other).is_some();
        self.rivals.of(key, is_wanted)
    }

    /// Adds those of BIRD's own routes that come before routes that are wanted, and lead elsewhere: it has
    /// them from a workload.
    pub(super) fn add_outdone(&self, birds: &All<RouteKey, KernelRoute>, rivals: &mut Rivals) {
        let links = |route: &KernelRoute| -> BTreeSet<Link> {
            route.hops().iter().map(|hop| hop.link.clone()).collect()
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
            if rivals.told.len() < Rivals::MAX {
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

    /// Returns what the BPF route maps have become since the last call; see [`Table::tell`].
    pub(super) fn tell(&mut self) -> Option<Vec<(IpNet, Option<BpfRoute>)>> {
        let (v4, v6) = (self.bpf_v4.tell(), self.bpf_v6.tell());
        let changes = v4?.into_iter().chain(v6?);
        Some(
            changes
                .map(|(Prefix(prefix), route)| (prefix, route))
                .collect(),
        )
    }

    /// Returns the BPF routes as they were last told; see [`Table::told_after`].
    pub(super) fn told_after(
        &self,
        after: Option<&IpNet>,
    ) -> Option<impl Iterator<Item = (&IpNet, &BpfRoute)>> {
        let after = after.copied().map(Prefix);
        let v4 = self.bpf_v4.told_after(after.as_ref())?;
        let routes = v4.chain(self.bpf_v6.told_after(after.as_ref())?);
        Some(routes.map(|(Prefix(prefix), route)| (prefix, route)))
    }

    /// Returns whether a change of a BPF route is to be made or not answered yet.
    pub(super) fn awaits(&self, prefix: &IpNet) -> bool {
        self.map(prefix).awaits(&Prefix(*prefix))
    }

    /// Does with the table of an op what `act` says.
    fn act(&mut self, op: Op, act: Act) -> Result<Verdict, Unplaced> {
        Ok(match op {
            Op::LinkSettings(key, value) => self.link_settings.act(key, value, act),
            Op::TunnelDevice(key, value) => {
                self.tunnel_devices.act(key, value.map(|value| *value), act)
            }
            Op::Neighbour(key, value) => self.neighbours.act(key, value, act),
            Op::Fdb(key, value) => self.fdb.act(key, value, act),
            Op::LinkAddress(key, set) => self.link_addresses.act(key, set.then_some(()), act),
            Op::BpfRoute(key @ IpNet::V4(_), value) => self.bpf_v4.act(Prefix(key), value, act),
            Op::BpfRoute(key @ IpNet::V6(_), value) => self.bpf_v6.act(Prefix(key), value, act),
            Op::KernelRoute(key, value) => {
                self.kernel_routes.act(key, value.map(|value| *value), act)
            }
            Op::Endpoint(key, value) => self.endpoints.act(key, value.map(|value| *value), act),
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
        let key = Prefix(prefix);
        let bpf = self.map(&prefix).range(key..=key);
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
            map.desired(&Prefix(net))
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
