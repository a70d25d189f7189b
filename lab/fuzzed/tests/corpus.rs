//! Runs each fuzz target over its corpus, so that errors found in the past cannot return.

use std::fs;
use std::panic;
use std::path::{Path, PathBuf};

use steerage_fuzzed::TARGETS;

const BLOCK: usize = 512;

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

fn files(archive: &[u8]) -> Vec<(String, &[u8])> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.iter().copied().take_while(|byte| *byte != 0).collect()).unwrap();
    let (mut rest, mut found) = (archive, Vec::new());
    while let Some((header, after)) = rest.split_at_checked(BLOCK).filter(|(header, _)| header[0] != 0) {
        let size = usize::from_str_radix(text(&header[124..136]).trim(), 8).unwrap();
        // The type of a regular file in a tar header.
        if header[156] == b'0' {
            found.push((text(&header[..100]), &after[..size]));
        }
        rest = &after[size.next_multiple_of(BLOCK)..];
    }
    found
}

#[test]
fn every_input_of_every_corpus() {
    for (name, check) in TARGETS {
        let path = corpora().join(format!("{name}.tar"));
        let archive = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let files = files(&archive);
        assert!(!files.is_empty(), "{} is empty", path.display());
        for (file, bytes) in files {
            assert!(panic::catch_unwind(|| check(bytes)).is_ok(), "{file} in {}", path.display());
        }
        check(&[]);
    }
}

/// Inputs without a fuzz target would never be tested.
#[test]
fn every_corpus_has_a_target() {
    for entry in fs::read_dir(corpora()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(TARGETS.iter().any(|(target, _)| *target == name), "{}", path.display());
    }
}
