//! What happens to the rest, and to what was, when something cannot be read.

use calc::{
    datastore::{Store, Update},
    event::Event,
};

use super::{document, objects, pool, read};

/// What changed of the pools: `+` or `-` and the prefix.
fn pools(update: Option<&Update>) -> Vec<String> {
    update
        .iter()
        .flat_map(|update| &update.events)
        .filter_map(|event| {
            let Event::Pool(cidr, pool) = event else {
                return None;
            };
            Some(format!("{}{cidr}", if pool.is_some() { '+' } else { '-' }))
        })
        .collect()
}

const BROKEN: &str = "---\nkind: [\n";

#[test]
fn a_broken_document_costs_only_itself() {
    let (a, b) = (pool("a", "10.1.0.0/20"), pool("b", "10.2.0.0/20"));
    let list = "---\napiVersion: v1\nkind: List\nitems:\n- apiVersion: projectcalico.org/v3\n  \
                kind: IPPool\n  metadata: {name: a}\n  spec: {cidr: 10.1.0.0/20}\n\
                - apiVersion: projectcalico.org/v3\n  kind: IPPool\n  metadata: {name: c}\n  \
                spec: {cidr: [x]}\n- apiVersion: projectcalico.org/v3\n  kind: IPPool\n  \
                metadata: {name: b}\n  spec: {cidr: 10.2.0.0/20}\n";
    for (text, problem) in [
        (format!("{a}{BROKEN}{b}"), "a.yaml:7: unclosed bracket"),
        (format!("{a}...\n---\ntext\n{b}"), "a.yaml:8: invalid type"),
        (
            format!("{a}---\nkind: IPPool\nspec: {{}}\n{b}"),
            "a.yaml:7: apiVersion: is missing",
        ),
        (
            format!("{a}---\nkind: IPPool\napiVersion: projectcalico.org/v3\nspec: {{}}\n{b}"),
            "a.yaml:7: metadata.name: is missing",
        ),
        (
            format!("{a}---\na: fd00::\n{b}"),
            "a.yaml:7: mapping values",
        ),
        (
            list.to_owned(),
            "a.yaml:12: IPPool c: spec.cidr: invalid type: sequence, expected a string",
        ),
    ] {
        let update = read(&text);
        assert_eq!(
            pools(Some(&update)),
            ["+10.1.0.0/20", "+10.2.0.0/20"],
            "{text}"
        );
        assert!(!update.complete, "{text}");
        assert_eq!(update.problems.len(), 1, "{text}: {:?}", update.problems);
        assert!(
            update.problems[0].starts_with(problem),
            "{:?}",
            update.problems
        );
        assert!(
            update.problems[0].ends_with("nothing is removed from the kernel until it can be read")
        );
    }
    let mut bytes = format!("{a}---\nx: ").into_bytes();
    bytes.extend(b"\xff\n");
    bytes.extend(b.bytes());
    let mut store = Store::new("node-1");
    store.set("a.yaml", &bytes);
    let update = store.update().unwrap();
    assert_eq!(pools(Some(&update)), ["+10.1.0.0/20", "+10.2.0.0/20"]);
    assert!(
        update.problems[0].starts_with("a.yaml:7: is not UTF-8"),
        "{:?}",
        update.problems
    );
}

#[test]
fn a_document_that_breaks_keeps_its_former_value() {
    let (a, b) = (pool("a", "10.1.0.0/20"), pool("b", "10.2.0.0/20"));
    for broken in [
        BROKEN.to_owned(),
        document("IPPool", "b", "cidr: [10.9.0.0/20]"),
        document("IPPool", "b", "cidr: 10.2.0.0/20, natOutgoing: maybe"),
        "---\nfd00::\n".to_owned(),
    ] {
        let mut store = Store::new("node-1");
        store.set("a.yaml", format!("{a}{b}").as_bytes());
        assert!(store.update().unwrap().complete);

        store.set("a.yaml", format!("{a}{broken}").as_bytes());
        let update = store.update().unwrap();
        assert_eq!(update.events, [], "{broken}");
        assert!(update.complete, "{broken}");
        assert!(
            update.problems[0].ends_with("stays in force"),
            "{:?}",
            update.problems
        );
        assert_eq!(store.update(), None);

        // It also stays over a change of another one, and a further attempt.
        store.set(
            "a.yaml",
            format!("{}{broken}# again\n", pool("a", "10.3.0.0/20")).as_bytes(),
        );
        let update = store.update().unwrap();
        assert_eq!(pools(Some(&update)), ["-10.1.0.0/20", "+10.3.0.0/20"]);

        store.set("a.yaml", a.as_bytes());
        let update = store.update().unwrap();
        assert_eq!(
            pools(Some(&update)),
            ["-10.2.0.0/20", "-10.3.0.0/20", "+10.1.0.0/20"]
        );
        assert_eq!(update.problems, Vec::<String>::new());
    }
}

#[test]
fn a_document_never_known_holds_back_the_sweep_until_it_parses() {
    let a = pool("a", "10.1.0.0/20");
    let mut store = Store::new("node-1");
    store.set("a.yaml", format!("{a}{BROKEN}").as_bytes());
    assert!(!store.update().unwrap().complete);

    // What is kept for its sake does not tell what it was.
    store.set("a.yaml", BROKEN.as_bytes());
    let update = store.update();
    assert_eq!(pools(update.as_ref()), Vec::<String>::new());
    assert!(update.is_none_or(|update| !update.complete));

    store.set("a.yaml", pool("b", "10.2.0.0/20").as_bytes());
    let update = store.update().unwrap();
    assert_eq!(pools(Some(&update)), ["-10.1.0.0/20", "+10.2.0.0/20"]);
    assert!(update.complete);

    // One that comes later and cannot be read was never known either.
    store.set("b.yaml", BROKEN.as_bytes());
    let update = store.update().unwrap();
    assert_eq!(
        (update.events.as_slice(), update.complete),
        (&[][..], false)
    );
    store.remove("b.yaml");
    assert!(store.update().unwrap().complete);
}

#[test]
fn a_file_that_cannot_be_read_keeps_what_it_held_and_one_that_is_gone_does_not() {
    let mut store = Store::new("node-1");
    store.set("a.yaml", pool("a", "10.1.0.0/20").as_bytes());
    store.update();
    store.set_unreadable("a.yaml", "cannot be read: no");
    let update = store.update().unwrap();
    assert_eq!((update.events.as_slice(), update.complete), (&[][..], true));
    assert_eq!(
        update.problems,
        ["a.yaml: cannot be read: no; what its file held before stays in force"]
    );
    store.set_unreadable("b.yaml", "cannot be read: no");
    assert!(!store.update().unwrap().complete);
    store.remove("b.yaml");
    store.set("a.yaml", pool("a", "10.1.0.0/20").as_bytes());
    assert!(store.update().unwrap().complete);
    store.remove("a.yaml");
    assert_eq!(pools(store.update().as_ref()), ["-10.1.0.0/20"]);
}

#[test]
fn an_object_that_moves_between_files_is_not_touched() {
    let a = pool("a", "10.1.0.0/20");
    let mut store = Store::new("node-1");
    store.set("a.yaml", a.as_bytes());
    store.update();
    store.remove("a.yaml");
    store.set("b.yaml", a.as_bytes());
    assert_eq!(store.update(), None);
    // Not even if it breaks on the way.
    store.remove("b.yaml");
    store.set("c.yaml", document("IPPool", "a", "cidr: []").as_bytes());
    let update = store.update().unwrap();
    assert_eq!((update.events.as_slice(), update.complete), (&[][..], true));
}

#[test]
fn of_two_definitions_the_first_file_holds() {
    let mut store = Store::new("node-1");
    store.set("b.yaml", pool("p", "10.2.0.0/20").as_bytes());
    store.update();
    store.set("a.yaml", pool("p", "10.1.0.0/20").as_bytes());
    let update = store.update().unwrap();
    assert_eq!(pools(Some(&update)), ["-10.2.0.0/20", "+10.1.0.0/20"]);
    assert_eq!(
        update.problems,
        ["b.yaml:2: IPPool p: is already defined in a.yaml:2, which holds; remove one"]
    );
    store.remove("a.yaml");
    let update = store.update().unwrap();
    assert_eq!(pools(Some(&update)), ["-10.1.0.0/20", "+10.2.0.0/20"]);
    assert_eq!(update.problems, Vec::<String>::new());

    let twice = pool("p", "10.2.0.0/20") + &pool("p", "10.3.0.0/20");
    let update = read(&twice);
    assert_eq!(pools(Some(&update)), ["+10.2.0.0/20"]);
    assert_eq!(
        update.problems,
        ["a.yaml:7: IPPool p: is already defined in line 2, which holds; remove one"]
    );
}

#[test]
fn of_pools_with_one_prefix_the_smallest_name_holds() {
    let nat = |name: &str, nat: bool| {
        document(
            "IPPool",
            name,
            &format!("cidr: 10.1.0.0/20, natOutgoing: {nat}"),
        )
    };
    let mut store = Store::new("node-1");
    store.set("a.yaml", (nat("z", true) + &nat("b", false)).as_bytes());
    let update = store.update().unwrap();
    let [Event::Pool(_, Some(pool))] = objects(&update)[..] else {
        panic!("{update:?}");
    };
    assert!(!pool.nat_outgoing);
    assert!(
        update.problems[0].starts_with("a.yaml:2: IPPool z"),
        "{:?}",
        update.problems
    );
    store.set("a.yaml", nat("z", true).as_bytes());
    let update = store.update().unwrap();
    assert!(
        matches!(objects(&update)[..], [Event::Pool(_, Some(pool))] if pool.nat_outgoing),
        "{update:?}"
    );
}

#[test]
fn all_forms_of_a_document_are_read() {
    let json = r#"{"apiVersion":"projectcalico.org/v3","kind":"IPPool","metadata":{"name":"a"},
        "spec":{"cidr":"10.1.0.0/20"}}"#;
    for text in [
        pool("a", "10.1.0.0/20"),
        pool("a", "10.1.0.0/20").replace('\n', "\r\n"),
        format!("# first\n\n{}...\n", pool("a", "10.1.0.0/20")),
        format!("%YAML 1.2\n{}---\n# none\n---\n", pool("a", "10.1.0.0/20")),
        format!("\u{feff}{}", pool("a", "10.1.0.0/20")),
        pool("a", "10.1.0.0/20").replace("projectcalico.org/v3", "crd.projectcalico.org/v1"),
        json.to_owned(),
        json.replace("        ", "\t"),
        format!(r#"{{"apiVersion":"v1","kind":"List","items":[{json}]}}"#),
        format!(r#"{{"apiVersion":"projectcalico.org/v3","kind":"IPPoolList","items":[{json}]}}"#),
        // As an API server lists them.
        r#"{"apiVersion":"crd.projectcalico.org/v1","kind":"IPPoolList","items":[
            {"metadata":{"name":"a"},"spec":{"cidr":"10.1.0.0/20"}}]}"#
            .to_owned(),
        "x: &spec {cidr: 10.1.0.0/20}\nkind: IPPool\napiVersion: projectcalico.org/v3\n\
         metadata: {name: 012}\nspec: {<<: *spec, natOutgoing: on}\n"
            .to_owned(),
    ] {
        let update = read(&text);
        assert_eq!(
            pools(Some(&update)),
            ["+10.1.0.0/20"],
            "{text}: {:?}",
            update.problems
        );
        assert_eq!(update.problems, Vec::<String>::new(), "{text}");
        assert!(update.complete);
    }
}

#[test]
fn what_is_not_ours_is_ignored() {
    for (text, problems) in [
        ("", 0),
        ("# nothing\n---\n---\n", 0),
        (
            "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {}\n",
            0,
        ),
        ("apiVersion: v1\nkind: List\nitems: []\n", 0),
        ("apiVersion: v1\nkind: Node\nmetadata: {name: n}\n", 1),
        ("apiVersion: apps/v1\nkind: Deployment\n", 1),
        ("apiVersion: projectcalico.org/v3\nkind: Ippool\n", 1),
    ] {
        let update = read(text);
        assert_eq!(objects(&update), Vec::<&Event>::new());
        assert!(update.complete, "{text}");
        assert_eq!(
            update.problems.len(),
            problems,
            "{text} {:?}",
            update.problems
        );
    }
}

#[test]
fn a_list_that_is_cut_short_is_broken() {
    let update = read("apiVersion: projectcalico.org/v3\nkind: IPPoolList\nitems:\n");
    assert!(!update.complete);
    assert!(
        update.problems[0].contains("items: is not a list"),
        "{:?}",
        update.problems
    );
}
