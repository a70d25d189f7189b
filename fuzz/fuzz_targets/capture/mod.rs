//! Reads bytes as a capture, in pieces, and checks what can be checked of any of them.

use std::io::{self, Read};

use steerage::testing::QueueTester;
use steerage::{Timestamp, device::Polled};
use steerage_device::capture::Capture;

/// Gives the bytes in pieces, with nothing to be had between them, as a pipe may.
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

/// All frames in pieces of so many bytes, and the error's line if it ended in one.
fn read(bytes: &[u8], piece: usize) -> (Vec<steerage::testing::Headed>, Option<String>) {
    let pieces = Pieces { bytes: bytes.to_vec(), at: 0, piece, silent: false };
    let mut tester = QueueTester::new(Box::new(Capture::from_reader("fuzz", pieces))).expect("memory");
    let mut frames = Vec::new();
    // Each poll reads a piece or finds nothing, or hands something over.
    for _ in 0..4 * bytes.len() + 100 {
        match tester.poll_with_headers(Timestamp::ZERO, 64) {
            Ok((Polled::Ended, last)) => {
                frames.extend(last);
                return (frames, None);
            }
            Ok((_, some)) => frames.extend(some),
            Err(error) => return (frames, Some(error.to_string())),
        }
    }
    panic!("it does not end");
}

/// Whatever the bytes are: it ends, hands over no more than there is, and the same however the bytes come.
pub fn check(bytes: &[u8]) {
    let (frames, error) = read(bytes, usize::MAX);
    assert!(frames.iter().map(|(_, frame)| frame.len()).sum::<usize>() <= bytes.len());
    for (header, frame) in &frames {
        let header = header.expect("a header before each frame");
        assert!(header.wire_len as usize >= frame.len());
    }
    if let Some(error) = &error {
        assert!(!error.contains('\n') && error.contains("at byte "), "{error}");
    }
    let piece = 1 + bytes.len() % 61;
    assert!((frames, error) == read(bytes, piece), "in pieces of {piece} it reads otherwise");
}
