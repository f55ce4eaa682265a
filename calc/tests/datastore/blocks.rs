//! The rules for blocks.

use calc::event::Event;
use ipnet::IpNet;

use super::{all_are_absent, all_are_present, document, objects, read};

#[test]
fn an_allocation_out_of_bounds_costs_itself_alone() {
    let attributes = "attributes: [{secondary: {node: n-1}}, {releasedAt: '2026-08-20T08:00:00Z'}, \
                      {secondary: {node: n-2}}]";
    for (allocations, expected, problem) in [
        ("[0, null, 2, 1]", vec![(0, "n-1"), (2, "n-2")], None),
        (
            "[0, 3, 0, 0]",
            vec![(0, "n-1"), (2, "n-1"), (3, "n-1")],
            Some("[1]: refers"),
        ),
        ("[-1, 2]", vec![(1, "n-2")], Some("[0]: refers")),
        (
            "[0, 0, 0, 0, 2]",
            vec![(0, "n-1"), (1, "n-1"), (2, "n-1"), (3, "n-1")],
            Some("[4]: is an address beyond"),
        ),
        ("[0, null, null, null, null]", vec![(0, "n-1")], None),
    ] {
        let spec = format!("cidr: 10.0.0.6/30, allocations: {allocations}, {attributes}");
        let update = read(&document("IPAMBlock", "b", &spec));
        let [Event::Block(cidr, Some(block))] = objects(&update)[..] else {
            panic!("{update:?}");
        };
        assert_eq!(*cidr, "10.0.0.4/30".parse::<IpNet>().unwrap());
        let found: Vec<(u32, &str)> = block
            .allocations
            .iter()
            .map(|(ordinal, node)| (*ordinal, node.as_str()))
            .collect();
        assert_eq!(found, expected, "{allocations}");
        assert_eq!(
            update.problems.len(),
            usize::from(problem.is_some()),
            "{:?}",
            update.problems
        );
        assert!(
            problem.is_none_or(|part| update.problems[0].contains(part)),
            "{:?}",
            update.problems
        );
    }
}

#[test]
fn a_block_belongs_to_a_host_or_a_virtual_owner() {
    for (affinity, owner, problems) in [
        ("host:node-1", Some("node-1"), 0),
        ("virtual:load-balancer", Some("load-balancer"), 0),
        ("null", None, 0),
        ("''", None, 0),
        ("node-1", None, 1),
        ("'host:'", None, 1),
        ("'host:a b'", None, 1),
    ] {
        let spec = format!("cidr: 'fd00::8/125', affinity: {affinity}");
        let update = read(&document("IPAMBlock", "b", &spec));
        let [Event::Block(_, Some(block))] = objects(&update)[..] else {
            panic!("{update:?}");
        };
        assert_eq!(block.owner.as_deref(), owner, "{affinity}");
        assert_eq!(update.problems.len(), problems, "{affinity}");
    }
}

#[test]
fn a_block_that_is_being_deleted_is_absent() {
    for deleted in ["true", "'true'"] {
        let spec = format!("cidr: 10.0.0.0/30, affinity: host:a, deleted: {deleted}");
        let update = read(&document("IPAMBlock", "b", &spec));
        assert_eq!(objects(&update), Vec::<&Event>::new());
        assert_eq!(update.problems, Vec::<String>::new());
    }
    all_are_present("IPAMBlock", "b", &["cidr: 10.0.0.0/30, deleted: 'false'"]);
    all_are_absent(
        "IPAMBlock",
        "b",
        &[
            ("", "spec.cidr", "missing"),
            ("cidr: x", "spec.cidr", "prefix"),
        ],
    );
}
