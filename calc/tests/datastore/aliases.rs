//! Documents that are short and mean much: anchors and aliases.

use std::{
    fmt::Write,
    time::{Duration, Instant},
};

use super::*;

const HEAD: &str = "---\napiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: bomb}\n";

/// Ten times ten times .. as much at each level.
fn laughs(levels: usize) -> String {
    let list = |item: &str| [item; 10].join(", ");
    let mut text = format!("{HEAD}l0: &l0 [{}]\n", list("lol"));
    for level in 1..levels {
        let items = list(&format!("*l{}", level - 1));
        writeln!(text, "l{level}: &l{level} [{items}]").unwrap_or_default();
    }
    text
}

/// One long text a thousand times.
fn long_text() -> String {
    let (text, aliases) = ("y".repeat(100_000), vec!["*t"; 1000].join(", "));
    format!("{HEAD}t: &t {text}\nu: [{aliases}]\n")
}

/// Each list is kept once for each anchor that it is in.
fn anchors_in_anchors() -> String {
    let mut anchors = String::new();
    for level in 0..50 {
        write!(anchors, "&l{level} [").unwrap_or_default();
    }
    let (items, ends) = (vec!["1"; 20_000].join(","), "]".repeat(50));
    format!("{HEAD}l: {anchors}{items}{ends}\n")
}

#[test]
#[expect(clippy::disallowed_methods, reason = "what it costs is the point")]
fn a_document_that_repeats_itself_without_end_costs_its_size_and_nothing_else() {
    for bomb in [laughs(5), laughs(40), long_text(), anchors_in_anchors()] {
        let mut store = Store::new("node-1");
        store.set("good.yaml", pool("good", "10.1.0.0/20").as_bytes());
        let both = [pool("beside", "10.2.0.0/20"), bomb].concat();
        let start = Instant::now();
        store.set("bad.yaml", both.as_bytes());
        let took = start.elapsed();
        // All that it would grow to takes for ever.
        assert!(took < Duration::from_mins(1), "{took:?}");
        let update = store.update().unwrap_or_default();
        assert_eq!(objects(&update).len(), 2);
        let [problem] = update.problems.as_slice() else {
            panic!("{:?}", update.problems);
        };
        assert!(problem.starts_with("bad.yaml:"), "{problem}");
        assert!(
            problem.contains("its aliases repeat more than"),
            "{problem}"
        );
    }
}

#[test]
fn what_aliases_stand_for_is_read_as_if_it_was_written() {
    let text = "---\napiVersion: projectcalico.org/v3\nkind: IPPool\n\
                metadata: &m {name: &n one}\nspec: &s {cidr: 10.1.0.0/20}\n\
                status: [*n, *m, *s]\n\"a\\L\\L\\L\\L\\L\\L\\L\\L\": b\n";
    let update = read(text);
    assert_eq!(update.problems, Vec::<String>::new());
    assert_eq!(objects(&update).len(), 1);
}
