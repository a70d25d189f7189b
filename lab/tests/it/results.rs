//! The figures in README.md and docs/ must equal those of the tables in lab/results.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use steerage_fixtures::is_installed;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn results(args: &[&str]) -> Output {
    Command::new("python3").arg(root().join("lab/results.py")).args(args).output().unwrap()
}

/// Copies the documentation pages and the tables in lab/results.
fn checkout(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let mut copy = Command::new("cp");
    copy.current_dir(root()).args(["-r", "--parents", "docs", "lab/notes", "lab/results", "README.md"]).arg(&folder);
    assert!(copy.status().unwrap().success());
    folder
}

fn replace(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert_eq!(text.matches(from).count(), 1, "{from} in {}", file.display());
    fs::write(file, text.replace(from, to)).unwrap();
}

/// Returns the errors that lab/results.py prints for the copy of the pages and results in `folder`.
fn errors(folder: &Path, args: &[&str]) -> String {
    let output = results(&[&["--root", folder.to_str().unwrap()], args].concat());
    assert_eq!(output.status.success(), output.stderr.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_pages_have_the_figures_of_the_tables() {
    if is_installed("python3", "python3") {
        let output = results(&[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_changed_figure_is_found_and_written() {
    if !is_installed("python3", "python3") {
        return;
    }
    let folder = checkout("results-changed");
    let page = |name: &str| folder.join(name);
    assert_eq!(errors(&folder, &[]), "", "the copy");
    for (file, from, to) in [
        ("README.md", "hands to a near CPU (AMD) | 1.12 |", "hands to a near CPU (AMD) | 1.21 |"),
        ("README.md", "takes 15 to 30 ns", "takes 5 to 30 ns"),
        ("docs/performance.md", "| 23.0 [22.5..23.5] | 20.8 |", "| 23.0 [22.5..23.5] | 21.8 |"),
        ("docs/topology.md", "11 to 32 ns", "11 to 23 ns"),
    ] {
        replace(&page(file), from, to);
        assert!(errors(&folder, &[]).starts_with(&format!("results: {file}:")), "{to}");
        assert_eq!(errors(&folder, &["--write"]), "");
        let text = |path: PathBuf| fs::read_to_string(path).unwrap();
        assert_eq!(text(page(file)), text(root().join(file)), "{to}");
    }
    // The test changes a value in a table, as a new measurement would. lab/results.py must report
    // the pages with sentences that quote the old value.
    replace(&page("lab/results/performance/path.csv"), "14.5 [13.6..14.9]", "4.40 [4.30..4.50]");
    let wrong = errors(&folder, &[]);
    for name in ["README.md:", "docs/performance.md:"] {
        assert!(wrong.contains(name), "{name} {wrong}");
    }
    assert_eq!(errors(&folder, &["--write"]), "");
    assert!(fs::read_to_string(page("README.md")).unwrap().contains("takes 4 to 30 ns"));
}

#[test]
fn a_table_or_sentence_without_a_source_is_found() {
    if !is_installed("python3", "python3") {
        return;
    }
    type Change = fn(&Path);
    let changes: [(&str, Change); 6] = [
        ("has no file for the table", |folder| {
            fs::remove_file(folder.join("lab/results/performance/meter-export.csv")).unwrap()
        }),
        ("this text is there 0 times", |folder| {
            replace(&folder.join("README.md"), "to another CPU takes", "to a close CPU takes")
        }),
        ("add the figures of this line", |folder| {
            let row = "| netring | packets per second while listening";
            replace(&folder.join("README.md"), row, &format!("| a new peer | receiving | 1.5 |\n{row}"));
        }),
        ("add the figures of this line", |folder| {
            let sentence = "Do not use steerage for:";
            replace(&folder.join("README.md"), sentence, &format!("A peer is 1.5 times as fast. {sentence}"));
        }),
        ("0 tables have the heading", |folder| {
            replace(&folder.join("docs/performance.md"), "| experiment | result |", "| a | b |")
        }),
        ("lab/results has no table", |folder| {
            replace(
                &folder.join("lab/results/quotes.txt"),
                "{meter-export > `--names` > cost > 2}",
                "{nowhere > a > b}",
            )
        }),
    ];
    for (nth, (said, change)) in changes.into_iter().enumerate() {
        let folder = checkout(&format!("results-source-{nth}"));
        change(&folder);
        let wrong = errors(&folder, &[]);
        assert!(wrong.contains(said), "{said}: {wrong}");
    }
}
