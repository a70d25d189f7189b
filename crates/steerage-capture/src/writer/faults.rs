//! Tests writing to a simulated disk that is full after any number of bytes. The file must contain
//! exactly the packets that count as sent.

use steerage::{LinkType, device::TxAccount};
use steerage_fixtures::scratch::Scratch;
use steerage_guard::file::FilePattern;
use steerage_ledger::TxLedger;

use super::super::encode::PacketHead;
use super::thread::fault;
use super::*;

const LENGTHS: [usize; 5] = [60, 0, 1, 150, 33];
const BATCHES: u64 = 2;

fn options(format: StreamFormat) -> WriterOptions {
    WriterOptions::new(format, 1 << 20)
}

/// Returns the bytes of the file, and the number of packets that count as sent.
fn write(format: StreamFormat, room: usize, for_good: bool) -> (Vec<u8>, u64) {
    let scratch = Scratch::new();
    let file = Arc::new(File::create(scratch.join("file")).unwrap());
    let (writer, ledger) = (Writer::new("test".to_owned(), options(format)), Arc::new(TxLedger::deferring(1)));
    let lane = writer.lane();
    lane.set_account(TxAccount::new(&ledger));
    let interface = format.interface(LinkType::ETHERNET, 1);
    writer.append(&format.file_head());
    writer.append(&format.interface_head(interface));
    let source = TxSource::queue(0);
    for _ in 0..BATCHES {
        let mut entry = writer.begin(&lane, source).unwrap();
        for captured in LENGTHS {
            let head = PacketHead { interface: (0, interface), nanos: 1, captured, wire: captured };
            format.packet(entry.blocks(), head, [&vec![7; captured][..]].into_iter());
            entry.count(captured as u64);
        }
    }
    let packets = BATCHES * LENGTHS.len() as u64;
    ledger.deferred.as_ref().unwrap().take(source, packets);
    writer.leave(&lane, b"");

    fault::fill_after(room, for_good);
    Writing::new(file, 0, false).run(&writer);
    fault::fill_after(usize::MAX, false);
    let settled = ledger.deferred.as_ref().unwrap().settled()[0];
    assert_eq!((settled.packets + settled.dropped.total(), ledger.held()), (packets, 0), "{format:?} {room}");
    assert_eq!(lane.held.load(Ordering::Relaxed), 0);
    assert_eq!(writer.failure().is_some(), settled.packets < packets, "{format:?} {room}");
    (std::fs::read(scratch.join("file")).unwrap(), settled.packets)
}

#[test]
fn a_file_has_the_packets_that_count_as_sent() {
    for format in [StreamFormat::Pcap, StreamFormat::PcapNanos, StreamFormat::PcapngMicros, StreamFormat::Pcapng] {
        let (all, _) = write(format, usize::MAX, false);
        let interface = format.interface_head(format.interface(LinkType::ETHERNET, 1));
        let head = format.file_head().len() + interface.len();
        for room in 0..all.len() {
            let (bytes, sent) = write(format, room, false);
            assert_eq!(bytes, all[..bytes.len()], "{format:?} {room}");
            let packets = bytes.get(head..).unwrap_or_default();
            let whole = format.whole(packets);
            assert_eq!((whole.packets, whole.len), (sent, packets.len()), "{format:?} {room}");
            assert_eq!(bytes.len() >= head, room >= head, "{format:?} {room}");
            // If the file cannot be cut, an incomplete packet remains at its end.
            let (uncut, counted) = write(format, room, true);
            assert_eq!((uncut.len(), counted), (room, sent));
        }
    }
}

#[test]
fn a_head_that_cannot_be_written_is_an_error() {
    let writer = Writer::new("test".to_owned(), options(StreamFormat::Pcap));
    let ledger = Arc::new(TxLedger::deferring(1));
    *writer.file() = Some(Arc::new(File::options().write(true).open("/dev/full").unwrap()));
    let lane = writer.lane();
    lane.set_account(TxAccount::new(&ledger));
    writer.leave(&lane, b"head");
    assert!(ledger.error().is_some_and(|error| error.contains("No space left")));
}

/// Returns the bytes of all files, and the number of packets that count as sent.
fn write_rotating(format: StreamFormat, room: usize) -> (Vec<Vec<u8>>, u64) {
    const SECOND: u64 = 1_000_000_000;
    let scratch = Scratch::new();
    let pattern = FilePattern::parse(scratch.join("%s").to_str().unwrap()).unwrap();
    let rotate = Rotate::Every(Duration::from_secs(2));
    let writer = Writer::new("test".to_owned(), options(format)).rotating(rotate);
    let ledger = Arc::new(TxLedger::deferring(1));
    let lane = writer.lane();
    lane.set_account(TxAccount::new(&ledger));
    let interface = format.interface(LinkType::ETHERNET, 0);
    writer.append(&format.file_head());
    writer.append(&format.interface_head(interface));
    let source = TxSource::queue(0);
    let mut nanos = SECOND;
    for _ in 0..BATCHES {
        let mut entry = writer.begin(&lane, source).unwrap();
        for captured in LENGTHS {
            entry.place(nanos, || format.packet_len(captured));
            let head = PacketHead { interface: (0, interface), nanos, captured, wire: captured };
            format.packet(entry.blocks(), head, [&vec![7; captured][..]].into_iter());
            entry.count(captured as u64);
            nanos += SECOND;
        }
    }
    let packets = BATCHES * LENGTHS.len() as u64;
    ledger.deferred.as_ref().unwrap().take(source, packets);
    writer.leave(&lane, b"not written, because a file begins with its first packet");

    fault::fill_after(room, false);
    Writing::series(FileSeries::new(pattern, None).unwrap()).run(&writer);
    fault::fill_after(usize::MAX, false);
    let settled = ledger.deferred.as_ref().unwrap().settled()[0];
    assert_eq!((settled.packets + settled.dropped.total(), ledger.held()), (packets, 0), "{format:?} {room}");
    assert_eq!(lane.held.load(Ordering::Relaxed), 0);
    let names = (0..=BATCHES * LENGTHS.len() as u64 / 2).map(|nth| scratch.join((2 * nth).to_string()));
    (names.map_while(|name| std::fs::read(name).ok()).collect(), settled.packets)
}

#[test]
fn files_that_rotate_have_the_packets_that_count_as_sent() {
    for format in [StreamFormat::PcapNanos, StreamFormat::Pcapng] {
        let head = format.file_head().len() + format.interface_head(format.interface(LinkType::ETHERNET, 0)).len();
        let (all, sent) = write_rotating(format, usize::MAX);
        assert_eq!((all.len(), sent), (6, BATCHES * LENGTHS.len() as u64));
        let length = all.iter().map(Vec::len).sum::<usize>() + all.len();
        for room in (0..=length).step_by(3) {
            let (files, sent) = write_rotating(format, room);
            let whole = files.iter().map(|file| {
                let packets = file.get(head..).unwrap_or_default();
                let whole = format.whole(packets);
                assert_eq!(whole.len, packets.len(), "{format:?} {room}");
                whole.packets
            });
            assert_eq!(whole.sum::<u64>(), sent, "{format:?} {room}");
        }
    }
}
