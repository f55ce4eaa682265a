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

/// Between these in README are figures of the last run.
const BEGIN: &str = "<!-- of the last `make bench` -->";
const END: &str = "<!-- until here -->";

/// Which ones, and what they are there.
const IN_README: [(&str, &str); 11] = [
    (
        "e2e.bpf_initial.250k",
        "250,000 BPF routes, from resources to the full map",
    ),
    (
        "e2e.bpf_resync_noop.250k",
        "the same read back, all of it right",
    ),
    (
        "e2e.restart_full_map.250k",
        "the same after the helper's crash",
    ),
    (
        "e2e.one_change.at_250k",
        "one change beside them, from event to map",
    ),
    (
        "e2e.one_change_during_flush",
        "one change while 1,000 addresses are flushed",
    ),
    ("kernel.initial_add.65k", "65,000 kernel routes"),
    ("kernel.noop_resync.65k", "the same read back"),
    (
        "e2e.storm",
        "1,000 endpoints come and go in 10 s: CPU of all processes",
    ),
    (
        "idle.cpu",
        "an idle minute with 10,000 routes: CPU of all processes",
    ),
    (
        "e2e.rss.calc_at_250k",
        "memory of calc with 250,000 blocks in a directory",
    ),
    ("e2e.rss.helper_at_250k", "memory of the helper"),
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

/// Returns README with the figures of most interest in place of those of the run before; unchanged if it
/// has no place for them.
#[must_use]
pub fn in_readme(readme: &str, metrics: &[Metric]) -> String {
    let Some((before, rest)) = readme.split_once(BEGIN) else {
        return readme.to_owned();
    };
    let Some((_, after)) = rest.split_once(END) else {
        return readme.to_owned();
    };
    let number =
        |value: Option<f64>, unit| value.map_or("-".into(), |value| format!("{value:.2} {unit}"));
    let mut rows = String::from(
        "| | Cairn | bare system calls | reference | asked |\n|---|---|---|---|---|\n",
    );
    for metric in metrics {
        let Some((_, what)) = IN_README.iter().find(|(name, _)| *name == metric.name) else {
            continue;
        };
        let [.., asked, verdict] = cells(metric);
        let (ours, floor) = (Some(metric.median), metric.floor);
        let [ours, floor, reference] =
            [ours, floor, metric.reference].map(|value| number(value, metric.unit));
        writeln!(
            rows,
            "| {what} | {ours} | {floor} | {reference} | {asked}: {verdict} |"
        )
        .expect("a string takes all");
    }
    format!("{before}{BEGIN}\n{rows}{END}{after}")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_readme_are_replaced_and_nothing_else() {
        let idle = |value| [Metric::once("idle.cpu", "s", value).asked(Figure::Median, 0.3)];
        let readme = format!("one\n\n{BEGIN}\n{END}\n\ntwo\n");
        let first = in_readme(&readme, &idle(0.25));
        let row = "0.25 s | - | - | median <= 0.3: met |\n<!-- until here -->\n\ntwo\n";
        assert!(
            first.starts_with("one\n\n<!-- of") && first.ends_with(row),
            "{first}"
        );
        let second = in_readme(&first, &idle(0.5));
        assert_eq!(second, in_readme(&readme, &idle(0.5)));
        assert!(
            second.contains("| 0.50 s |") && second.contains("MISSED"),
            "{second}"
        );
        assert_eq!(in_readme("no place", &idle(0.5)), "no place");
    }
}
