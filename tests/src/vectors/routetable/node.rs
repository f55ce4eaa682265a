//! A node that a vector happens to: the kernel, the writer in front of it, and who looks on.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use ipc_proto::{Link, LinkState};
use ipnet::IpNet;

use super::{
    check::Applied,
    event::{Config, Event, Route},
    graces::Graces,
    kernel::{Kernel, Key, Routes},
    model::{Model, safe},
    owners::{Owners, Past, owners},
    recorded::Recorded,
    writer::Writer,
};
use crate::{helper::Helper, monitor::Monitor};

/// Longer than the reconciler ever waits before it tries again, or spares a route.
const LONG: Duration = Duration::from_secs(31);

/// `RTM_NEWROUTE` and `RTM_DELROUTE`.
const ROUTES: [u16; 2] = [24, 25];

/// See the [module](self).
pub(super) struct Node<'a> {
    pub(super) config: &'a Config,
    kernel: Kernel,
    monitor: Monitor,
    helper: Helper,
    pub(super) model: Model,
    writer: Writer,
    pub(super) recorded: Recorded,
    past: Past,
    graces: Graces,
    /// Whether the recorded program lists all interfaces in the next apply, and which it looks at.
    lists: bool,
    looks: BTreeSet<String>,
    /// The prefixes that others have changed routes of since the last reading.
    disturbed: BTreeSet<IpNet>,
    /// The routes that were spared at the last reading.
    spared: Routes,
    pub(super) now: Instant,
}

impl<'a> Node<'a> {
    pub(super) async fn start(name: &str, config: &'a Config, now: Instant) -> Self {
        let kernel = Kernel::new(config.ip_version == 6, &config.links);
        let helper = Helper::start(&policy(name, config));
        let mut writer = Writer::start(&helper, config, now).await;
        let up = config.links.iter().filter(|link| link.up);
        let up: Vec<&str> = up.map(|link| link.name.as_str()).collect();
        // A new link gets its carrier late.
        writer
            .follow(now, "the links at the start", |links| {
                let mut states = links.values();
                states.all(|state| state.carrier || !up.contains(&state.link.name.as_str()))
            })
            .await;
        Self {
            config,
            kernel,
            monitor: Monitor::open(),
            helper,
            model: Model::default(),
            writer,
            recorded: Recorded::default(),
            past: Past::default(),
            graces: Graces::new(config),
            lists: true,
            looks: BTreeSet::new(),
            disturbed: BTreeSet::new(),
            spared: Routes::new(),
            now,
        }
    }

    /// Takes in one event, with all that is told of interfaces.
    pub(super) async fn take(&mut self, event: &Event) {
        self.handle(event).await;
        self.graces.see(&self.writer.links, self.now);
    }

    async fn handle(&mut self, event: &Event) {
        match event {
            Event::SetRoutes(set) => {
                self.recorded.ask(&set.iface, &set.targets);
                self.model.set(set.class, &set.iface, &set.targets);
            }
            Event::RouteUpdate(one) => {
                self.recorded
                    .ask(&one.iface, std::slice::from_ref(&one.target));
                self.model.update(one.class, &one.iface, &one.target);
            }
            Event::RouteRemove(one) => self.model.remove(one.class, &one.iface, &one.target),
            Event::QueueResync(_) => {
                self.lists = true;
                self.writer.ask_to_read(self.now);
            }
            Event::QueueResyncIface(look) => {
                self.looks.insert(look.name.clone());
                self.writer.ask_to_read(self.now);
            }
            Event::AdvanceTime(advance) => self.now += Duration::from_secs(advance.seconds),
            Event::LinkUp(change) => {
                self.kernel.set_link(&change.name, true);
                self.follow(&change.name, change.notify, |_, state| state.carrier)
                    .await;
                if change.notify {
                    // It looks for what was lost.
                    self.looks.insert(change.name.clone());
                }
            }
            Event::LinkDown(change) => {
                self.kernel.set_link(&change.name, false);
                self.follow(&change.name, change.notify, |_, state| !state.up)
                    .await;
            }
            Event::LinkDel(change) => {
                let name = change.name.as_str();
                self.kernel.delete_link(name);
                let is_gone = |links: &BTreeMap<Link, LinkState>| {
                    links.keys().all(|link| link.name.as_str() != name)
                };
                self.writer.follow(self.now, name, is_gone).await;
                if change.notify {
                    self.recorded.look(name, &self.writer.links, self.now);
                }
            }
            Event::LinkAdd(add) => {
                let new = &add.link;
                self.kernel.add_link(new);
                self.follow(&new.name, add.notify, |link, state| {
                    link.index == new.index && state.carrier == new.up
                })
                .await;
                if add.notify && new.up {
                    self.looks.insert(new.name.clone());
                }
            }
            Event::KernelRouteAdd(add) => {
                self.kernel.add_route(&add.route);
                self.disturb(&add.route, true);
            }
            Event::KernelRouteDel(del) => {
                self.kernel.delete_route(&del.route);
                self.disturb(&del.route, false);
            }
            Event::Restart(_) => self.restart().await,
        }
    }

    /// Another process starts, with nothing that is asked for.
    async fn restart(&mut self) {
        self.model = Model::default();
        self.graces = Graces::new(self.config);
        self.writer = Writer::start(&self.helper, self.config, self.now).await;
        self.past = Past::default();
        let routes = self.kernel.routes().unwrap();
        let owners = owners(&routes, &self.writer.links, self.config);
        self.past.note(&owners);
        self.recorded.restart();
        self.lists = true;
    }

    /// Waits until it is told of an interface that is as it should be.
    async fn follow(&mut self, name: &str, notify: bool, is: impl Fn(&Link, &LinkState) -> bool) {
        self.writer
            .follow(self.now, name, |links| {
                let mut links = links.iter();
                links.any(|(link, state)| link.name.as_str() == name && is(link, state))
            })
            .await;
        if notify {
            self.recorded.look(name, &self.writer.links, self.now);
        }
    }

    /// Notes that another program has made or deleted a route.
    fn disturb(&mut self, route: &Route, made: bool) {
        let prefix = route.dst.trunc();
        self.disturbed.insert(prefix);
        let left = made.then(|| Route {
            dst: prefix,
            priority: self.config.metric(route.priority),
            ..route.clone()
        });
        self.recorded.miss(prefix, left);
    }

    /// Has Cairn do all that there is to do, and returns what it did.
    pub(super) async fn apply(&mut self) -> Applied<'a> {
        let links = self.writer.links.clone();
        if std::mem::take(&mut self.lists) {
            self.recorded.list(&links, self.now);
        }
        for name in std::mem::take(&mut self.looks) {
            self.recorded.look(&name, &links, self.now);
        }
        let formerly = self.model.routes(self.config);
        for op in self.model.resolve(self.config, &links) {
            self.writer.want(op);
        }
        let wanted = self.model.routes(self.config);
        self.graces.end(&wanted, &links);
        let before = self.kernel.routes().unwrap();
        drop(self.monitor.heard());
        let done = self.writer.apply(self.now).await;
        let heard = self.monitor.heard().into_iter();
        let after = self.kernel.routes().unwrap();
        let disturbed = self.disturbed.clone();
        if done.read {
            self.disturbed.clear();
        }
        let mut applied = Applied {
            config: self.config,
            read: done.read,
            spared: BTreeSet::new(),
            formerly,
            wanted,
            disturbed,
            failed: self.writer.failed_routes(),
            contested: self.writer.contested_routes(),
            writes: heard.filter(|kind| ROUTES.contains(kind)).count(),
            neighbours: [Kernel::neighbours(), self.model.neighbours()],
            flushed: [done.flushed, BTreeSet::new()],
            past: Past::default(),
            owners: Owners::new(),
            before,
            after,
            links,
        };
        self.spare(&mut applied);
        self.owe(&mut applied, done.read_first);
        applied
    }

    /// Reads all after a long time, when nothing is spared or waited for any more.
    pub(super) async fn read_at_last(&mut self) -> Applied<'a> {
        self.now += LONG;
        self.writer.ask_to_read(self.now);
        self.apply().await
    }

    /// Tells which routes are spared though nobody wants them.
    fn spare(&mut self, applied: &mut Applied<'_>) {
        let links = &applied.links;
        let is_spared = |route: &Route| self.graces.spares(route, links, self.now);
        let is_wanted = |prefix: IpNet| applied.wanted.keys().any(|key| key.0 == prefix);
        let stays = |key: &Key, route: &Route| is_spared(route) && !is_wanted(key.0);
        let before = applied.before.iter();
        let spared = before.filter(|(key, route)| stays(key, route));
        applied.spared = spared.map(|(key, _)| *key).collect();
        if applied.read {
            let after = applied.after.clone().into_iter();
            self.spared = after.collect();
        }
        self.spared.retain(|key, route| stays(key, route));
    }

    /// Tells which addresses' flows were to be forgotten.
    fn owe(&mut self, applied: &mut Applied<'_>, read_first: bool) {
        let owned = |routes: &Routes| owners(routes, &applied.links, self.config);
        if applied.read {
            let mut seen = applied.before.clone();
            // What was written before the reading was not seen.
            let asked_anew = |key: &Key| {
                let wanted = applied.wanted.get(key);
                wanted.is_some() && wanted != applied.formerly.get(key)
            };
            seen.retain(|key, _| read_first || !asked_anew(key));
            self.past.note(&owned(&seen));
        }
        applied.owners = owned(&applied.wanted);
        self.past.start(&applied.owners);
        self.past.note(&applied.owners);
        applied.past = self.past.clone();
        if self.config.conntrack_cleanup {
            let due = self.past.owed(&applied.owners, &owned(&self.spared));
            self.past.forget(&due, &applied.owners);
            applied.flushed[1] = due;
        }
    }
}

/// Returns the helper's file.
fn policy(name: &str, config: &Config) -> String {
    let prefixes = config.workload_iface_prefixes.iter();
    let prefixes: Vec<String> = prefixes.map(|prefix| format!("{prefix:?}")).collect();
    let tunnel = if config.ip_version == 6 {
        "tunnel_v6"
    } else {
        "tunnel_v4"
    };
    format!(
        "pin_dir = \"/sys/fs/bpf/routetable-{name}\"\nbpf_map_size_route = 16\n\
         uplinks = [\"eth0\"]\nworkload_prefixes = [{}]\n{tunnel} = {:?}\n\
         device_protocol = {}\nsafe_protocol = {}\nremove_external_routes = {}\n",
        prefixes.join(", "),
        config.vxlan_iface,
        config.device_route_protocol,
        safe(config),
        config.remove_external_routes,
    )
}
