use std::fs;
use std::sync::{Arc, mpsc};

use steerage::BucketId;
use steerage_fixtures::scratch::Scratch;

use super::*;
use crate::disk::Disk;
use crate::flow::{Flow, FlowEnd, Seen};
use crate::key::Key;
use crate::tcp::Segment;
use crate::writer_state::WriterState;

fn record(nth: u32) -> FlowRecord {
    let port = (nth % 65_521) as u16;
    let key = match nth % 5 {
        0 | 1 => Key::v4((nth.wrapping_mul(0x9e37_79b9), port), (0x0a00_0001, 443), 6),
        2 => Key::v4((nth, port), (0xffff_fffe, 53), 17),
        3 => Key::v6((u128::from(nth) << 100, port), (1, 53), 17),
        _ => Key::other(),
    };
    let segment = Segment { is_there: nth % 5 < 2, bytes: nth, ..Segment::default() };
    let (bytes, time) = (60 + nth % 1400, 1_700_000_000_000_000_001 + u64::from(nth) * 1_234_567);
    let seen =
        Seen { time, bytes, ip_bytes: bytes - 14, tcp_flags: 0x18, segment, vlans: [port & 0xfff, 7], ..Seen::of(key) };
    let mut flow = Flow::begin(&seen, BucketId { group: 0, bucket: 0 });
    flow.add(&seen);
    let names = crate::FlowNames {
        dns_query: Some(format!("host-{nth}.example").into()),
        dns_type: Some(28),
        ..Default::default()
    };
    let names = (nth % 5 == 2).then(|| Arc::new(names));
    FlowRecord::new(flow, FlowEnd::Idle).with_names(names)
}

/// Returns the expected values, which are those of a CSV file, except for the format of times.
fn expected(records: &[FlowRecord]) -> Vec<Vec<String>> {
    let mut csv = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    records.iter().for_each(|record| csv.serialize(record).unwrap());
    let text = csv.into_inner().unwrap();
    let rows = csv::ReaderBuilder::new().has_headers(false).from_reader(&text[..]).into_records();
    let row = |(row, record): (csv::StringRecord, &FlowRecord)| {
        let mut row: Vec<String> = row.iter().map(str::to_owned).collect();
        (row[0], row[1]) = (record.first().as_nanos().to_string(), record.last().as_nanos().to_string());
        row
    };
    rows.map(Result::unwrap).zip(records).map(row).collect()
}

fn file() -> (Scratch, RecordWriter) {
    let (scratch, (_, messages)) = (Scratch::new(), mpsc::sync_channel(1));
    let state = WriterState::new("test".to_owned(), messages, mpsc::channel().0);
    let disk = Disk::special(fs::File::create(scratch.join("file")).unwrap(), &state);
    (scratch, RecordWriter::new(disk, state.ledger().take(Volume::NONE)))
}

#[test]
fn what_is_written_is_read() {
    let records: Vec<FlowRecord> = (0..ROWS_MAX as u32 + 1000).map(record).collect();
    let (mut parquet, (scratch, mut out)) = (Parquet::new(), file());
    for records in records.chunks(7001) {
        parquet.add(&mut out, records).unwrap();
        assert!(parquet.rows() < ROWS_MAX);
    }
    parquet.end_group(&mut out).unwrap();
    parquet.add(&mut out, &records[..3]).unwrap();
    parquet.end(&mut out, 100).unwrap();
    out.flush().unwrap();
    let file = fs::read(scratch.join("file")).unwrap();
    let (groups, rows) = read::rows(&file);
    assert_eq!(groups, [ROWS_MAX, 1000, 3]);
    assert_eq!(count(&file), rows.len());
    let expected = expected(&[&records[..], &records[..3]].concat());
    assert_eq!(rows.len(), expected.len());
    for (row, expected) in rows.iter().zip(&expected) {
        assert_eq!(row, expected);
    }
}

#[test]
fn a_file_without_rows_is_one() {
    let (scratch, mut out) = file();
    Parquet::new().end(&mut out, 1).unwrap();
    out.flush().unwrap();
    let file = fs::read(scratch.join("file")).unwrap();
    assert_eq!(read::rows(&file), (vec![], vec![]));
    assert_eq!(read::names(&file)[..3], ["first", "last", "kind"]);
}
