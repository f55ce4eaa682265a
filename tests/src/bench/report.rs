//! The figures as they are read: as a table, as JSON and as a page of the documentation.

use std::{fmt::Write, fs, io, path::Path};

use serde::Serialize;

use super::{Figure, Metric};

const COLUMNS: [&str; 11] = [
    "metric",
    "median",
    "min",
    "p99",
    "n",
    "floor",
    "x floor",
    "reference",
    "x ref",
    "asked",
    "",
];

/// A metric with what follows from it.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    metric: &'a Metric,
    x_floor: Option<f64>,
    x_reference: Option<f64>,
    met: Option<bool>,
}

fn cells(metric: &Metric) -> [String; COLUMNS.len()] {
    let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.3}"));
    let ratio = |figure| {
        let value = metric.figure(figure);
        value.map_or("-".into(), |value| format!("{value:.2}"))
    };
    let asked: Vec<String> = metric
        .asked
        .iter()
        .map(|asked| format!("{} <= {}", asked.figure, asked.most))
        .collect();
    [
        format!("{} ({})", metric.name, metric.unit),
        number(Some(metric.median)),
        number(Some(metric.min)),
        number(metric.p99),
        metric.n.to_string(),
        number(metric.floor),
        ratio(Figure::XFloor),
        number(metric.reference),
        ratio(Figure::XReference),
        asked.join(", "),
        metric.met().map_or("", verdict).to_owned(),
    ]
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

/// Returns the figures as a table.
#[must_use]
pub fn table(metrics: &[Metric]) -> String {
    let heads = COLUMNS.map(str::to_owned);
    let rows: Vec<_> = [heads]
        .into_iter()
        .chain(metrics.iter().map(cells))
        .collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(String::len).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    let mut table = String::new();
    for row in &rows {
        let mut line = String::new();
        for ((nth, cell), width) in row.iter().enumerate().zip(&widths) {
            // Numbers to the right, words to the left.
            if (1..=8).contains(&nth) {
                write!(line, "{cell:>width$}  ").expect("a string takes all");
            } else {
                write!(line, "{cell:<width$}  ").expect("a string takes all");
            }
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

/// Returns the figures as a page, with the machine that they were taken on.
#[must_use]
pub fn markdown(metrics: &[Metric]) -> String {
    let machine = machine();
    let mut page = format!(
        "# The last run of `make bench`\n\n\
         {machine}\n\n\
         *floor*: the bare system calls for the same keys, in the same run. *reference*: what the reference implementation takes, \
         on a machine of this class. *asked*: what the project asks of itself. `make bench` writes this page.\n\n"
    );
    let mut line = |cells: &[String]| {
        writeln!(page, "| {} |", cells.join(" | ")).expect("a string takes all");
    };
    line(&COLUMNS.map(str::to_owned));
    line(&COLUMNS.map(|_| "---".to_owned()));
    for metric in metrics {
        line(&cells(metric));
    }
    page
}

fn machine() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let (kernel, processors) = (read("/proc/sys/kernel/osrelease"), read("/proc/cpuinfo"));
    let mut models = processors.lines().filter_map(|line| {
        let (key, model) = line.split_once(':')?;
        (key.trim() == "model name").then(|| model.trim())
    });
    let count = models.clone().count();
    let model = models.next_back().unwrap_or("unknown");
    format!("Linux {}, {count} processors: {model}.", kernel.trim())
}

/// Writes the figures as a JSON list.
///
/// # Errors
///
/// If the file cannot be written.
pub fn write(path: &Path, metrics: &[Metric]) -> io::Result<()> {
    let row = |metric| Row {
        metric,
        x_floor: metric.figure(Figure::XFloor),
        x_reference: metric.figure(Figure::XReference),
        met: metric.met(),
    };
    let rows: Vec<Row<'_>> = metrics.iter().map(row).collect();
    fs::write(path, serde_json::to_string_pretty(&rows)? + "\n")
}
