//! `status`: what the processes say of themselves, and which of them do not.

use std::iter;

use serde_json::{Map, Value, json};
use zbus::{OwnedVariant, Variant};

use crate::{
    client::{Face, Properties, Unreachable},
    table,
};

/// Each process with what came of asking it.
type Answers = [(Face, Result<Properties, Unreachable>)];

/// Returns whether all answered, the kernel holds what it should, and that counts there.
pub(crate) fn good(answers: &Answers) -> bool {
    answers.iter().all(|(face, answer)| match (face, answer) {
        (_, Err(_)) => false,
        (Face::Calc, Ok(properties)) => {
            let is = |name, good: Value| properties.get(name).map(|value| cell(value) == good);
            // A calc of a former release does not tell of others' routes.
            is("InSync", true.into()) == Some(true) && is("Foreign", 0.into()) != Some(false)
        }
        (Face::Supervisor | Face::PrivHelper, Ok(_)) => true,
    })
}

/// Renders for a reader.
pub(crate) fn text(answers: &Answers) -> String {
    let process = |(face, answer): &(Face, Result<Properties, Unreachable>)| {
        let name = face.name();
        match answer {
            Err(error) => format!("{name}: not reachable: {error}\n"),
            Ok(properties) => {
                let rows: Vec<_> = properties.iter().flat_map(rows).collect();
                format!("{name}:\n{}", table::align(&rows))
            }
        }
    };
    answers.iter().map(process).collect()
}

/// Returns the lines of a property: one each, where it is several sentences.
fn rows((name, value): (&String, &OwnedVariant)) -> Vec<Vec<String>> {
    let lines = if let Variant::Array(values) = &**value
        && !values.is_empty()
    {
        values
            .iter()
            .map(|value| table::text(&cell(value)))
            .collect()
    } else {
        vec![shown(name, value)]
    };
    let names = iter::once(format!("  {name}")).chain(iter::repeat(String::new()));
    let row = |(name, line)| vec![name, line];
    names.zip(lines).map(row).collect()
}

/// Renders for a program.
pub(crate) fn json(answers: &Answers) -> Value {
    let process = |answer: &Result<Properties, Unreachable>| match answer {
        Err(error) => json!({ "reachable": false, "error": error.to_string() }),
        Ok(properties) => {
            let properties: Map<_, _> = properties
                .iter()
                .map(|(name, value)| (name.clone(), cell(value)))
                .collect();
            json!({ "reachable": true, "properties": properties })
        }
    };
    let processes: Map<_, _> = answers
        .iter()
        .map(|(face, answer)| (face.name().to_owned(), process(answer)))
        .collect();
    processes.into()
}

/// Returns a property as a reader likes it.
fn shown(name: &str, value: &Variant<'_>) -> String {
    match (name, value) {
        ("ReadingAge" | "DatastoreAge", Variant::U64(u64::MAX)) => "not read yet".to_owned(),
        ("CalcRestartIn" | "HelperRestartIn", Variant::U64(u64::MAX)) => "-".to_owned(),
        (
            "ReadingAge" | "DatastoreAge" | "CalcStateAge" | "HelperStateAge" | "CalcRestartIn"
            | "HelperRestartIn",
            Variant::U64(ms),
        ) => format!("{}.{:03} s", ms / 1000, ms % 1000),
        (_, _) => table::text(&cell(value)),
    }
}

/// Returns a property as a cell.
fn cell(value: &Variant<'_>) -> Value {
    match value {
        Variant::Bool(value) => (*value).into(),
        Variant::U8(value) => (*value).into(),
        Variant::I16(value) => (*value).into(),
        Variant::U16(value) => (*value).into(),
        Variant::I32(value) => (*value).into(),
        Variant::U32(value) => (*value).into(),
        Variant::I64(value) => (*value).into(),
        Variant::U64(value) => (*value).into(),
        Variant::F64(value) => (*value).into(),
        Variant::Str(value) => value.as_str().into(),
        Variant::Variant(value) => cell(value),
        Variant::Array(values) => values.iter().map(cell).collect(),
        Variant::Dict(entries) => {
            let entries = entries
                .iter()
                .map(|(key, value)| (table::text(&cell(key)), cell(value)));
            Value::Object(entries.collect())
        }
        Variant::Signature(_) | Variant::ObjectPath(_) | Variant::Structure(_) | Variant::Fd(_) => {
            value.to_string().into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(list: Vec<(&str, Variant<'_>)>) -> Properties {
        let owned = |(name, value): (&str, Variant<'_>)| {
            let value = OwnedVariant::try_from(value).ok()?;
            Some((name.to_owned(), value))
        };
        list.into_iter().filter_map(owned).collect()
    }

    fn answers(in_sync: bool) -> [(Face, Result<Properties, Unreachable>); 3] {
        let supervisor = properties(vec![("CalcState", "up".into()), ("CalcPid", 7_u32.into())]);
        let calc = properties(vec![
            ("InSync", in_sync.into()),
            ("Incarnation", u64::MAX.into()),
            ("Problems", vec!["a", "b"].into()),
        ]);
        let silent = Unreachable::Silent("/run/cairn/privhelper.sock".into());
        [
            (Face::Supervisor, Ok(supervisor)),
            (Face::PrivHelper, Err(silent)),
            (Face::Calc, Ok(calc)),
        ]
    }

    #[test]
    fn a_reader_sees_each_process_and_why_one_is_silent() {
        assert_eq!(
            text(&answers(true)),
            "\
supervisor:
  CalcPid    7
  CalcState  up
privhelper: not reachable: no answer at /run/cairn/privhelper.sock within 5 s: it is starting or hangs
calc:
  InSync       yes
  Incarnation  18446744073709551615
  Problems     a
               b
"
        );
    }

    #[test]
    fn a_reader_sees_how_old_the_last_reading_is() {
        for (age, text) in [(61_007_u64, "61.007 s"), (u64::MAX, "not read yet")] {
            assert_eq!(shown("ReadingAge", &age.into()), text);
            assert_eq!(shown("DatastoreAge", &age.into()), text);
            assert_eq!(shown("Incarnation", &age.into()), age.to_string());
        }
        for (name, time, text) in [
            ("CalcStateAge", 3_004, "3.004 s"),
            ("HelperRestartIn", 12_000, "12.000 s"),
            ("HelperRestartIn", u64::MAX, "-"),
        ] {
            assert_eq!(shown(name, &time.into()), text);
        }
    }

    #[test]
    fn a_program_sees_one_object_for_each_process() {
        let json = json(&answers(false));
        assert_eq!(
            json["calc"],
            json!({
                "reachable": true,
                "properties": {"InSync": false, "Incarnation": u64::MAX, "Problems": ["a", "b"]},
            })
        );
        assert_eq!(json["privhelper"]["reachable"], json!(false));
        assert_eq!(json["supervisor"]["properties"]["CalcPid"], json!(7));
    }

    #[test]
    fn all_is_well_only_if_no_route_of_others_counts_in_place_of_ours() {
        let calc = |foreign: u64| {
            let said = properties(vec![("InSync", true.into()), ("Foreign", foreign.into())]);
            [(Face::Calc, Ok(said))]
        };
        assert!(good(&calc(0)));
        assert!(!good(&calc(1)));
    }

    #[test]
    fn all_is_well_only_if_all_answer_and_calc_is_in_sync() {
        let [supervisor, silent, in_sync] = answers(true);
        let [_, _, behind] = answers(false);
        let helper = || (Face::PrivHelper, Ok(Properties::new()));
        assert!(!good(&[silent]));
        assert!(!good(&[helper(), behind]));
        assert!(!good(&[helper(), (Face::Calc, Ok(Properties::new()))]));
        assert!(good(&[supervisor, helper(), in_sync]));
    }
}
