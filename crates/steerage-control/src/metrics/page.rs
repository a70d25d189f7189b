use std::collections::BTreeSet;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use steerage::{
    Snapshot,
    stats::{CounterSnapshot, CpuSnapshot, OutputSnapshot, QueueSnapshot},
};

use super::Metric;
use super::families::{self, Family, Value};

#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) snapshot: Option<Snapshot>,
    pub(super) more: Vec<Metric>,
    pub(super) version: Option<&'static str>,
}

pub(super) fn text(content: Content, prefix: &str) -> String {
    let prefix = legal(prefix);
    let mut registry = if prefix.is_empty() { Registry::default() } else { Registry::with_prefix(prefix) };
    registry.register_collector(Box::new(content));
    let mut page = String::new();
    if let Err(error) = text::encode(&mut page, &registry) {
        tracing::error!("metrics cannot be written: {error}");
        return String::new();
    }
    in_prometheus_words(&page)
}

/// Replaces each character that is not allowed in a metric's name with `_`.
fn legal(prefix: &str) -> String {
    let mut legal: String =
        prefix.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
    if legal.starts_with(|c: char| c.is_ascii_digit()) {
        legal.insert(0, '_');
    }
    legal
}

type Labels = Vec<(&'static str, String)>;

impl Collector for Content {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(version) = self.version {
            write(&mut encoder, &families::BUILD, &[(vec![("version", version.to_owned())], &())])?;
        }
        if let Some(snapshot) = &self.snapshot {
            write(&mut encoder, &families::WHOLE, &[(Vec::new(), snapshot)])?;
            write(&mut encoder, &families::QUEUES, &of_queues(&snapshot.queues))?;
            write(&mut encoder, &families::CPUS, &of_cpus(&snapshot.cpus))?;
            write(&mut encoder, &families::OUTPUTS, &of_outputs(&snapshot.outputs))?;
            self.write_counters(&mut encoder, snapshot)?;
        }
        write_more(&mut encoder, &self.more)
    }
}

/// The value of the label `cpu` for CPUs that do not belong to the instance.
const OTHER_CPUS: &str = "other";

impl Content {
    fn write_counters(&self, encoder: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
        let more = self.more.iter().map(|of| families::with_suffix(of.name, of.kind.in_prometheus_words()));
        let mut taken: BTreeSet<String> = families::without_prefix().chain(more).collect();
        let cpus: Vec<String> = snapshot.cpus.iter().map(|cpu| cpu.cpu.to_string()).collect();
        for counter in &snapshot.counters {
            let name = name_of(counter, &mut taken);
            let help = if counter.help.is_empty() { &counter.name } else { &counter.help };
            let mut encoder = encoder.encode_descriptor(&name, &escaped(help), None, MetricType::Counter)?;
            let elsewhere = counter.total.saturating_sub(counter.by_cpu.iter().sum());
            let elsewhere = (elsewhere > 0).then_some((OTHER_CPUS, elsewhere));
            let samples = cpus.iter().map(String::as_str).zip(counter.by_cpu.iter().copied());
            for (cpu, count) in samples.chain(elsewhere) {
                put(&mut encoder.encode_family(&[("cpu", cpu)])?, MetricType::Counter, Value::Whole(count))?;
            }
        }
        Ok(())
    }
}

/// Returns the counter's name with its unit. Adds the prefix `handler_` if another metric has the
/// name, because names must differ.
fn name_of(counter: &CounterSnapshot, taken: &mut BTreeSet<String>) -> String {
    let CounterSnapshot { name, unit, .. } = counter;
    let has_unit =
        unit.is_empty() || name == unit || name.strip_suffix(&**unit).is_some_and(|rest| rest.ends_with('_'));
    let mut name = if has_unit { name.to_string() } else { format!("{name}_{unit}") };
    while !taken.insert(families::with_suffix(&name, MetricType::Counter)) {
        name.insert_str(0, "handler_");
    }
    name
}

fn escaped(help: &str) -> String {
    help.replace('\\', "\\\\").replace('\n', "\\n")
}

fn of_queues(queues: &[QueueSnapshot]) -> Vec<(Labels, &QueueSnapshot)> {
    let devices = distinct(queues.iter().map(|queue| (queue.device.as_str(), queue.queue)));
    let queues = queues.iter().zip(devices);
    queues.map(|(queue, device)| (vec![("device", device), ("queue", queue.queue.to_string())], queue)).collect()
}

fn of_cpus(cpus: &[CpuSnapshot]) -> Vec<(Labels, &CpuSnapshot)> {
    cpus.iter().map(|cpu| (vec![("cpu", cpu.cpu.to_string())], cpu)).collect()
}

fn of_outputs(outputs: &[OutputSnapshot]) -> Vec<(Labels, &OutputSnapshot)> {
    let names = distinct(outputs.iter().map(|output| (output.device.as_str(), 0)));
    outputs.iter().zip(names).map(|(output, name)| (vec![("output", name)], output)).collect()
}

/// Makes the names of all devices differ (`synthetic`, `synthetic.2`), because Prometheus refuses
/// equal series.
fn distinct<'a>(devices: impl Iterator<Item = (&'a str, usize)>) -> Vec<String> {
    let mut seen: Vec<(&str, usize)> = Vec::new();
    let mut names = Vec::new();
    for device in devices {
        seen.push(device);
        let nth = seen.iter().filter(|other| **other == device).count();
        names.push(if nth == 1 { device.0.to_owned() } else { format!("{}.{nth}", device.0) });
    }
    names
}

/// Writes the metric families that have samples, for all queues or CPUs.
fn write<T>(encoder: &mut DescriptorEncoder<'_>, families: &[Family<T>], of: &[(Labels, &T)]) -> fmt::Result {
    for family in families {
        let mut samples = of.iter().flat_map(|(labels, one)| {
            (family.read)(one).into_iter().map(move |sample| {
                let more = sample.label.map(|(key, value)| (key, value.into_owned()));
                (labels.iter().cloned().chain(more).collect::<Labels>(), sample.value)
            })
        });
        let Some(first) = samples.next() else { continue };
        let mut encoder = encoder.encode_descriptor(family.name, family.help, None, family.kind)?;
        for (labels, value) in std::iter::once(first).chain(samples) {
            match labels.as_slice() {
                [] => put(&mut encoder, family.kind, value)?,
                _ => put(&mut encoder.encode_family(&labels)?, family.kind, value)?,
            }
        }
    }
    Ok(())
}

fn write_more(encoder: &mut DescriptorEncoder<'_>, metrics: &[Metric]) -> fmt::Result {
    for Metric { name, help, kind, samples } in metrics {
        let kind = kind.in_prometheus_words();
        let mut encoder = encoder.encode_descriptor(name, help, None, kind)?;
        for (label, value) in samples {
            let value = Value::Whole(*value);
            match label {
                None => put(&mut encoder, kind, value)?,
                Some(label) => put(&mut encoder.encode_family(&[*label])?, kind, value)?,
            }
        }
    }
    Ok(())
}

fn put(sample: &mut MetricEncoder<'_>, kind: MetricType, value: Value) -> fmt::Result {
    match (kind, value) {
        (MetricType::Counter, Value::Whole(value)) => sample.encode_counter::<Labels, _, u64>(&value, None),
        (MetricType::Counter, Value::Fraction(value)) => sample.encode_counter::<Labels, _, f64>(&value, None),
        (_, Value::Whole(value)) => sample.encode_gauge(&value),
        (_, Value::Fraction(value)) => sample.encode_gauge(&value),
    }
}

/// Converts OpenMetrics to the older Prometheus format, which every reader understands. In the
/// older format, the HELP and TYPE lines of a counter have the name with `_total`, and there is no
/// end mark.
fn in_prometheus_words(page: &str) -> String {
    let mut text = String::with_capacity(page.len() + page.len() / 8);
    let mut help = "";
    for line in page.lines() {
        if line.starts_with("# HELP ") {
            // The TYPE line that follows says whether the metric is a counter.
            help = line;
            continue;
        }
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match (words.as_slice(), help.splitn(4, ' ').nth(3)) {
            (["#", "TYPE", name, kind], Some(help)) => {
                let suffix = if *kind == "counter" { "_total" } else { "" };
                text.push_str(&format!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n"));
            }
            (["#", ..], _) => {}
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use steerage::CpuId;
    use steerage::stats::Counters;

    use super::*;

    #[test]
    fn the_same_device_twice_has_two_names() {
        let devices =
            [("eth0", 0), ("eth0", 1), ("synthetic", 0), ("synthetic", 0), ("synthetic", 1), ("synthetic", 0)];
        let names = distinct(devices.into_iter());
        assert_eq!(names, ["eth0", "eth0", "synthetic", "synthetic.2", "synthetic", "synthetic.3"]);
    }

    #[test]
    fn a_program_without_packets_has_only_its_own_metrics() {
        let content = Content { snapshot: None, more: vec![Metric::counter("set", "Values.", 3)], version: Some("1") };
        let page = text(content, "steerage");
        let samples: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(samples, ["steerage_build_info{version=\"1\"} 1", "steerage_set_total 3"]);
    }

    #[test]
    fn counters_are_described_by_the_name_of_their_samples() {
        let page = "# HELP a_b What it is.\n# TYPE a_b counter\na_b_total{x=\"# TYPE \"} 1\n# HELP c Now.\n# TYPE c gauge\nc 2\n# EOF\n";
        let expected = "# HELP a_b_total What it is.\n# TYPE a_b_total counter\na_b_total{x=\"# TYPE \"} 1\n\
                        # HELP c Now.\n# TYPE c gauge\nc 2\n";
        assert_eq!(in_prometheus_words(page), expected);
    }

    fn of_handler(snapshot: &Snapshot, more: Vec<Metric>, prefix: &str) -> Vec<String> {
        let ledger = text(Content { snapshot: Some(Snapshot::default()), ..Content::default() }, prefix);
        let content = Content { snapshot: Some(snapshot.clone()), more, version: None };
        let page = text(content, prefix);
        page.lines().filter(|line| !ledger.contains(line)).map(str::to_owned).collect()
    }

    fn snapshot(counters: &Counters) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.counters = counters.snapshot(&[CpuId(0), CpuId(2)]);
        snapshot
    }

    #[test]
    fn counters_of_the_packet_function_have_a_sample_for_each_cpu() {
        let counters = Counters::new();
        let passed = counters.add("admitted", "Packets within\ntheir \\ rate.", "packets").unwrap();
        counters.add("limited", "Packets above their rate.", "").unwrap().on(CpuId(7)).add(5);
        passed.on(CpuId(2)).add(3);
        let mut snapshot = snapshot(&counters);
        let mut cpus = [CpuSnapshot::default(), CpuSnapshot::default()];
        (cpus[0].cpu, cpus[1].cpu) = (CpuId(0), CpuId(2));
        snapshot.cpus = cpus.into();
        let page = text(Content { snapshot: Some(snapshot), ..Content::default() }, "limiter");
        let expected = "# HELP limiter_admitted_packets_total Packets within\\ntheir \\\\ rate.\n\
                        # TYPE limiter_admitted_packets_total counter\n\
                        limiter_admitted_packets_total{cpu=\"0\"} 0\n\
                        limiter_admitted_packets_total{cpu=\"2\"} 3\n\
                        # HELP limiter_limited_total Packets above their rate.\n\
                        # TYPE limiter_limited_total counter\n\
                        limiter_limited_total{cpu=\"0\"} 0\n\
                        limiter_limited_total{cpu=\"2\"} 0\n\
                        limiter_limited_total{cpu=\"other\"} 5\n";
        assert!(page.ends_with(expected), "{page}");
        assert!(page.contains("\nlimiter_uptime_seconds 0.0\n") && !page.contains("steerage"), "{page}");
    }

    #[test]
    fn no_metric_is_there_twice() {
        let counters = Counters::new();
        for (name, unit) in [("received", "packets"), ("received_packets", ""), ("drops", "")] {
            counters.add(name, "", unit).unwrap().on(CpuId(1)).add(1);
        }
        counters.add("sent_bytes", "", "bytes").unwrap().on(CpuId(1)).add(1);
        let lines = of_handler(&snapshot(&counters), vec![Metric::counter("drops", "", 2)], "a");
        let samples: Vec<&str> = lines.iter().map(String::as_str).filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "a_handler_received_packets_total{cpu=\"other\"} 1",
            "a_handler_handler_received_packets_total{cpu=\"other\"} 1",
            "a_handler_drops_total{cpu=\"other\"} 1",
            "a_sent_bytes_total{cpu=\"other\"} 1",
            "a_drops_total 2",
        ];
        assert_eq!(samples, expected);
    }

    #[test]
    fn any_text_is_a_prefix() {
        for (prefix, legal) in
            [("limiter", "limiter"), ("my-limiter 2", "my_limiter_2"), ("9p", "_9p"), ("\u{e4}{}\n", "____")]
        {
            assert_eq!(super::legal(prefix), legal);
        }
        let page = text(Content { snapshot: Some(Snapshot::default()), ..Content::default() }, "");
        assert!(page.contains("\nuptime_seconds 0.0\n"), "{page}");
    }
}
