use std::collections::VecDeque;
use std::io;

use super::disk::Disk;
use super::record_ledger::{Unwritten, Volume};

/// With a buffer of 64 KiB, the cost of a system call is negligible. Tests need several writes.
const BUFFER_BYTES: usize = if cfg!(test) { 4 << 10 } else { 64 << 10 };

/// Writes to a file or standard output in indivisible parts: rows, messages, or groups of rows.
///
/// The records of a part count as written when the kernel has accepted its last byte. If a write
/// fails, the file is truncated to the end of the last complete part.
pub(super) struct RecordWriter {
    disk: Disk,
    bytes: Vec<u8>,
    ends: VecDeque<(usize, Volume)>,
    unwritten: Unwritten,
    records: u64,
    has_failed: bool,
    /// True if the file may end in the middle of a part, so that no part may follow.
    is_damaged: bool,
}

impl RecordWriter {
    pub(super) fn new(disk: Disk, unwritten: Unwritten) -> Self {
        let (bytes, ends) = (Vec::with_capacity(BUFFER_BYTES), VecDeque::new());
        Self { disk, bytes, ends, unwritten, records: 0, has_failed: false, is_damaged: false }
    }

    pub(super) fn take(&mut self, records: Unwritten) {
        self.unwritten.add(records);
    }

    pub(super) fn part(&mut self, records: Volume, bytes: &[u8]) -> io::Result<()> {
        self.bytes.extend_from_slice(bytes);
        self.ends.push_back((self.bytes.len(), records));
        if self.bytes.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        let (mut at, mut whole) = (0, 0);
        let result = loop {
            if self.is_damaged {
                break Err(io::Error::other("it ends within a record"));
            }
            if at == self.bytes.len() {
                break Ok(());
            }
            match self.disk.write(&self.bytes[at..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => at += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
            while let Some((end, records)) = self.ends.front().copied().filter(|(end, _)| *end <= at) {
                self.ends.pop_front();
                whole = end;
                self.count(records);
            }
        };
        self.bytes.clear();
        self.ends.clear();
        result.map_err(|cause| self.fail(at - whole, cause))
    }

    fn count(&mut self, records: Volume) {
        self.unwritten.written(records);
        self.records += records.records;
        if records.records > 0 {
            self.disk.keep();
        }
    }

    fn fail(&mut self, excess: usize, cause: io::Error) -> io::Error {
        self.has_failed = true;
        let cut = if excess > 0 { self.disk.cut(excess) } else { Ok(()) };
        self.is_damaged |= cut.is_err();
        match cut {
            Ok(()) => cause,
            Err(error) => io::Error::new(
                cause.kind(),
                format!("{cause}; it ends within a record, because it could not be shortened: {error}"),
            ),
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    pub(super) fn records(&self) -> u64 {
        self.records
    }

    pub(super) fn disk(&self) -> &Disk {
        &self.disk
    }

    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.disk.finish()
    }
}
