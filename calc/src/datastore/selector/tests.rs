use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{Error, Labels, MAX_DEPTH, MAX_LENGTH, Selector};

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs
        .iter()
        .map(|(label, value)| ((*label).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn every_operator_selects_what_calico_selects() {
    // On these labels:
    let web = labels(&[
        ("app", "web-1"),
        ("rack", "b"),
        ("kubevirt.io/job-UID_1", "7f1e"),
        ("in", "x"),
        ("has", "y"),
        ("all", "z"),
        ("empty", ""),
        ("quote", "it's"),
        ("expr", "a == 'b' && c"),
        ("umlaut", "grün"),
    ]);
    for (text, selected) in [
        // Nothing, all, and what belongs to no namespace.
        ("", true),
        (" \t ", true),
        ("all()", true),
        ("all( )", true),
        ("global()", true),
        ("!all()", false),
        // Equality; a label that is missing differs from every value.
        ("rack == 'b'", true),
        ("rack==\"b\"", true),
        ("rack == 'B'", false),
        ("missing == ''", false),
        ("empty == ''", true),
        ("rack != 'b'", false),
        ("rack != 'a'", true),
        ("missing != 'a'", true),
        ("missing != ''", true),
        // Sets.
        ("rack in {'a', 'b'}", true),
        ("rack in{'a','b',}", true),
        ("rack in {'a'}", false),
        ("rack in {}", false),
        ("missing in {'a'}", false),
        ("missing in {''}", false),
        ("rack not in {'a'}", true),
        ("rack not in {\"a\", 'b'}", false),
        ("rack notin {'b'}", false),
        ("rack not\tin {}", true),
        ("missing not in {'a'}", true),
        // Parts of a value.
        ("app contains 'eb-'", true),
        ("app contains ''", true),
        ("app contains 'x'", false),
        ("missing contains ''", false),
        ("app starts with 'web'", true),
        ("app startswith'web'", true),
        ("app starts with 'eb'", false),
        ("missing starts with ''", false),
        ("app ends with '-1'", true),
        ("app ends   with 'web'", false),
        ("missing ends with ''", false),
        // Presence.
        ("has(rack)", true),
        ("has( rack )", true),
        ("has(empty)", true),
        ("has(missing)", false),
        ("!has(missing)", true),
        ("! ! has(rack)", true),
        ("!!!has(rack)", false),
        // Negation is about one condition.
        ("!rack == 'a'", true),
        ("!rack == 'a' && has(missing)", false),
        ("!(rack == 'a' && has(missing))", true),
        ("!(rack == 'b') || has(app)", true),
        // && before ||.
        ("has(app) || has(rack) && has(missing)", true),
        ("(has(app) || has(rack)) && has(missing)", false),
        ("has(missing) && has(app) || has(rack)", true),
        ("has(missing) && (has(app) || has(rack))", false),
        ("has(a) || has(b) || has(rack)", true),
        ("has(app)&&has(rack)&&has(in)", true),
        ("((((has(app)))))", true),
        // Labels with all sorts of letters, and such as are words of the language.
        ("kubevirt.io/job-UID_1 == '7f1e'", true),
        ("in in {'x'}", true),
        ("has == 'y'", true),
        ("all == 'z'", true),
        ("has(in)", true),
        // Nothing within quotes means anything.
        ("quote == \"it's\"", true),
        ("quote contains '\"'", false),
        ("expr == \"a == 'b' && c\"", true),
        ("umlaut ends with 'ün'", true),
    ] {
        let selector = Selector::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(selector.matches(&web), selected, "{text}");
    }
}

#[test]
fn what_is_no_selector_is_refused_at_its_place() {
    for (text, at, wanted) in [
        ("rack", 5, "one of =="),
        ("rack = 'b'", 6, "one of =="),
        ("rack == b", 9, "a value in quotes"),
        ("rack == 'b", 9, "the quote that ends"),
        ("rack == 'b\"", 9, "the quote that ends"),
        ("rack == 'it's'", 13, "&&, ||"),
        ("rack === 'b'", 8, "a value in quotes"),
        ("rack in 'b'", 9, "{"),
        ("rack in {'a' 'b'}", 14, "}"),
        ("rack in {,}", 10, "a value in quotes"),
        ("rack in {'a'", 13, "}"),
        ("rack in {'a',", 14, "a value in quotes"),
        ("rack not {'a'}", 6, "one of =="),
        ("rack starts 'a'", 6, "one of =="),
        ("rack ! == 'a'", 6, "one of =="),
        ("rack == 'a' &&", 15, "a condition"),
        ("rack == 'a' & has(b)", 13, "&&, ||"),
        ("|| has(b)", 1, "a condition"),
        ("has(b) has(c)", 8, "&&, ||"),
        ("has()", 5, "the name of a label"),
        ("has(a b)", 7, ")"),
        ("has (a)", 5, "one of =="),
        ("all(a)", 5, ")"),
        ("(has(a)", 8, ")"),
        ("has(a))", 7, "&&, ||"),
        ("()", 2, "a condition"),
        ("!", 2, "a condition"),
        ("has(a) &&\nhas(b)", 10, "a condition"),
        ("größe == 'a'", 3, "one of =="),
        ("ü == 'ü' x", 1, "a condition"),
        ("a == 'ü' x", 10, "&&, ||"),
    ] {
        let Err(Error::Wanted {
            at: place,
            wanted: what,
        }) = Selector::parse(text)
        else {
            panic!("{text} is taken or refused for another reason");
        };
        assert_eq!(place, at, "{text}");
        assert!(what.starts_with(wanted), "{text}: {what}");
    }
}

#[test]
fn length_and_depth_have_bounds() {
    let nested = |depth| format!("{}all(){}", "(".repeat(depth), ")".repeat(depth));
    assert_eq!(Selector::parse(&nested(MAX_DEPTH)), Ok(Selector::All));
    assert_eq!(Selector::parse(&nested(MAX_DEPTH + 1)), Err(Error::TooDeep));
    assert_eq!(
        Selector::parse(&"(".repeat(MAX_LENGTH)),
        Err(Error::TooDeep)
    );
    // Depth is nesting: parentheses side by side and negations are none.
    let wide = vec!["(all())"; MAX_DEPTH * 2].join(" && ");
    assert!(Selector::parse(&wide).is_ok());
    let negated = format!("{}all()", "!".repeat(MAX_LENGTH - 5));
    assert!(Selector::parse(&negated).is_ok());
    assert_eq!(Selector::parse(&format!("!{negated}")), Err(Error::TooLong));
}

/// A selector as its text, and whether it selects, by another evaluation than the one under test.
fn written() -> impl Strategy<Value = (String, bool)> {
    // The labels are a = '1', b = '2', and no c.
    let value = |label: &str| match label {
        "a" => Some("1"),
        "b" => Some("2"),
        _ => None,
    };
    let leaf = (
        prop::sample::select(vec!["a", "b", "c"]),
        prop::sample::select(vec!["==", "!=", "in", "not in", "has", "contains"]),
        prop::sample::select(vec!["1", "2"]),
    )
        .prop_map(move |(label, operator, given)| match operator {
            "==" => (format!("{label} == '{given}'"), value(label) == Some(given)),
            "!=" => (format!("{label}!=\"{given}\""), value(label) != Some(given)),
            "in" => (
                format!("{label} in {{'x', '{given}'}}"),
                value(label) == Some(given),
            ),
            "not in" => (
                format!("{label} not in {{'{given}'}}"),
                value(label) != Some(given),
            ),
            "has" => (format!("has({label})"), value(label).is_some()),
            _ => (
                format!("{label} contains '{given}'"),
                value(label) == Some(given),
            ),
        });
    leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            inner
                .clone()
                .prop_map(|(text, holds)| (format!("!({text})"), !holds)),
            (inner.clone(), inner.clone())
                .prop_map(|((a, x), (b, y))| (format!("({a}) && ({b})"), x && y)),
            (inner.clone(), inner).prop_map(|((a, x), (b, y))| (format!("({a}) || ({b})"), x || y)),
        ]
    })
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in ".*") {
        if let Ok(selector) = Selector::parse(&text) {
            selector.matches(&Labels::new());
        }
    }

    #[test]
    fn no_row_of_words_makes_it_panic(words in prop::collection::vec(
        prop::sample::select(vec![
            "(", ")", "!", "!=", "==", "&&", "||", "{", "}", ",", "'", "\"", "a", "'b'", "in",
            "not", "starts", "ends", "with", "contains", "has(", "all(", "global(", " ", "\t",
            "\n", "ü", "=", "&", "|",
        ]),
        0..24,
    )) {
        if let Ok(selector) = Selector::parse(&words.concat()) {
            selector.matches(&labels(&[("a", "b")]));
        }
    }

    #[test]
    fn what_is_put_together_holds_as_its_parts_do((text, holds) in written()) {
        let selector = Selector::parse(&text).unwrap();
        prop_assert_eq!(selector.matches(&labels(&[("a", "1"), ("b", "2")])), holds, "{}", text);
    }

    #[test]
    fn any_value_without_its_quote_is_itself(value in "[^']*") {
        let selector = Selector::parse(&format!("a == '{value}'")).unwrap();
        let same = Selector::Label("a".to_owned(), super::Test::OneOf(BTreeSet::from([value])));
        prop_assert_eq!(selector, same);
    }
}
