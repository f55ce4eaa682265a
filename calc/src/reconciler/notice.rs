//! What the operator is told: once per change of state of a key, not per attempt.

use std::{fmt, net::IpAddr, time::Duration};

use ipc_proto::{Op, OpError};

use super::readings::Drift;
use crate::table::Alarm;

/// A key that fails, or no longer does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The change failed, for a reason other than the last one.
    Failed(Op, OpError),
    /// What failed before is as it should be.
    Recovered(Op),
    /// A route was set although flows of the address's former owner may be there.
    FlowsKept(IpAddr, Option<OpError>),
    /// Those flows are forgotten after all.
    FlowsForgotten(IpAddr),
    /// Others have changed, removed or added so many of a kind.
    Drift(Drift),
    /// So many more of these; the rows of the tables have them all.
    More(usize),
}

impl Notice {
    /// Names what an op is about, whichever way it goes.
    #[must_use]
    pub fn subject(op: &Op) -> String {
        let text = Object(op).to_string();
        text.split_once(' ')
            .map_or(text.clone(), |(_verb, subject)| subject.to_owned())
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(op, error) => write!(f, "{}: {error}", Object(op)),
            Self::Recovered(op) => write!(f, "{}: is as it should be", Object(op)),
            Self::FlowsKept(address, error) => {
                write!(f, "{}", OldFlows(*address, error.as_ref()))
            }
            Self::FlowsForgotten(address) => {
                write!(
                    f,
                    "the flows of the former owner of {address} are forgotten"
                )
            }
            Self::Drift(drift) => {
                let counts = drift
                    .iter()
                    .map(|(kind, count)| format!("{count} {}", kind.name()));
                write!(
                    f,
                    "others have changed what is kept here: {} (cairnctl diff has what is not put right \
                     yet; see who does it: ip monitor all)",
                    counts.collect::<Vec<_>>().join(", ")
                )
            }
            Self::More(more) => write!(f, "and {more} more; see the rows of the tables"),
        }
    }
}

/// Something that others undo again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contested {
    /// What would make it.
    op: Op,
    undone: u32,
    within: Duration,
    deed: String,
}

impl From<(Op, &Alarm)> for Contested {
    fn from((op, alarm): (Op, &Alarm)) -> Self {
        let Alarm {
            undone,
            within,
            deed,
        } = alarm.clone();
        Self {
            op,
            undone,
            within,
            deed,
        }
    }
}

impl fmt::Display for Contested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            op,
            undone,
            within,
            deed,
        } = self;
        write!(
            f,
            "{}: another program undoes it again and again ({undone} times within {within:.0?}; \
             last: {deed}), so that it is repaired ever more rarely, at most every 30 s: ",
            Notice::subject(op)
        )?;
        f.write_str(match op {
            Op::TunnelDevice(..) => {
                "see who does it (ip monitor link) and have it leave the interface alone, as by \
                 excluding it from NetworkManager or systemd-networkd"
            }
            Op::KernelRoute(..) | Op::Rule(..) => "see who does it (ip monitor route rule)",
            Op::LinkAddress(..) => "see who does it (ip monitor address)",
            Op::Neighbour(..) | Op::Fdb(..) => "see who does it (ip monitor neigh)",
            Op::LinkSettings(..)
            | Op::BpfRoute(..)
            | Op::Attachment(..)
            | Op::Endpoint(..)
            | Op::Vtep(..)
            | Op::ProgramSettings(_)
            | Op::Masquerade(_)
            | Op::FlowFlush(_) => "see who does it, as another network agent on this host",
        })
    }
}

/// Says that an address has flows of its former owner, and why.
pub(crate) struct OldFlows<'a>(pub(crate) IpAddr, pub(crate) Option<&'a OpError>);

impl fmt::Display for OldFlows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(address, error) = self;
        write!(
            f,
            "{address} has a new owner, and the flows of the former one may lead to it: "
        )?;
        match error {
            Some(error) => write!(f, "{error}")?,
            None => f.write_str("forgetting them takes too long")?,
        }
        write!(
            f,
            "; conntrack -D -s {address} and -d {address} forgets them"
        )
    }
}

/// Names what an op is about, with the verb.
struct Object<'a>(&'a Op);

impl fmt::Display for Object<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = |set: bool| if set { "set" } else { "clear" };
        match self.0 {
            Op::LinkSettings(link, value) => {
                write!(f, "{} settings of {link}", verb(value.is_some()))
            }
            Op::TunnelDevice(tunnel, value) => {
                write!(f, "{} tunnel device {tunnel:?}", verb(value.is_some()))
            }
            Op::Neighbour(key, value) => {
                let verb = verb(value.is_some());
                write!(f, "{verb} neighbour {} on {}", key.address, key.link)
            }
            Op::Fdb(key, value) => {
                let verb = verb(value.is_some());
                write!(f, "{verb} forwarding entry {} on {}", key.mac, key.link)
            }
            Op::LinkAddress(key, set) => {
                write!(f, "{} address {} of {}", verb(*set), key.address, key.link)
            }
            Op::BpfRoute(prefix, value) => {
                write!(f, "{} BPF route {prefix}", verb(value.is_some()))
            }
            Op::KernelRoute(key, value) => write!(
                f,
                "{} kernel route {} metric {} in table {:?}",
                verb(value.is_some()),
                key.prefix,
                key.metric,
                key.table
            ),
            Op::Endpoint(link, value) => {
                write!(f, "{} endpoint of {link}", verb(value.is_some()))
            }
            Op::Attachment(key, attached) => {
                let verb = verb(*attached);
                write!(f, "{verb} packet program at {:?} of {}", key.hook, key.link)
            }
            Op::Rule(rule, wanted) => write!(
                f,
                "{} IPv{} rule {} to the second table",
                verb(*wanted),
                if rule.ipv6 { 6 } else { 4 },
                rule.priority
            ),
            Op::Vtep(..) | Op::ProgramSettings(_) | Op::Masquerade(_) | Op::FlowFlush(_) => {
                write!(f, "{:?}", self.0)
            }
        }
    }
}
