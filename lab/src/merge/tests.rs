use super::*;
use crate::compare::{Verdict, compare};
use crate::placement::Placement;

fn report(runs: &[(&str, usize)]) -> String {
    let samples: Vec<String> = runs.iter().map(|(series, round)| line(series, *round)).collect();
    format!(
        r#"{{"schema":1,"machine":{{"cpu":"c","cpus":2,"kernel":"6","virtual_machine":true,"version":"1","command":"bench e",
        "started":"2026-11-21T10:00:00Z","seconds":2.5}},"experiments":[{{"name":"e","title":"t","question":"q",
        "published":"","metrics":[{{"name":"v","title":"value","unit":"u","more_is_better":true}}],"x":"",
        "compared":[{{"of":"ours","over":"plain","metric":"v"}}],
        "charts":[{{"title":"c","kind":"bars","metric":"v","series":["ours","plain"]}}],
        "samples":[{}],"skipped":[]}}]}}"#,
        samples.join(",")
    )
}

fn line(series: &str, round: usize) -> String {
    format!(
        r#"{{"experiment":"e","series":"{series}","x":null,"round":{round},"placement":"near","values":{{"v":{}.0}}}}"#,
        series.len()
    )
}

fn merger(files: &[String]) -> Result<Report, MergeError> {
    let mut merger = Merger::new();
    for (at, text) in files.iter().enumerate() {
        merger.read(&format!("file {at}"), text)?;
    }
    merger.finish()
}

/// The series and the round of each merged sample.
fn rounds(files: &[String]) -> Vec<(String, usize)> {
    let report = merger(files).unwrap();
    report.experiments[0].samples.iter().map(|sample| (sample.series.clone(), sample.round)).collect()
}

fn named(of: &[(&str, usize)]) -> Vec<(String, usize)> {
    of.iter().map(|(series, round)| ((*series).to_owned(), *round)).collect()
}

#[test]
fn who_is_run_once_a_round_gets_the_rounds_of_its_turns() {
    let file = [report(&[("ours", 0), ("plain", 0)]), line("peer", 0)].join("\n");
    let twice = format!("{file}\n{file}");
    let expected = [("ours", 0), ("plain", 0), ("peer", 0), ("ours", 1), ("plain", 1), ("peer", 1)];
    assert_eq!(rounds(&[twice]), named(&expected));
}

#[test]
fn who_counts_for_itself_keeps_its_rounds() {
    let lines = [report(&[("ours", 0)]), line("peer", 0), report(&[("ours", 1)]), line("peer", 1)];
    assert_eq!(rounds(&[lines.join("\n")]), named(&[("ours", 0), ("peer", 0), ("ours", 1), ("peer", 1)]));
}

#[test]
fn who_counts_for_itself_goes_with_who_does_not() {
    let turn = |round| [report(&[("ours", 0), ("ours", 1)]), line("peer", round), line("peer", round + 1)];
    let lines = [turn(0), turn(2), turn(4)].concat();
    let found = rounds(&[lines.join("\n")]);
    let of = |series: &str| found.iter().filter(|one| one.0 == series).map(|one| one.1).collect::<Vec<_>>();
    assert_eq!((of("ours"), of("peer")), ((0..6).collect(), (0..6).collect()));
}

#[test]
fn who_fails_once_is_in_its_place_the_next_time() {
    let lines =
        [report(&[("ours", 0)]), line("peer", 0), report(&[("ours", 0)]), report(&[("ours", 0)]), line("peer", 0)];
    assert_eq!(rounds(&[lines.join("\n")]), named(&[("ours", 0), ("peer", 0), ("ours", 1), ("ours", 2), ("peer", 2)]));
}

#[test]
fn files_have_rounds_of_their_own() {
    let files = [report(&[("ours", 0), ("ours", 1), ("plain", 1)]), line("peer", 1), line("peer", 0)];
    assert_eq!(
        rounds(&files),
        named(&[("ours", 0), ("ours", 1), ("plain", 1), ("peer", 3), ("peer", 4)]),
        "rounds of one file with those of another"
    );
}

#[test]
fn lines_may_come_before_their_report() {
    let lines = [line("peer", 0), report(&[("ours", 0)]), line("peer", 0), report(&[("ours", 0)])];
    assert_eq!(rounds(&[lines.join("\n")]), named(&[("peer", 0), ("ours", 0), ("peer", 1), ("ours", 1)]));
}

#[test]
fn a_peer_is_drawn_and_compared() {
    let turn = [report(&[("ours", 0), ("plain", 0)]), line("a peer", 0)].join("\n");
    let report = merger(&[[turn.clone(), turn.clone(), turn].join("\n")]).unwrap();
    let of = &report.experiments[0];
    assert_eq!(of.charts[0].series, ["ours", "plain", "a peer"]);
    assert_eq!(of.compared.len(), 2);
    assert_eq!((of.compared[1].of.as_str(), of.compared[1].over.as_str()), ("ours", "a peer"));
    let found = compare(of, &of.compared[1]);
    // 4 letters over 6, three times.
    assert_eq!((found[0].placement, found[0].rounds, found[0].verdict), (Placement::Near, 3, Verdict::Worse));
    assert!((found[0].ratio - 4.0 / 6.0).abs() < 1e-12);
}

#[test]
fn a_peer_says_what_it_is_to_be_compared_with() {
    let against = line("a peer", 0).replace(r#""x":null"#, r#""x":null,"against":["plain","ours"]"#);
    let report = merger(&[[report(&[]), against.clone(), against].join("\n")]).unwrap();
    let told: Vec<_> =
        report.experiments[0].compared.iter().map(|pair| (pair.of.as_str(), pair.over.as_str())).collect();
    assert_eq!(told, [("ours", "plain"), ("plain", "a peer"), ("ours", "a peer")]);
    assert!(report.experiments[0].compared.iter().all(|pair| pair.metric == "v"));
}

#[test]
fn several_runs_are_one_report() {
    let other = report(&[("ours", 0)]).replace("bench e", "bench all").replace("T10", "T09");
    let report = merger(&[report(&[("ours", 0)]), other.clone(), other]).unwrap();
    assert_eq!(report.machine.command, "bench e\nbench all");
    assert_eq!((report.machine.started.as_str(), report.machine.seconds), ("2026-11-21T09:00:00Z", 7.5));
    assert_eq!((report.experiments.len(), report.experiments[0].samples.len()), (1, 3));
    assert_eq!(report.experiments[0].charts.len(), 1);
}

#[test]
fn what_is_left_out_is_told() {
    let strange = line("peer", 0).replace(r#""v":"#, r#""w":"#);
    let skipped = r#"{"experiment":"e","skipped":"no DPDK here"}"#.to_owned();
    let beside = r#"{"beside":"DPDK 22.11"}"#.to_owned();
    let report = merger(&[[report(&[]), strange.clone(), strange, skipped, beside].join("\n")]).unwrap();
    assert_eq!(report.experiments[0].skipped, ["`w` of peer: the experiment has no such metric", "no DPDK here"]);
    assert_eq!(report.machine.beside, ["DPDK 22.11"]);
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let after =
        |bad: &str| merger(&[format!("{}\n\n{}\n{bad}\n", report(&[]), line("peer", 0))]).unwrap_err().to_string();
    // The report has six lines of its own.
    let place = "file 0, line 9: ";
    for (bad, expected) in [
        ("{\"experiment\": nonsense}", "this is no JSON (expected ident at line 9"),
        ("17", "this is no sample (invalid type: integer `17`"),
        ("{}", "this is no sample (missing field `experiment`)"),
        (&line("peer", 0).replace("near", "here"), "this is no sample (unknown variant `here`"),
        (
            &line("peer", 0).replace(r#""experiment":"e""#, r#""experiment":"f""#),
            "no report has an experiment `f`, only e: give",
        ),
        (&line("peer", ROUND_MAX + 1), "a sample of series `peer` is of round 1000001: "),
        (
            &line("peer", 0).replace("}}", r#"},"latencies":[[2,1],[1,1]]}"#),
            "a sample of series `peer` has latencies that",
        ),
        (
            &line("peer", 0).replace(r#""x":null"#, r#""against":"ours""#),
            "this is no sample: `against` is a list of series (",
        ),
        (r#"{"experiment":"f","skipped":"it"}"#, "no report has an experiment `f`, only e: give"),
        (&report(&[]).replace(r#""schema":1"#, r#""schema":2"#), "a report of schema 2, and this program knows 1"),
        (&report(&[]).replace(r#""cpu":"c""#, r#""cpu":"d""#), "this was measured with another CPU than the first"),
    ] {
        let told = after(bad);
        assert!(told.starts_with(&format!("{place}{expected}")), "{told}");
        assert!(!told.contains('\n'), "{told}");
    }
    let alone = merger(&[line("peer", 0)]).unwrap_err().to_string();
    assert!(alone.starts_with("file 0, line 1: no report came before this line"), "{alone}");
    assert!(merger(&[]).unwrap_err().to_string().starts_with("no file: "));
}
