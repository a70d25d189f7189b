use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const READ_BYTES: usize = 64 << 10;

/// The maximum number of bytes of a job's output that are stored in memory. Bytes beyond this
/// number go to the job's file.
const MEMORY_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Spool {
    memory: Vec<u8>,
    /// The bytes at the start of `memory` that were already removed from the spool.
    used: usize,
    file: Option<File>,
    read: u64,
    written: u64,
}

impl Spool {
    /// If `file` is `None`, `push` fails when the bytes do not fit into memory.
    pub(super) fn new(file: Option<File>) -> Self {
        Self { file, ..Self::default() }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_in_memory() && self.bytes().len() + bytes.len() <= MEMORY_BYTES {
            self.forget_used();
            self.memory.extend_from_slice(bytes);
            return Ok(());
        }
        let full = || io::Error::new(io::ErrorKind::StorageFull, "there is no file for it");
        self.file.as_ref().ok_or_else(full)?.write_all_at(bytes, self.written)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.memory.get(self.used..).unwrap_or_default()
    }

    pub(super) fn is_in_memory(&self) -> bool {
        self.read == self.written
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.used = (self.used + bytes).min(self.memory.len());
    }

    /// Reads bytes from the file into memory. Returns false if the file has no unread bytes.
    pub(super) fn refill(&mut self) -> io::Result<bool> {
        let Some(file) = self.file.as_ref().filter(|_| self.read < self.written) else { return Ok(false) };
        let missing = usize::try_from(self.written - self.read).unwrap_or(READ_BYTES).min(READ_BYTES);
        self.memory.drain(..std::mem::take(&mut self.used));
        let before = self.memory.len();
        self.memory.resize(before + missing, 0);
        file.read_exact_at(&mut self.memory[before..], self.read)?;
        self.read += missing as u64;
        if self.read == self.written {
            // Emptying the file frees its disk space.
            file.set_len(0)?;
            (self.read, self.written) = (0, 0);
        }
        Ok(true)
    }

    fn forget_used(&mut self) {
        if self.used >= READ_BYTES || self.used == self.memory.len() {
            self.memory.drain(..std::mem::take(&mut self.used));
        }
    }
}

#[cfg(test)]
mod tests {
    use steerage_fixtures::scratch::Scratch;

    use super::*;

    #[test]
    fn bytes_come_out_in_order_and_memory_is_bounded() {
        let scratch = Scratch::new();
        let file = File::options().read(true).write(true).create_new(true).open(scratch.join("spool")).unwrap();
        let length = file.try_clone().unwrap();
        let mut spool = Spool::new(Some(file));
        let (mut next, mut expected) = (0_u32, 0_u32);
        for round in 0..40 {
            for _ in 0..20_000 {
                spool.push(&next.to_le_bytes()).unwrap();
                next += 1;
            }
            if round % 10 != 9 {
                continue;
            }
            loop {
                while let Some(word) = spool.bytes().first_chunk() {
                    assert_eq!(u32::from_le_bytes(*word), expected);
                    expected += 1;
                    spool.consume(4);
                }
                assert!(spool.memory.len() <= MEMORY_BYTES + READ_BYTES);
                if !spool.refill().unwrap() {
                    break;
                }
            }
        }
        assert_eq!((expected, length.metadata().unwrap().len()), (800_000, 0));
        let mut without = Spool::new(None);
        assert!(without.push(&vec![0; MEMORY_BYTES]).is_ok() && without.push(b"x").is_err());
    }
}
