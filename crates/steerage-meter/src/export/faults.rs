//! In each run, the n-th file operation of an output fails, for n = 1, 2, 3 and so on. After each
//! run, the counts of written and lost records must add up, and the files must have exactly the
//! written records.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use nix::errno::Errno;
use steerage_fixtures::scratch::Scratch;

use super::super::disk::Disk;
use super::super::disk::fault::{self, Fault};
use super::super::output::Rotation;
use super::tests::{S, START, records};
use super::*;
use steerage_guard::file::FilePattern;

/// A run that needs more file operations is assumed never to end.
const OPERATIONS_MAX: u64 = 10_000;

const BATCHES: [u64; 4] = [0, 100, 300, 600];

const FORMATS: [FlowFormat; 4] = [FlowFormat::Csv, FlowFormat::JsonLines, FlowFormat::Ipfix, FlowFormat::Parquet];

const RECORDS: u64 = 60;

#[derive(Clone, Copy, Debug)]
enum To {
    File,
    Rotated,
    Stdout,
}

struct Outcome {
    operations: u64,
    error: Option<String>,
    is_partial: bool,
}

fn run(to: To, format: FlowFormat, fault: Fault) -> Outcome {
    let (scratch, case) = (Scratch::new(), format!("{to:?} {format:?} {fault:?}"));
    let name = format!("flows-%H%M.{}", end_of(format));
    let name = scratch.join(if matches!(to, To::Rotated) { name } else { name.replace("-%H%M", "") });
    let pattern = FilePattern::parse(name.to_str().unwrap()).unwrap();
    let rotate = Rotation { period: Duration::from_secs(300), inactive: Duration::from_secs(1) };
    let (messages_in, messages) = mpsc::sync_channel(BATCHES.len() + 1);
    let (told, _ended) = mpsc::channel();
    let state = WriterState::new("test".to_owned(), messages, told);
    let outlet = Outlet { to: messages_in.clone(), shared: Arc::clone(&state), waits: false };
    let mut handed = 0;
    for second in BATCHES {
        let seconds: Vec<u64> = (0..RECORDS).map(|nth| second + nth % 90).collect();
        let (records, now) = (records(&seconds), (START + second + 100) * S);
        handed += records.len() as u64;
        outlet.send(&Arc::new(records.clone()), Volume::of(&records), now);
    }
    messages_in.send(Message::End).unwrap();

    fault::plan(fault);
    let to_files = |rotate| FlowsTo::Files { name: pattern, rotate };
    let to_what = match to {
        To::File => to_files(None),
        To::Rotated => to_files(Some(rotate)),
        To::Stdout => FlowsTo::Stdout,
    };
    let result = Sink::new(to_what, format, Arc::clone(&state)).and_then(|mut sink| {
        if let To::Stdout = to {
            let disk = Disk::special(File::create(&name).unwrap(), &state);
            sink.open.insert(0, FlowFile::new(disk, format, None, &state).unwrap());
        }
        sink.rows_max = 100;
        sink.write_all()
    });
    let operations = fault::operations();
    fault::plan(Fault::None);
    state.end(WriterEnd::GivenUp);
    // A meter that has not noticed the end of the output still sends records.
    let late = records(&[1, 2, 3]);
    outlet.send(&Arc::new(late.clone()), Volume::of(&late), START * S);

    let OutputCounts { written, lost, .. } = state.counts();
    assert_eq!(written + lost, handed + 3, "{case}");
    let error = result.err().map(|error| error.to_string());
    assert!(lost == 3 || error.is_some(), "{case}: {lost} lost without an error");
    let is_whole = error.as_ref().is_none_or(|error| !error.contains("ends within a record"));
    let files: BTreeMap<String, u64> = fs::read_dir(&*scratch)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), count(&entry.path(), format, is_whole)))
        .collect();
    assert_eq!(files.values().sum::<u64>(), written, "{case}: {files:?} {error:?}");
    let parts: Vec<&String> = files.keys().filter(|name| name.ends_with(".part")).collect();
    match &error {
        None => assert!(parts.is_empty(), "{case}: {parts:?}"),
        Some(error) if parts.len() <= 2 => {
            assert!(parts.iter().all(|part| error.contains(*part)), "{case}: {error} {parts:?}");
            assert_eq!(error.matches(".part").count(), parts.len(), "{case}: {error}");
        }
        Some(error) => assert!(error.contains(&format!("and {} other files", parts.len() - 1)), "{case}: {error}"),
    }
    Outcome { operations, error, is_partial: written > 0 && written < handed }
}

fn end_of(format: FlowFormat) -> &'static str {
    match format {
        FlowFormat::Csv => "csv",
        FlowFormat::JsonLines => "jsonl",
        FlowFormat::Ipfix => "ipfix",
        FlowFormat::Parquet => "parquet",
    }
}

fn count(path: &Path, format: FlowFormat, is_whole: bool) -> u64 {
    let mut bytes = fs::read(path).unwrap();
    if let FlowFormat::Csv | FlowFormat::JsonLines = format {
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        assert!(end == bytes.len() || !is_whole, "{path:?}");
        bytes.truncate(end);
    }
    let count = match format {
        FlowFormat::Csv => csv::Reader::from_reader(&bytes[..]).records().map(Result::unwrap).count(),
        FlowFormat::JsonLines => {
            let values = serde_json::Deserializer::from_slice(&bytes).into_iter::<serde_json::Value>();
            values.map(|value| assert!(value.unwrap()["first"].is_string())).count()
        }
        FlowFormat::Ipfix => count_ipfix(&bytes, is_whole),
        FlowFormat::Parquet => crate::parquet::count(&bytes),
    };
    count as u64
}

const OPTIONS: u16 = 33_024;

fn count_ipfix(mut bytes: &[u8], is_whole: bool) -> usize {
    let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let (mut lengths, mut flows) = (BTreeMap::new(), 0);
    while !bytes.is_empty() {
        let Some((message, rest)) = bytes.split_at_checked(bytes.get(2..4).map_or(usize::MAX, |at| word(at, 0).into()))
        else {
            assert!(!is_whole);
            return flows;
        };
        assert_eq!(word(message, 0), 10, "the version");
        let mut sets = &message[16..];
        while !sets.is_empty() {
            let (id, (mut set, later)) = (word(sets, 0), sets.split_at(usize::from(word(sets, 2))));
            set = &set[4..];
            let elements = [(2, 4), (3, 6)].into_iter().find(|(templates, _)| *templates == id);
            while let (Some((_, from)), false) = (elements, set.is_empty()) {
                let (mut at, mut length) = (from, 0);
                for _ in 0..word(set, 2) {
                    length += usize::from(word(set, at + 2));
                    at += if word(set, at) & 0x8000 == 0 { 4 } else { 8 };
                }
                lengths.insert(word(set, 0), length);
                set = &set[at..];
            }
            if !set.is_empty() && id < OPTIONS {
                assert_eq!(set.len() % lengths[&id], 0);
                flows += set.len() / lengths[&id];
            }
            sets = later;
        }
        bytes = rest;
    }
    flows
}

fn cases() -> impl Iterator<Item = (To, FlowFormat)> {
    FORMATS.into_iter().flat_map(|format| {
        let to = [To::File, To::Rotated, To::Stdout].into_iter();
        to.filter(move |to| format != FlowFormat::Parquet || !matches!(to, To::Stdout)).map(move |to| (to, format))
    })
}

#[test]
fn without_a_fault_all_records_are_written() {
    for (to, format) in cases() {
        let Outcome { operations, error, .. } = run(to, format, Fault::None);
        assert_eq!(error, None);
        // Two of the operations create and rename the file.
        assert!(operations > 4, "{to:?} {format:?}: {operations}");
    }
}

#[test]
fn every_operation_may_fail() {
    let plans: [fn(u64) -> Fault; 6] = [
        |nth| Fault::Once(nth, Errno::ENOSPC),
        |nth| Fault::Once(nth, Errno::EIO),
        |nth| Fault::Once(nth, Errno::EPIPE),
        |nth| Fault::From(nth, Errno::ENOSPC),
        |nth| Fault::Short(nth, Errno::ENOSPC),
        |nth| Fault::ShortFrom(nth, Errno::EIO),
    ];
    for ((to, format), plan) in cases().flat_map(|case| plans.map(|plan| (case, plan))) {
        let (mut nth, mut partial) = (1, 0);
        loop {
            let Outcome { operations, error, is_partial } = run(to, format, plan(nth));
            partial += u64::from(is_partial);
            if nth > operations {
                assert_eq!(error, None);
                break;
            }
            assert!(nth < OPERATIONS_MAX);
            nth += 1;
        }
        // If all later operations fail, the footer of a Parquet file cannot be written either.
        let is_lasting = matches!(plan(nth), Fault::From(..) | Fault::ShortFrom(..));
        let may_have_nothing = is_lasting && format == FlowFormat::Parquet && matches!(to, To::File);
        assert!(nth > 4 && (partial > 0 || may_have_nothing), "{to:?} {format:?} {:?}", plan(nth));
    }
}

#[test]
fn a_disk_may_be_full_at_any_byte() {
    for (to, format) in cases() {
        let mut room = 0;
        let mut partial = 0;
        loop {
            let Outcome { error, is_partial, .. } = run(to, format, Fault::Room(room));
            partial += u64::from(is_partial);
            if error.is_none() {
                break;
            }
            room = room * 5 / 4 + 977;
        }
        // The footer of a Parquet file with few records is longer than the file's row group.
        assert!(partial > 0 || format == FlowFormat::Parquet, "{to:?} {format:?}: {room}");
    }
}

#[test]
fn a_file_that_cannot_be_shortened_is_reported() {
    let scratch = Scratch::new();
    let (_, messages) = mpsc::sync_channel(1);
    let state = WriterState::new("test".to_owned(), messages, mpsc::channel().0);
    let disk = Disk::special(File::create(scratch.join("file")).unwrap(), &state);
    let mut file = FlowFile::new(disk, FlowFormat::JsonLines, None, &state).unwrap();
    fault::plan(Fault::ShortFrom(1, Errno::EIO));
    let records = records(&[1, 2, 3]);
    let error = file.write(&records, state.ledger().take(Volume::of(&records))).unwrap_err().to_string();
    fault::plan(Fault::None);
    assert!(error.contains("ends within a record"), "{error}");
    assert_eq!(file.leave(1), None);
    let OutputCounts { written, lost, .. } = state.counts();
    let text = fs::read_to_string(scratch.join("file")).unwrap();
    assert_eq!((written, written + lost), (text.matches('\n').count() as u64, 3));
}
