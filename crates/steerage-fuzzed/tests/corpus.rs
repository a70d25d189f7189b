//! Runs each target once over each file of its corpus, so that past findings of the fuzzer stay
//! covered.

use std::fs;
use std::panic;
use std::path::Path;

use steerage_fuzzed::TARGETS;

#[test]
fn every_file_of_every_corpus() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, check) in TARGETS {
        let directory = corpora.join(name);
        let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{} is empty", directory.display());
        for file in &files {
            let bytes = fs::read(file).unwrap();
            assert!(panic::catch_unwind(|| check(&bytes)).is_ok(), "{}", file.display());
        }
        check(&[]);
    }
}

/// A directory without a target would never be run.
#[test]
fn every_corpus_has_a_target() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for entry in fs::read_dir(corpora).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(TARGETS.iter().any(|(target, _)| *target == name), "{name}");
    }
}
