//! Cells and columns: one value serves the table that is read and the JSON that is parsed.

use serde_json::Value;

/// Returns a cell as text.
pub(crate) fn text(cell: &Value) -> String {
    match cell {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        // What comes from elsewhere must not move the cursor.
        Value::String(text) => text.chars().filter(|c| !c.is_control()).collect(),
        Value::Array(cells) if cells.is_empty() => "-".to_owned(),
        Value::Array(cells) => cells.iter().map(text).collect::<Vec<_>>().join(","),
        Value::Object(entries) => {
            let entry = |(name, cell)| format!("{name}={}", text(cell));
            entries.iter().map(entry).collect::<Vec<_>>().join(",")
        }
    }
}

/// Lays rows out in columns, two spaces apart, without blanks at the ends of lines.
pub(crate) fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        // A width of `format!` ends at 65,535.
        let padded = |(cell, width): (&String, &usize)| {
            let blanks = width.saturating_sub(cell.chars().count());
            format!("{cell}{}", " ".repeat(blanks))
        };
        let cells: Vec<_> = cells.map(padded).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cell_is_one_line_of_text() {
        for (cell, wanted) in [
            (json!(null), "-"),
            (json!(true), "yes"),
            (json!(7), "7"),
            (json!(""), "-"),
            (json!([]), "-"),
            (json!(["a", 1]), "a,1"),
            (json!("a\n\u{1b}[2Jb"), "a[2Jb"),
        ] {
            assert_eq!(text(&cell), wanted);
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["A", "BB", "C"], ["aaa", "-", "\u{e9}"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(align(&rows), "A    BB  C\naaa  -   \u{e9}\n");
    }

    #[test]
    fn no_cell_is_too_wide() {
        let rows = [["A", &"b".repeat(70_000)], ["C", "-"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(align(&rows).lines().count(), 2);
    }
}
