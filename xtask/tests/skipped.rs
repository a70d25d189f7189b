//! Prints how many tests were skipped, which Rust's harness cannot show. `cargo test` runs packages
//! in alphabetical order, so it runs `xtask` last.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Returns why tests of the test run `run` were skipped, with the number of tests for each reason,
/// the most frequent first. Removes the files of this test run and of earlier ones.
fn sums(folder: &Path, run: u32) -> Vec<(usize, String)> {
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_of_run = entry.file_name().to_string_lossy().starts_with(&format!("{run}-"));
        for why in fs::read_to_string(&path).unwrap_or_default().lines().filter(|_| is_of_run) {
            *reasons.entry(why.to_owned()).or_default() += 1;
        }
        let _ = fs::remove_file(path);
    }
    let mut sums: Vec<(usize, String)> = reasons.into_iter().map(|(why, count)| (count, why)).collect();
    sums.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
    sums
}

#[test]
fn the_tests_that_were_skipped_are_summed_up() {
    let test = std::env::current_exe().unwrap();
    let folder = test.ancestors().nth(2).unwrap().join("skipped-tests");
    let sums = sums(&folder, std::os::unix::process::parent_id());
    let mut said = Vec::new();
    for (count, why) in &sums {
        writeln!(said, "{count} skipped: {why}").unwrap();
    }
    if sums.len() > 1 {
        writeln!(
            said,
            "{} skipped in all; skipped tests count as passed",
            sums.iter().map(|(count, _)| count).sum::<usize>()
        )
        .unwrap();
    }
    // Standard error is written directly, because the harness hides the output of a test.
    io::stderr().write_all(&said).unwrap();
}

#[test]
fn reasons_are_counted_for_each_run() {
    let folder = std::env::temp_dir().join(format!("steerage-skipped-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for (name, text) in [("7-1", "no captures\nno tshark\n"), ("7-2", "no captures\n"), ("71-3", "of another run\n")] {
        fs::write(folder.join(name), text).unwrap();
    }
    let expected = [(2, "no captures".to_owned()), (1, "no tshark".to_owned())];
    assert_eq!(sums(&folder, 7), expected);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    fs::remove_dir(&folder).unwrap();
}
