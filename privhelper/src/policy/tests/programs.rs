//! Packet programs and what they know: on workloads' links only.

use ipc_proto::{AttachmentKey, Endpoint, Hook};

use super::*;

fn attachment(link: Link) -> Op {
    let hook = Hook::Ingress;
    Op::Attachment(AttachmentKey { link, hook }, true)
}

fn endpoint(link: Link, change: impl FnOnce(&mut Endpoint)) -> Op {
    let mut endpoint = Endpoint {
        host_mac: Mac([0xee; 6]),
        workload_mac: Mac([2, 0, 0, 0, 0, 1]),
        sources: Vec::new(),
    };
    change(&mut endpoint);
    Op::Endpoint(link, Some(Box::new(endpoint)))
}

#[test]
fn programs_and_endpoints_are_for_workloads_links_only() {
    let policy = policy();
    for (index, (name, _)) in (1..).zip(NAMES) {
        let link = || link(index, name);
        let ops = [
            attachment(link()),
            endpoint(link(), |_| ()),
            Op::Endpoint(link(), None),
        ];
        for op in ops {
            let result = try_op(&policy, op.clone());
            if name == "cali1" {
                assert_eq!(result, Ok(()), "{op:?}");
            } else {
                assert!(
                    matches!(result, Err(OpError::Denied(_))),
                    "{op:?}: {result:?}"
                );
            }
        }
    }
    let stale = link(7, "cali1");
    for op in [attachment(stale.clone()), endpoint(stale.clone(), |_| ())] {
        assert_eq!(try_op(&policy, op), Err(OpError::StaleLink(stale.clone())));
    }
}

#[test]
fn an_endpoint_is_what_can_be_read_back() {
    let policy = policy();
    let cali = || link(3, "cali1");
    let group = endpoint(cali(), |endpoint| endpoint.workload_mac.0[0] |= 1);
    assert!(matches!(try_op(&policy, group), Err(OpError::Denied(_))));
    let sources = endpoint(cali(), |endpoint| {
        endpoint.sources.push(prefix("10.0.0.0/8"));
    });
    assert!(matches!(
        try_op(&policy, sources),
        Err(OpError::Unsupported(_))
    ));
}
