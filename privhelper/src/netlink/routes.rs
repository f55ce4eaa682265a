//! Routes set and cleared by key, each change on its own.
//!
//! Only what is ours is replaced or deleted, and only in its full identity. Which route of ours is
//! under a key is remembered as a hint that spares look-ups: the kernel compares all of it, so that
//! a wrong one deletes nothing.

mod known;
mod rivals;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use ipc_proto::{KernelRoute, Observed, OpError, Rival, Rivals, RouteKey, Table};
use ipnet::IpNet;
use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;

use self::{
    known::{Known, Reading},
    rivals::Search,
};
use super::{
    kernel,
    route::{self, Report},
    socket::{self, Refused, Request, Requests},
};
use crate::{dataplane::errno_number, links::Links, policy::Policy};

/// What a key shall be.
pub(super) type Change<'a> = (&'a RouteKey, Option<&'a KernelRoute>);

type Outcome = Result<(), OpError>;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Routes {
    known: Known,
}

/// What is kept of a report.
enum Kept {
    /// A route of ours, where its body is, and the rival that was found with it.
    Ours(
        Range<usize>,
        RouteKey,
        Option<KernelRoute>,
        Option<Box<Rival>>,
    ),
    /// Another program's, which has the prefix of one of ours.
    Rival(Box<Rival>),
}

/// A route that was looked up.
struct Existing {
    ours: bool,
    route: Option<KernelRoute>,
    body: Box<[u8]>,
    /// What the operator is told of another program's.
    description: String,
    /// Whether some of its ways may be another program's.
    may_be_joined: bool,
}

/// Where the requests of a change are, and the route of ours that one of them replaces.
type Plan = (Range<usize>, Option<Existing>);

/// What it takes to change or read routes.
pub(super) struct Kernel<'a> {
    pub(super) requests: &'a mut Requests,
    pub(super) policy: &'a Policy,
    pub(super) links: &'a Links,
}

impl Routes {
    /// Sets and clears routes in order and returns what became of each.
    pub(super) fn apply(
        &mut self,
        kernel: &mut Kernel<'_>,
        changes: &[Change<'_>],
    ) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(changes.len());
        // What is looked up must not change in the same go, so no key comes twice.
        let together = |(a, set_a): &Change<'_>, (b, set_b): &Change<'_>| {
            a < b && set_a.is_some() == set_b.is_some()
        };
        for run in changes.chunk_by(together) {
            outcomes.extend(match run.first() {
                Some((_, Some(_))) => self.set(kernel, run),
                Some((_, None)) | None => self.clear(kernel, run),
            });
        }
        outcomes
    }

    /// Makes routes whose keys are free, and looks the others up.
    fn set(&mut self, kernel: &mut Kernel<'_>, run: &[Change<'_>]) -> Vec<Outcome> {
        let mut requests = Vec::with_capacity(run.len());
        let mut lay_out = |change| {
            requests.push(Request::create_route(body(change, kernel.policy)?));
            Ok(())
        };
        let laid_out: Vec<Outcome> = run.iter().map(&mut lay_out).collect();
        let sent = kernel.requests.send(&requests);
        let mut sent = requests.into_iter().map(Request::into_body).zip(sent);
        let mut outcomes = Vec::with_capacity(run.len());
        let mut taken = Vec::new();
        for (at, ((key, route), laid_out)) in run.iter().zip(laid_out).enumerate() {
            let change = (*key, *route);
            outcomes.push(laid_out.and_then(|()| match sent.next() {
                Some((body, Ok(()))) => {
                    self.known.set(key, Some(&body));
                    Ok(())
                }
                Some((body, Err(refused))) if may_be_taken(key, &refused) => {
                    taken.push((at, body));
                    Ok(())
                }
                Some((_, Err(refused))) => Err(kernel.not_made(&change, refused)),
                None => Err(failed("RTM_NEWROUTE", key, &Errno::ENODATA.into())),
            }));
        }
        if !taken.is_empty() {
            self.replace(kernel, run, taken, &mut outcomes);
        }
        outcomes
    }

    /// Sets routes whose keys are taken: by a route of ours, or by another program's.
    fn replace(
        &mut self,
        kernel: &mut Kernel<'_>,
        run: &[Change<'_>],
        taken: Vec<(usize, Vec<u8>)>,
        outcomes: &mut [Outcome],
    ) {
        let changes = || taken.iter().filter_map(|(at, _)| run.get(*at));
        let mut found = kernel.existing(&changes().map(|(key, _)| *key).collect());
        let mut requests = Vec::new();
        let plans: Vec<Result<Plan, OpError>> = changes()
            .zip(&taken)
            .map(|((key, route), (_, body))| {
                let found = found.as_mut().map_err(|errno| {
                    let refused = Refused::from(*errno);
                    failed("RTM_GETROUTE", key, &refused)
                })?;
                let start = requests.len();
                let existing = found.remove(*key).unwrap_or_default();
                if let Some(foreign) = existing.iter().find(|existing| !existing.ours) {
                    return Err(taken_by(key, &foreign.description));
                }
                let kept = existing
                    .iter()
                    .position(|existing| existing.route.as_ref() == *route);
                if kept.is_none() {
                    for joined in existing.iter().filter(|existing| existing.may_be_joined) {
                        tracing::warn!(
                            "{} metric {}: it had other ways than asked for, which end, be they another \
                             program's: {}: have that program use another metric",
                            key.prefix,
                            key.metric,
                            joined.description
                        );
                    }
                    // It takes the place of the first one, unless that is gone meanwhile.
                    let body = body.clone();
                    requests.push(if existing.is_empty() {
                        Request::create_route(body)
                    } else {
                        Request::replace_route(body)
                    });
                }
                let stays = kept.unwrap_or_default();
                let siblings = existing.iter().enumerate().filter(|(at, _)| *at != stays);
                requests.extend(siblings.map(|(_, sibling)| sibling.deletion()));
                let former = existing.into_iter().next().filter(|_| kept.is_none());
                Ok((start..requests.len(), former))
            })
            .collect();
        let sent = settled(kernel.requests, &requests);
        for ((at, body), plan) in taken.into_iter().zip(plans) {
            let (Some(change), Some(outcome)) = (run.get(at), outcomes.get_mut(at)) else {
                continue;
            };
            *outcome =
                plan.and_then(
                    |(range, former)| match (first_failure(&sent, range), former) {
                        (None, _) => Ok(()),
                        (Some(refused), Some(former)) if refused.errno == Errno::EINVAL => {
                            kernel.make_after(change, &former, &body)
                        }
                        (Some(refused), _) => Err(kernel.not_made(change, refused)),
                    },
                );
            self.known.set(change.0, outcome.is_ok().then_some(&body));
        }
    }

    /// Deletes what is known, and looks the rest up.
    fn clear(&mut self, kernel: &mut Kernel<'_>, run: &[Change<'_>]) -> Vec<Outcome> {
        let exact: Vec<Option<Request>> = run.iter().map(|(key, _)| self.deletion(key)).collect();
        let requests: Vec<Request> = exact.iter().flatten().cloned().collect();
        let mut sent = kernel.requests.send(&requests).into_iter();
        let mut outcomes = Vec::with_capacity(run.len());
        let mut unknown = Vec::new();
        for (at, ((key, _), exact)) in run.iter().zip(exact).enumerate() {
            let absent = Err(Refused::from(Errno::ESRCH));
            let outcome = exact.map_or(absent, |_| {
                sent.next().unwrap_or(Err(Errno::ENODATA.into()))
            });
            self.known.set(key, None);
            outcomes.push(match outcome {
                Ok(()) => Ok(()),
                Err(refused) if refused.is_absence() => {
                    unknown.push(at);
                    Ok(())
                }
                Err(refused) => Err(failed("RTM_DELROUTE", key, &refused)),
            });
        }
        if unknown.is_empty() {
            return outcomes;
        }
        let keys = unknown.iter().filter_map(|at| run.get(*at));
        let mut found = kernel.existing(&keys.map(|(key, _)| *key).collect());
        let mut requests = Vec::new();
        let mut ranges = Vec::new();
        for at in &unknown {
            let Some((key, _)) = run.get(*at) else {
                continue;
            };
            let start = requests.len();
            if let Ok(found) = &mut found {
                let ours = found.remove(*key).unwrap_or_default().into_iter();
                requests.extend(
                    ours.filter(|existing| existing.ours)
                        .map(|ours| ours.deletion()),
                );
            }
            ranges.push(start..requests.len());
        }
        let sent = settled(kernel.requests, &requests);
        for (at, range) in unknown.into_iter().zip(ranges) {
            let (Some((key, _)), Some(outcome)) = (run.get(at), outcomes.get_mut(at)) else {
                continue;
            };
            *outcome = match &found {
                Ok(_) => first_failure(&sent, range)
                    .map_or(Ok(()), |refused| Err(failed("RTM_DELROUTE", key, &refused))),
                Err(errno) => Err(failed("RTM_GETROUTE", key, &(*errno).into())),
            };
        }
        outcomes
    }

    /// Returns the request that deletes the route of ours that is known to be under a key; none if
    /// that could delete another.
    fn deletion(&self, key: &RouteKey) -> Option<Request> {
        let body = self.known.get(key)?;
        // The kernel takes a metric of 0 for any, if no route has it.
        if key.metric == 0 && self.known.has_greater_metric(key) {
            return None;
        }
        Some(Request::delete_route(route::deletion(body)))
    }

    /// Gives all that is ours to `sink`, and remembers it; returns what of others may count in its place.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub(super) fn snapshot(
        &mut self,
        kernel: &mut Kernel<'_>,
        sink: &mut impl FnMut(Observed),
    ) -> Result<Rivals, Errno> {
        let mut reading = Reading::default();
        let mut search = Search::default();
        let (policy, links) = (kernel.policy, kernel.links);
        let describe = |body: &[u8]| {
            let other = Report::read(body, policy);
            other.map_or_else(String::new, |other| other.describe(links))
        };
        let tables: Vec<Table> = kernel.policy.tables().map(|(table, _)| table).collect();
        for (table, ipv6) in tables
            .into_iter()
            .flat_map(|table| [(table, false), (table, true)])
        {
            let mut begun = None;
            let all = kernel.dump(table, ipv6, |again, report| {
                if begun.replace(again) != Some(again) {
                    search.begin();
                }
                let standing = report.standing(policy, links);
                if !standing.ours && report.is_intruder(policy, links) {
                    search.suspect(&report.key, report.body);
                }
                let rival = search.see(&report.key, standing.ours, report.body, describe);
                if standing.ours {
                    let body = reading.keep(report.body);
                    Some(Kept::Ours(body, report.key, standing.route, rival))
                } else {
                    rival.map(Kept::Rival)
                }
            })?;
            search.commit();
            for kept in all {
                let rival = match kept {
                    Kept::Ours(body, key, route, rival) => {
                        reading.push(key.clone(), body);
                        sink(Observed::KernelRoute(key, route));
                        rival
                    }
                    Kept::Rival(rival) => Some(rival),
                };
                if let Some(rival) = rival {
                    search.keep(*rival);
                }
            }
        }
        self.known.replace(reading);
        Ok(search.end(&self.known, describe))
    }
}

impl Kernel<'_> {
    /// Returns what there is under some keys, ours or not, in the kernel's order.
    fn existing(
        &mut self,
        keys: &BTreeSet<&RouteKey>,
    ) -> Result<BTreeMap<RouteKey, Vec<Existing>>, Errno> {
        let places: BTreeSet<(Table, bool)> = keys
            .iter()
            .map(|key| (key.table, matches!(key.prefix, IpNet::V6(_))))
            .collect();
        let (policy, links) = (self.policy, self.links);
        let mut found: BTreeMap<RouteKey, Vec<Existing>> = BTreeMap::new();
        for (table, ipv6) in places {
            let existing = self.dump(table, ipv6, |_, report| {
                if !keys.contains(&report.key) {
                    return None;
                }
                let standing = report.standing(policy, links);
                let existing = Existing {
                    ours: standing.ours,
                    route: standing.route,
                    body: report.body.into(),
                    description: report.describe(links),
                    may_be_joined: report.may_be_joined(),
                };
                Some((report.key, existing))
            })?;
            for (key, existing) in existing {
                found.entry(key).or_default().push(existing);
            }
        }
        Ok(found)
    }

    /// Makes a route after the end of a former one of ours under its key, which the kernel would not have
    /// replaced: it refuses a next hop that the former one leads to by another interface (IPv6). If it
    /// refuses even so, the former one is made again.
    fn make_after(&mut self, change: &Change<'_>, former: &Existing, body: &[u8]) -> Outcome {
        let make = Request::create_route(body.to_vec());
        let sent = settled(self.requests, &[former.deletion(), make]);
        let refused = sent.into_iter().find_map(Result::err);
        // As long as the former one does not hide what else leads there.
        let failure = refused.map(|refused| self.not_made(change, refused));
        if failure.is_some() {
            let again = route::deletion(&former.body);
            // Should this fail as well, nothing is there, as the next reading finds.
            drop(self.requests.send(&[Request::create_route(again)]));
        }
        failure.map_or(Ok(()), Err)
    }

    /// Tells why a route was not made.
    fn not_made(&mut self, change: &Change<'_>, mut refused: Refused) -> OpError {
        if let Some(route) = self.in_the_way(change, &refused) {
            let words = &refused.text;
            let comma = if words.is_empty() { "" } else { "; " };
            refused.text = format!("{words}{comma}{route}");
        }
        failed("RTM_NEWROUTE", change.0, &refused)
    }

    /// Says which route that is not ours leads to a next hop, but another way, if that may be why the
    /// kernel refuses a route (IPv6).
    fn in_the_way(&mut self, (key, route): &Change<'_>, refused: &Refused) -> Option<String> {
        let of_way = matches!(refused.errno, Errno::EINVAL | Errno::EHOSTUNREACH);
        if !of_way || matches!(key.prefix, IpNet::V4(_)) {
            return None;
        }
        route.as_ref()?.hops().iter().find_map(|hop| {
            let via = hop.via?;
            let lookup = RouteNetlinkMessage::GetRoute(route::lookup(via));
            let found = self.requests.get(&lookup).ok()?;
            let body = socket::body(&found);
            let report = Report::read(&body, self.policy)?;
            let is_others = !report.is_ours(self.policy, self.links) && !report.is_on(&hop.link);
            is_others.then(|| {
                format!(
                    "the route to {}, {}, leads to the next hop {via} another way than by {}: remove it, or have \
                     whoever made it leave that address out",
                    report.key.prefix,
                    report.describe(self.links),
                    hop.link.name
                )
            })
        })
    }

    fn dump<T>(
        &mut self,
        table: Table,
        ipv6: bool,
        mut keep: impl FnMut(u32, Report<'_>) -> Option<T>,
    ) -> Result<Vec<T>, Errno> {
        let policy = self.policy;
        let Some(number) = policy.table(table) else {
            return Ok(Vec::new());
        };
        let message = RouteNetlinkMessage::GetRoute(route::dump(ipv6, number));
        let found = self.requests.dump_bodies(&message, |again, kind, body| {
            if kind != libc::RTM_NEWROUTE {
                return None;
            }
            keep(again, Report::read(body, policy)?)
        });
        match found {
            // The table has no route yet.
            Err(Errno::ENOENT) => Ok(Vec::new()),
            other => other,
        }
    }
}

impl Existing {
    fn deletion(&self) -> Request {
        Request::delete_route(route::deletion(&self.body))
    }
}

/// Lays out the request for a route.
fn body((key, route): &Change<'_>, policy: &Policy) -> Result<Vec<u8>, OpError> {
    route
        .and_then(|route| route::body(key, route, policy))
        .ok_or_else(|| OpError::Denied(format!("{}: no second_table is configured", key.prefix)))
}

/// Sends requests; what is to be deleted may be absent.
fn settled(requests: &mut Requests, sent: &[Request]) -> Vec<Result<(), Refused>> {
    let outcomes = requests.send(sent).into_iter().zip(sent);
    outcomes
        .map(|(outcome, request)| match outcome {
            Err(refused) if request.deletes() && refused.is_absence() => Ok(()),
            other => other,
        })
        .collect()
}

fn first_failure(sent: &[Result<(), Refused>], range: Range<usize>) -> Option<Refused> {
    let mut sent = sent.get(range).unwrap_or_default().iter();
    sent.find_map(|outcome| outcome.clone().err())
}

/// Returns whether the reason for a refusal may be what is there under the key. Of an IPv6 route the
/// kernel looks at the next hop first.
fn may_be_taken(key: &RouteKey, refused: &Refused) -> bool {
    let is_v6 = matches!(key.prefix, IpNet::V6(_));
    refused.errno == Errno::EEXIST || is_v6 && refused.errno == Errno::EINVAL
}

fn failed(call: &str, key: &RouteKey, refused: &Refused) -> OpError {
    let name = format!("{call} {} metric {}", key.prefix, key.metric);
    kernel(&name, refused)
}

fn taken_by(key: &RouteKey, description: &str) -> OpError {
    OpError::Kernel {
        call: format!(
            "RTM_NEWROUTE {} metric {} (another program's route has this key: {description}; it is \
             left alone: remove it, or give it another metric)",
            key.prefix, key.metric
        ),
        errno: errno_number(Errno::EEXIST),
    }
}
