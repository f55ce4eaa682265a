//! Rules that lead to the second table, one for each that is asked for.
//!
//! Ours are those that lead there, have the safe protocol, and select by nothing but a mark: all
//! others are left alone. There are few rules, so that they are read before each change.

use ipc_proto::{Observed, OpError, Protocol, Rule, Table};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::RouteProtocol,
    rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage},
};
use nix::errno::Errno;

use super::{
    kernel,
    socket::{Refused, Request, Requests},
};
use crate::{dataplane::errno_number, policy::Policy};

/// A rule that leads to the second table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Existing {
    rule: Rule,
    ours: bool,
}

/// Makes a rule exist or be absent.
pub(super) fn set(
    requests: &mut Requests,
    policy: &Policy,
    rule: &Rule,
    wanted: bool,
) -> Result<(), OpError> {
    let name = |call: &str| format!("{call} {}", rule.priority);
    let failed = |call: &str, refused: &Refused| kernel(&name(call), refused);
    let existing =
        list(requests, policy, rule.ipv6).map_err(|errno| failed("RTM_GETRULE", &errno.into()))?;
    let mut ours = existing.iter().filter(|existing| existing.ours);
    if ours.any(|existing| existing.rule == *rule) == wanted {
        return Ok(());
    }
    if existing.iter().any(|existing| existing.rule == *rule) && wanted {
        return Err(OpError::Kernel {
            call: name("RTM_NEWRULE (another program's rule is the same but for its protocol)"),
            errno: errno_number(Errno::EEXIST),
        });
    }
    let Some(message) = message(rule, policy) else {
        let why = "no second_table is configured";
        return Err(OpError::Denied(format!("rule {}: {why}", rule.priority)));
    };
    let (call, request) = if wanted {
        let message = RouteNetlinkMessage::NewRule(message);
        ("RTM_NEWRULE", Request::create(&message))
    } else {
        let message = RouteNetlinkMessage::DelRule(message);
        ("RTM_DELRULE", Request::change(&message))
    };
    let outcome: Result<(), Refused> = requests.send(&[request]).into_iter().collect();
    match outcome {
        Err(refused) if !wanted && refused.is_absence() => Ok(()),
        other => other.map_err(|refused| failed(call, &refused)),
    }
}

/// Gives all rules that are ours to `sink`.
pub(super) fn read(
    requests: &mut Requests,
    policy: &Policy,
    sink: &mut impl FnMut(Observed),
) -> Result<(), Errno> {
    for ipv6 in [false, true] {
        let existing = list(requests, policy, ipv6)?.into_iter();
        let ours = existing.filter(|existing| existing.ours);
        ours.for_each(|existing| sink(Observed::Rule(existing.rule)));
    }
    Ok(())
}

fn list(requests: &mut Requests, policy: &Policy, ipv6: bool) -> Result<Vec<Existing>, Errno> {
    if policy.table(Table::Second).is_none() {
        return Ok(Vec::new());
    }
    let mut message = RuleMessage::default();
    message.header.family = family(ipv6);
    let message = RouteNetlinkMessage::GetRule(message);
    requests.dump(&message, |message| {
        let RouteNetlinkMessage::NewRule(message) = message else {
            return None;
        };
        take_apart(&message, policy)
    })
}

fn message(rule: &Rule, policy: &Policy) -> Option<RuleMessage> {
    let mut message = RuleMessage::default();
    message.header.family = family(rule.ipv6);
    message.header.action = RuleAction::ToTable;
    message.header.flags.set(RuleFlags::Invert, rule.invert);
    let protocol = RouteProtocol::from(policy.protocol(Protocol::Safe)?);
    message.attributes.extend([
        RuleAttribute::Priority(rule.priority),
        RuleAttribute::Table(policy.table(Table::Second)?),
        RuleAttribute::Protocol(protocol),
    ]);
    if let Some((mark, mask)) = rule.mark {
        let mark = [RuleAttribute::FwMark(mark), RuleAttribute::FwMask(mask)];
        message.attributes.extend(mark);
    }
    Some(message)
}

/// Reads a rule that a request could have made, but perhaps with another protocol.
fn take_apart(message: &RuleMessage, policy: &Policy) -> Option<Existing> {
    let header = &message.header;
    if header.action != RuleAction::ToTable
        || (header.dst_len, header.src_len, header.tos) != (0, 0, 0)
    {
        return None;
    }
    let mut table = u32::from(header.table);
    let (mut priority, mut mark, mut relevant) = (0, None, u32::MAX);
    let mut protocol = RouteProtocol::Unspec;
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "whatever no request asks for makes it another's"
    )]
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Table(number) => table = *number,
            RuleAttribute::Priority(number) => priority = *number,
            RuleAttribute::FwMark(bits) => mark = Some(*bits),
            RuleAttribute::FwMask(bits) => relevant = *bits,
            RuleAttribute::Protocol(number) => protocol = *number,
            // The kernel's word for no such limit.
            RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
            _ => return None,
        }
    }
    // A mark of 0 is not reported, but its mask is.
    let has_mask = message
        .attributes
        .iter()
        .any(|attribute| matches!(attribute, RuleAttribute::FwMask(_)));
    let mark = mark.or(has_mask.then_some(0)).map(|mark| (mark, relevant));
    (Some(table) == policy.table(Table::Second)).then_some(Existing {
        rule: Rule {
            ipv6: header.family == AddressFamily::Inet6,
            priority,
            mark,
            invert: header.flags.contains(RuleFlags::Invert),
        },
        ours: Some(u8::from(protocol)) == policy.protocol(Protocol::Safe),
    })
}

fn family(ipv6: bool) -> AddressFamily {
    if ipv6 {
        AddressFamily::Inet6
    } else {
        AddressFamily::Inet
    }
}
