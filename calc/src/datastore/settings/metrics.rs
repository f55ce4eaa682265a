//! The metrics of routes to workloads, normal and elevated. An elevated one is lower, or it would
//! win over nothing: one that is not is refused, and a default is in force. Looks at nothing else.

use crate::{
    datastore::convert::{Flaw, Rule},
    event::Config,
};

/// What is refused, and which parameters, by their internal names, are to blame.
pub(super) type Refused = ([&'static str; 2], Flaw);

/// Refuses the elevated metrics that elevate nothing.
pub(super) fn refuse(config: &mut Config) -> Vec<Refused> {
    let default = Config::default();
    let v4 = check(
        ["IPv4ElevatedRoutePriority", "IPv4NormalRoutePriority"],
        ["ipv4ElevatedRoutePriority", "ipv4NormalRoutePriority"],
        [
            &mut config.elevated_metric_v4,
            &mut config.workload_metric_v4,
        ],
        [default.elevated_metric_v4, default.workload_metric_v4],
    );
    let v6 = check(
        ["IPv6ElevatedRoutePriority", "IPv6NormalRoutePriority"],
        ["ipv6ElevatedRoutePriority", "ipv6NormalRoutePriority"],
        [
            &mut config.elevated_metric_v6,
            &mut config.workload_metric_v6,
        ],
        [default.elevated_metric_v6, default.workload_metric_v6],
    );
    v4.into_iter().chain(v6).collect()
}

/// Each pair is the elevated one and the normal one.
fn check(
    names: [&'static str; 2],
    [field, normal_field]: [&'static str; 2],
    [elevated, normal]: [&mut u32; 2],
    [default_elevated, default_normal]: [u32; 2],
) -> Option<Refused> {
    if *elevated < *normal {
        return None;
    }
    let given = [*elevated, *normal];
    *elevated = default_elevated;
    // Nothing else is known that would win over such a normal one.
    if *elevated >= *normal {
        *normal = default_normal;
    }
    let rule = Rule::NotElevated {
        given,
        normal: normal_field,
        used: [*elevated, *normal],
    };
    let field = field.to_owned();
    Some((names, Flaw { field, rule }))
}
