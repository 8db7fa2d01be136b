//! What was measured beside calls and time means the same to those who read it elsewhere.

use super::*;
use thalweg_analysis::{FunctionTotals, by_metric};
use thalweg_model::{Metric, Profile, Unit};

/// Every metric in every context, no two figures alike.
fn measured() -> Profile {
    let mut profile = profile();
    profile.meta.metrics = Metric::ALL.to_vec();
    let mut value = 1_000;
    for thread in profile.processes.iter_mut().flat_map(|p| &mut p.threads) {
        for node in 0..thread.nodes.len() as u32 {
            for metric in Metric::ALL {
                value += 37;
                thread.metrics.set(node, metric, value);
            }
        }
    }
    profile
}

/// What `report --json` has of each function.
fn rows(profile: &Profile) -> BTreeMap<String, FunctionTotals> {
    let name = |row: &FunctionTotals| profile.functions[row.function].name.clone();
    let rows = flat(profile).into_iter();
    rows.filter(|row| row.calls > 0)
        .map(|row| (name(&row), row))
        .collect()
}

fn column(metric: Metric) -> String {
    metric.name().replace(['.', '-'], "_")
}

#[test]
fn go_tool_pprof_has_a_sample_type_for_each_metric() {
    let profile = measured();
    let directory = directory();
    let file = written(&directory, "p.pb.gz", |out| {
        pprof::write(&profile, out).unwrap();
    });
    for metric in Metric::ALL {
        let unit = match metric.unit() {
            Unit::Bytes => "B",
            Unit::Nanoseconds | Unit::Count => "ns",
        };
        let shown = pprof_top(&file, metric.name(), unit);
        for (name, row) in rows(&profile) {
            let truth = [row.metrics.get(metric), row.total_metrics.get(metric)];
            let found = in_pprof(&shown, &name);
            assert_eq!(found, Some(truth), "{} of {name}: {shown:?}", metric.name());
        }
    }
}

#[test]
fn callgrind_annotate_knows_each_metric_as_an_event_with_its_sum() {
    let profile = measured();
    let directory = directory();
    let file = written(&directory, "callgrind.out", |out| {
        callgrind::write(&profile, out).unwrap();
    });
    let sums = profile.total_metrics();
    for metric in Metric::ALL {
        let event = column(metric);
        let (show, sort) = (format!("--show={event}"), format!("--sort={event}"));
        for inclusive in ["no", "yes"] {
            let annotated = Annotated::of(&file, inclusive, &[&show, &sort]);
            assert_eq!(
                annotated.first("PROGRAM TOTALS"),
                sums.get(metric),
                "{event}"
            );
            for (name, row) in rows(&profile) {
                let truth = match inclusive {
                    "no" => row.metrics.get(metric),
                    _ => row.total_metrics.get(metric),
                };
                assert_eq!(
                    annotated.cost(&name),
                    truth,
                    "{event} of {name}, {inclusive}"
                );
            }
        }
    }
}

#[test]
fn tables_have_a_column_for_each_metric() {
    let profile = measured();
    let directory = directory();
    let parquet = written(&directory, "p.parquet", |out| {
        parquet::write(&profile, out).unwrap();
    });
    let csv = written(&directory, "p.csv", |out| {
        csv::write(&profile, out).unwrap()
    });
    let names = Metric::ALL.map(column);
    let names: Vec<&Path> = names.iter().map(Path::new).collect();
    for (how, file) in [("parquet_columns", parquet), ("csv_columns", csv)] {
        let sums = python(how, &file, &names);
        for (name, row) in rows(&profile) {
            let truth = Metric::ALL.map(|metric| row.metrics.get(metric));
            assert_eq!(sums[&name], serde_json::json!(truth), "{name} in {how}");
        }
    }
}

#[test]
fn opentelemetry_reads_a_profile_of_each_metric() {
    let profile = measured();
    let directory = directory();
    let file = written(&directory, "p.otlp", |out| {
        otlp::write(&profile, out).unwrap()
    });
    let sums = python("otlp", &file, &[]);
    for (name, row) in rows(&profile) {
        for metric in Metric::ALL {
            let read = sums[format!("{name} {}", metric.name())].as_u64();
            assert_eq!(
                read,
                Some(row.metrics.get(metric)),
                "{} of {name}",
                metric.name()
            );
        }
    }
}

/// These have one kind of figure: a metric takes the place of time.
#[test]
fn speedscope_and_flame_graphs_show_a_metric_in_the_place_of_time() {
    let profile = measured();
    let directory = directory();
    let schema =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/speedscope-file-format-schema.json");
    for metric in [Metric::LiveBytes, Metric::SyscallCalls] {
        let weighed = by_metric(profile.clone(), metric);
        let file = written(&directory, "p.speedscope.json", |out| {
            speedscope::write(&weighed, out).unwrap();
        });
        let own = python("speedscope", &file, &[&schema]);
        let mut lines = Vec::new();
        folded::write(&weighed, &mut lines).unwrap();
        let text = String::from_utf8(lines).expect("text");
        let numbers = text.lines().filter_map(|line| line.rsplit(' ').next());
        let sum: u64 = numbers.map(|n| n.parse::<u64>().expect("a number")).sum();
        assert_eq!(sum, profile.total_metrics().get(metric));
        for (name, row) in rows(&profile) {
            let truth = row.metrics.get(metric);
            assert_eq!(
                own[&name].as_u64(),
                Some(truth),
                "{} of {name}",
                metric.name()
            );
        }
    }
}
