//! Fuzz targets for capture files, uncompressed and compressed.

use std::cell::RefCell;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use steerage::device::{Capabilities, Completions, Opened, Polled, Region, RxQueue};
use steerage::testing::{Headed, QueueTester};
use steerage::{DeviceError, Timestamp};
use steerage_capture::Capture;

/// The maximum number of polls of a compressed capture, which may unpack to a thousand times its
/// size.
const PACKED_POLLS_MAX: usize = 64;

const MAGICS: [u32; 4] = [0xa1b2_c3d4, 0xa1b2_3c4d, 0xd4c3_b2a1, 0x4d3c_b2a1];
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

pub(crate) fn pcap(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let mut file = MAGICS[usize::from(choice & 3)].to_le_bytes().to_vec();
    if choice & 4 == 0 {
        // The header has a valid version, because the fuzzer finds invalid versions by itself.
        file.extend(if choice & 2 == 0 { [2, 0, 4, 0] } else { [0, 2, 0, 4] });
    }
    file.extend(rest);
    check(&file);
}

/// Reads any bytes after the section header of a pcapng file, in both byte orders.
pub(crate) fn pcapng(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let order = |number: u32| if choice & 1 == 0 { number.to_le_bytes() } else { number.to_be_bytes() };
    let version = if choice & 1 == 0 { 0x0000_0001 } else { 0x0001_0000 };
    let mut file: Vec<u8> =
        [0x0a0d_0d0a, 28, 0x1a2b_3c4d, version, u32::MAX, u32::MAX, 28].into_iter().flat_map(order).collect();
    file.extend(rest);
    check(&file);
}

pub(crate) fn gzip(bytes: &[u8]) {
    check_packed(&[&GZIP, bytes].concat());
}

pub(crate) fn zstd(bytes: &[u8]) {
    check_packed(&[&ZSTD, bytes].concat());
}

/// Checks that reading a capture ends, delivers no more bytes than the file has, and does not
/// depend on the size of the pieces in which the bytes arrive.
fn check(bytes: &[u8]) {
    // Each poll reads a piece, delivers frames, or finds no data.
    let polls = 3 * bytes.len() + 100;
    let Some((frames, error)) = read(bytes, usize::MAX, polls) else { panic!("it does not end") };
    assert!(frames.iter().map(|(_, frame)| frame.len()).sum::<usize>() <= bytes.len());
    for (header, frame) in &frames {
        let header = header.expect("a header before each frame");
        assert!(header.wire_len as usize >= frame.len());
    }
    if let Some(error) = &error {
        assert!(!error.contains('\n') && error.contains("at byte "), "{error}");
    }
    let piece = piece_of(bytes);
    assert!(Some((frames, error)) == read(bytes, piece, polls), "in pieces of {piece} it reads otherwise");
}

/// A capture that ends within [`PACKED_POLLS_MAX`] polls must read the same in small pieces.
fn check_packed(bytes: &[u8]) {
    let Some(read_whole) = read(bytes, usize::MAX, PACKED_POLLS_MAX) else { return };
    if let Some(error) = &read_whole.1 {
        assert!(!error.contains('\n'), "{error}");
    }
    let piece = piece_of(bytes);
    let in_pieces = read(bytes, piece, 16 * (4 * bytes.len() + 100) + PACKED_POLLS_MAX);
    let Some(in_pieces) = in_pieces else { return };
    let is_unpacking =
        |(_, error): &(_, Option<String>)| error.as_ref().is_some_and(|error| error.contains("cannot unpack"));
    if is_unpacking(&read_whole) || is_unpacking(&in_pieces) {
        // If decompression fails, the output of the decompressor's last call is lost. If the data
        // arrives in smaller pieces, the reader may find an error of the capture format first.
        assert!(read_whole.1.is_some() && in_pieces.1.is_some(), "in pieces of {piece} one of them is sound");
        let (few, many) = if in_pieces.0.len() < read_whole.0.len() {
            (&in_pieces.0, &read_whole.0)
        } else {
            (&read_whole.0, &in_pieces.0)
        };
        assert!(many.starts_with(few), "in pieces of {piece} it reads other frames");
        return;
    }
    assert!(in_pieces.0 == read_whole.0, "in pieces of {piece} it reads other frames");
    // The position in the error message depends on the length of the pieces.
    let (one, other) = (in_pieces.1.map(without_numbers), read_whole.1.map(without_numbers));
    assert_eq!(one, other, "in pieces of {piece}");
}

/// Returns the length of a piece. Only a quarter of the inputs are read in small pieces, because
/// small pieces need more polls.
fn piece_of(bytes: &[u8]) -> usize {
    let len = bytes.len();
    if len.is_multiple_of(4) { 1 + len % 61 } else { 64 + len % 191 }
}

fn without_numbers(mut text: String) -> String {
    text.retain(|c| !c.is_ascii_digit());
    text
}

/// A reader of which every second call of `read` returns no bytes, as a pipe may do.
struct Pieces {
    bytes: Vec<u8>,
    at: usize,
    piece: usize,
    silent: bool,
}

impl Read for Pieces {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.silent = !self.silent;
        if self.silent && self.at < self.bytes.len() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let len = self.piece.min(to.len()).min(self.bytes.len() - self.at);
        to[..len].copy_from_slice(&self.bytes[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

/// A capture that is reused for each input, because allocating a capture takes much longer than
/// reading a small file.
#[derive(Clone)]
struct Again(Arc<Mutex<Capture>>);

impl Again {
    fn capture(&self) -> MutexGuard<'_, Capture> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RxQueue for Again {
    fn capabilities(&self) -> Capabilities {
        self.capture().capabilities()
    }

    fn open(&mut self, region: &Arc<Region>) -> Result<Opened, DeviceError> {
        self.capture().open(region)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        self.capture().poll(out, budget)
    }
}

thread_local! {
    static READER: RefCell<Option<(Again, QueueTester)>> = const { RefCell::new(None) };
}

/// Returns `None` after more than `polls` polls, not counting polls that find no data.
fn read(bytes: &[u8], piece: usize, polls: usize) -> Option<(Vec<Headed>, Option<String>)> {
    let pieces = Pieces { bytes: bytes.to_vec(), at: 0, piece, silent: false };
    READER.with_borrow_mut(|reader| {
        let (again, tester) = reader.get_or_insert_with(|| {
            let again = Again(Arc::new(Mutex::new(Capture::from_reader("fuzz", io::empty()))));
            let tester = QueueTester::new(Box::new(again.clone())).expect("memory");
            (again, tester)
        });
        again.capture().read_anew(pieces);
        let mut frames = Vec::new();
        let mut left = polls;
        while left > 0 {
            match tester.poll_with_headers(Timestamp::ZERO, 64) {
                Ok((Polled::Ended, last)) => {
                    frames.extend(last);
                    return Some((frames, None));
                }
                Ok((Polled::Drained, some)) => {
                    frames.extend(some);
                    std::thread::yield_now();
                }
                Ok((_, some)) => {
                    frames.extend(some);
                    left -= 1;
                }
                Err(error) => return Some((frames, Some(error.to_string()))),
            }
        }
        None
    })
}
