//! What the kernel reports of a route, read in place. Pure.

use std::{fmt::Write, net::IpAddr};

use ipc_proto::{Hop, KernelRoute, Link, LinkRole, Protocol, RouteKey, RouteKind};
use ipnet::IpNet;
use libc::{
    RT_SCOPE_UNIVERSE, RTA_CACHEINFO, RTA_DST, RTA_GATEWAY, RTA_METRICS, RTA_MULTIPATH, RTA_OIF,
    RTA_PREF, RTA_PREFSRC, RTA_PRIORITY, RTA_TABLE, RTA_VIA, RTM_F_CLONED, RTN_BLACKHOLE,
    RTN_LOCAL, RTN_PROHIBIT, RTN_THROW, RTN_UNICAST, RTN_UNREACHABLE,
};

use super::super::attributes::{attributes, ip, push, u16_at, u32_at};
use crate::{
    links::Links,
    policy::{Found, Policy},
};

/// The length of `struct rtmsg`.
const HEADER: usize = 12;
/// The length of `struct rtnexthop`.
pub(super) const HOP: usize = 8;
/// `RTA_NH_ID`: a next hop that is an object of its own.
const NEXT_HOP_ID: u16 = 30;
/// `RTAX_LOCK` and `RTAX_MTU`.
const LOCK: u16 = 1;
pub(super) const MTU: u16 = 2;
/// `RTNH_F_ONLINK`.
pub(super) const ONLINK: u8 = 4;
/// Where `struct rta_cacheinfo` has the time that is left.
const EXPIRES: usize = 8;

/// How many ways out are described.
const MAX_WAYS: usize = 4;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(in super::super) struct Report<'a> {
    /// What the route is known by.
    pub(in super::super) key: RouteKey,
    /// The message, less its header.
    pub(in super::super) body: &'a [u8],
    /// The number of who made it.
    protocol: u8,
    scope: u8,
    kind: u8,
    onlink: bool,
    oif: Option<u32>,
    via: Option<IpAddr>,
    source: Option<IpAddr>,
    mtu: Option<u32>,
    hops: Option<&'a [u8]>,
    /// It has something that no request asks for.
    odd: bool,
}

/// What a route is to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Standing {
    /// Whether it is ours.
    pub(in super::super) ours: bool,
    /// What it does, if a request could have made it, or, of BIRD's, where it leads.
    pub(in super::super) route: Option<KernelRoute>,
}

impl<'a> Report<'a> {
    /// Reads a report; none if it is of a kind of route that has no [`RouteKey`].
    pub(in super::super) fn read(body: &'a [u8], policy: &Policy) -> Option<Self> {
        let &[
            family,
            length,
            source_length,
            tos,
            table,
            protocol,
            scope,
            kind,
        ] = body.first_chunk()?;
        let flags = u32_at(body, 8)?;
        if flags & RTM_F_CLONED != 0 || source_length != 0 {
            return None;
        }
        let mut address = match i32::from(family) {
            libc::AF_INET => IpAddr::from([0_u8; 4]),
            libc::AF_INET6 => IpAddr::from([0_u8; 16]),
            _ => return None,
        };
        let (mut number, mut metric) = (u32::from(table), 0);
        let (mut oif, mut via, mut source, mut mtu, mut hops) = (None, None, None, None, None);
        let mut odd = false;
        for (attribute, value) in attributes(body.get(HEADER..)?) {
            match attribute {
                RTA_TABLE => number = u32_at(value, 0)?,
                RTA_DST => address = ip(value)?,
                RTA_PRIORITY => metric = u32_at(value, 0)?,
                RTA_OIF => oif = u32_at(value, 0),
                RTA_GATEWAY => via = ip(value),
                RTA_PREFSRC => source = ip(value),
                RTA_MULTIPATH => hops = Some(value),
                RTA_METRICS => {
                    for (metric, value) in attributes(value) {
                        match (metric, u32_at(value, 0)) {
                            (MTU, value) => mtu = value,
                            (LOCK, Some(0)) => {}
                            _ => odd = true,
                        }
                    }
                }
                RTA_PREF => odd |= value != [0],
                RTA_CACHEINFO => odd |= u32_at(value, EXPIRES) != Some(0),
                _ => odd = true,
            }
        }
        let (table, _) = policy.tables().find(|(_, known)| *known == number)?;
        let prefix = IpNet::new(address, length).ok()?;
        let onlink = flags & u32::from(ONLINK) != 0;
        Some(Self {
            key: RouteKey {
                tos,
                ..RouteKey::new(table, prefix, metric)
            },
            body,
            protocol,
            scope,
            kind,
            onlink,
            oif,
            via,
            source,
            mtu,
            hops,
            odd,
        })
    }

    /// Tells whose it is and what it does.
    pub(in super::super) fn standing(&self, policy: &Policy, links: &Links) -> Standing {
        self.found(links, |found| {
            let route = || {
                let protocol = policy.protocol_of(found);
                // No request asks for BIRD's, so what counts is only where they lead.
                let exact = protocol != Protocol::Bird;
                let kind = self
                    .kind(links, exact)
                    .filter(|kind| !exact || !self.odd && self.fits(kind))?;
                Some(KernelRoute {
                    kind,
                    protocol,
                    source: self.source,
                    mtu: self.mtu,
                })
            };
            let ours = policy.owns(found);
            Standing {
                ours,
                route: if ours { route() } else { None },
            }
        })
    }

    /// Tells whether it is ours.
    pub(in super::super) fn is_ours(&self, policy: &Policy, links: &Links) -> bool {
        self.found(links, |found| policy.owns(found))
    }

    /// Tells whether it is worth telling where it lies within one of ours.
    pub(in super::super) fn is_intruder(&self, policy: &Policy, links: &Links) -> bool {
        self.found(links, |found| policy.is_intruder(found))
    }

    /// Tells whether it leads to those on an interface themselves.
    pub(in super::super) fn is_on(&self, link: &Link) -> bool {
        !refuses(self.kind) && self.via.is_none() && self.oif == Some(link.index)
    }

    /// Tells `use_it` what tells whose it is.
    fn found<T>(&self, links: &Links, use_it: impl FnOnce(&Found<'_>) -> T) -> T {
        let role = |index: u32| {
            let state = links.by_index(index);
            state.map_or(LinkRole::Other, |state| state.role)
        };
        let (one, many): (Option<LinkRole>, Vec<LinkRole>);
        let outputs = match (refuses(self.kind), self.hops) {
            (true, _) => &[],
            (false, Some(bytes)) => {
                many = hops(bytes).map(|hop| role(hop.index)).collect();
                many.as_slice()
            }
            (false, None) => {
                one = self.oif.map(role);
                one.as_slice()
            }
        };
        use_it(&Found {
            table: self.key.table,
            prefix: self.key.prefix,
            protocol: self.protocol,
            outputs,
        })
    }

    /// Describes it to the operator, in a few hundred characters at most.
    pub(in super::super) fn describe(&self, links: &Links) -> String {
        let mut text = match name(self.protocol) {
            Some(name) => format!("protocol {name}"),
            None => format!("protocol {}", self.protocol),
        };
        text.push_str(match self.kind {
            RTN_BLACKHOLE => " blackhole",
            RTN_PROHIBIT => " prohibit",
            RTN_UNREACHABLE => " unreachable",
            RTN_THROW => " throw",
            _ => "",
        });
        let one = match (self.via, self.oif.filter(|_| !refuses(self.kind))) {
            (None, None) => None,
            way => Some(way),
        };
        let many = hops(self.hops.unwrap_or_default());
        let many = many.map(|hop| (gateway(hop.attributes), Some(hop.index)));
        let mut comma = "";
        for (number, (via, index)) in one.into_iter().chain(many).enumerate() {
            if number == MAX_WAYS {
                text.push_str(" and others");
                break;
            }
            text.push_str(comma);
            comma = ",";
            if let Some(via) = via {
                write!(text, " via {via}").unwrap_or_default();
            }
            match index.map(|index| (index, links.by_index(index))) {
                Some((_, Some(state))) => write!(text, " dev {}", state.link.name),
                Some((index, None)) => write!(text, " dev {index}"),
                None => Ok(()),
            }
            .unwrap_or_default();
        }
        text
    }

    /// Returns whether it has several ways, which in IPv6 may be those of several programs: the kernel
    /// joins them, and tells the protocol of one alone.
    pub(in super::super) fn may_be_joined(&self) -> bool {
        self.hops.is_some() && matches!(self.key.prefix, IpNet::V6(_))
    }

    /// Returns whether it has the scope that a request for this would give it.
    fn fits(&self, kind: &RouteKind) -> bool {
        let wanted = super::scope(&self.key.prefix, kind);
        self.scope == wanted
            || matches!(self.key.prefix, IpNet::V6(_)) && self.scope == RT_SCOPE_UNIVERSE
    }

    /// Reads what it does; none if no request asks for that, or, unless that is to be `exact`, for
    /// anything that leads there.
    fn kind(&self, links: &Links, exact: bool) -> Option<RouteKind> {
        let link = |index| -> Option<Link> { Some(links.by_index(index)?.link.clone()) };
        match (self.kind, self.hops) {
            (RTN_UNICAST, None) => Some(RouteKind::Unicast(Hop {
                link: link(self.oif?)?,
                via: self.via,
                onlink: self.onlink,
            })),
            (RTN_UNICAST, Some(bytes)) => {
                let hops: Option<Vec<Hop>> = hops(bytes)
                    .map(|hop| {
                        let mut via = None;
                        for attribute in attributes(hop.attributes) {
                            match attribute {
                                (RTA_GATEWAY, value) if via.is_none() => via = Some(ip(value)?),
                                _ if exact => return None,
                                _ => {}
                            }
                        }
                        // All weights are equal if all are 1, which is 0 here.
                        (!exact || hop.weight == 0).then_some(Hop {
                            link: link(hop.index)?,
                            via,
                            onlink: hop.flags & ONLINK != 0,
                        })
                    })
                    .collect();
                hops.map(RouteKind::Multipath)
            }
            (RTN_LOCAL, None) => Some(RouteKind::Local(link(self.oif?)?)),
            (RTN_BLACKHOLE, None) => Some(RouteKind::Blackhole),
            (RTN_PROHIBIT, None) => Some(RouteKind::Prohibit),
            (RTN_UNREACHABLE, None) => Some(RouteKind::Unreachable),
            (RTN_THROW, None) => Some(RouteKind::Throw),
            _ => None,
        }
    }
}

/// Whether a route of this kind leads nowhere.
fn refuses(kind: u8) -> bool {
    [RTN_BLACKHOLE, RTN_PROHIBIT, RTN_UNREACHABLE, RTN_THROW].contains(&kind)
}

/// One of several ways.
struct NextHop<'a> {
    flags: u8,
    weight: u8,
    index: u32,
    attributes: &'a [u8],
}

fn gateway(attributes_of_hop: &[u8]) -> Option<IpAddr> {
    attributes(attributes_of_hop)
        .find(|(attribute, _)| *attribute == RTA_GATEWAY)
        .and_then(|(_, value)| ip(value))
}

fn hops(bytes: &[u8]) -> impl Iterator<Item = NextHop<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let whole = rest.get(..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(NextHop {
            flags: *whole.get(2)?,
            weight: *whole.get(3)?,
            index: u32_at(whole, 4)?,
            attributes: whole.get(HOP..)?,
        })
    })
}

/// Makes the body of the message that deletes exactly this route, of that of the report or of the
/// request that made it: the kernel compares all that is given. An IPv4 metric of 0 is not.
pub(in super::super) fn deletion(body: &[u8]) -> Vec<u8> {
    let mut delete = Vec::with_capacity(body.len());
    let (header, rest) = body.split_at_checked(HEADER).unwrap_or((body, &[]));
    delete.extend(header);
    // All flags but one tell of a state.
    if let Some(&mut [ref mut first, ref mut others @ ..]) = delete.get_mut(8..) {
        *first &= ONLINK;
        others.fill(0);
    }
    let refuses = header.get(7).is_some_and(|kind| refuses(*kind));
    let by_object = attributes(rest).any(|(attribute, _)| attribute == NEXT_HOP_ID);
    for (attribute, value) in attributes(rest) {
        match attribute {
            RTA_TABLE | RTA_DST | RTA_PRIORITY | RTA_PREFSRC | NEXT_HOP_ID => {
                push(&mut delete, attribute, value);
            }
            RTA_OIF if !refuses && !by_object => push(&mut delete, attribute, value),
            RTA_GATEWAY | RTA_VIA if !by_object => push(&mut delete, attribute, value),
            RTA_MULTIPATH if !by_object => push(&mut delete, attribute, &without_state(value)),
            _ => {}
        }
    }
    delete
}

/// Leaves no flag of a way out but what a request may ask for.
fn without_state(ways: &[u8]) -> Vec<u8> {
    let mut ways = ways.to_vec();
    let mut at = 0;
    while let Some(length) = u16_at(&ways, at)
        .map(usize::from)
        .filter(|length| *length >= HOP)
    {
        if let Some(flags) = ways.get_mut(at + 2) {
            *flags &= ONLINK;
        }
        at += length.next_multiple_of(4);
    }
    ways
}

/// What `ip` calls a protocol, where its number is well known.
fn name(protocol: u8) -> Option<&'static str> {
    Some(match protocol {
        1 => "redirect",
        2 => "kernel",
        3 => "boot",
        4 => "static",
        8 => "gated",
        9 => "ra",
        10 => "mrt",
        11 => "zebra",
        12 => "bird",
        13 => "dnrouted",
        14 => "xorp",
        15 => "ntk",
        16 => "dhcp",
        17 => "mrouted",
        18 => "keepalived",
        42 => "babel",
        84 => "ovn",
        99 => "openr",
        186 => "bgp",
        187 => "isis",
        188 => "ospf",
        189 => "rip",
        192 => "eigrp",
        _ => return None,
    })
}
