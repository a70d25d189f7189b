//! Reads a file in place: directly in the kernel's page cache, without copying the bytes.
//!
//! The file is mapped piece by piece while the kernel grants a read lease, which a separate thread
//! takes. The thread returns the lease when another process wants to change the file. After the
//! lease was returned, or at the end of the file, the queue continues with read(2) at the same
//! record.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use steerage::device::{Blocks, Claim, FileWindows, LeaseRequest, LeasedFile, Shown};
use steerage_guard::capabilities;

use super::{BLOCKS, RECORD_BYTES_MAX};

/// The size of a window (a mapped part of a file), in bytes. Large windows are moved rarely, and
/// each move takes two system calls and empties the TLB. A process that wants to change the file
/// waits until the windows in use are copied.
pub(super) const WINDOW_BYTES: usize = 32 << 20;

/// The queue can read one window while frames in the other windows are still in use.
pub(super) const WINDOWS: usize = 4;

/// The bytes of a mapped file that one poll makes readable. Making the bytes readable takes less
/// than 30 us if they are in the page cache. If the bytes are not in the page cache, the poll waits
/// for the disk.
const STEP_BYTES: usize = 256 << 10;

/// A mapping begins at a page, and pages have at most 64 KiB.
const ALIGNMENT: u64 = 64 << 10;

const _: () = assert!(WINDOW_BYTES >= 2 * (RECORD_BYTES_MAX + ALIGNMENT as usize), "a record fits after the start");
const _: () = assert!(STEP_BYTES >= 2 * ALIGNMENT as usize, "a step reaches beyond the first record");

#[derive(Debug)]
pub(super) struct Windows {
    windows: Arc<FileWindows>,
    requests: Sender<LeaseRequest>,
}

impl Windows {
    /// The thread that takes the read leases has no capabilities.
    pub(super) fn new(windows: FileWindows) -> io::Result<Self> {
        let windows = Arc::new(windows);
        let requests = windows.serve(|| capabilities::drop_all().map_err(io::Error::other))?;
        Ok(Self { windows, requests })
    }

    /// Returns `None` if the file has to be read by read(2).
    pub(super) fn lease(&self, file: &Arc<File>) -> Option<InPlace> {
        let (to, lease) = mpsc::channel();
        self.requests.send((Arc::clone(file), to)).ok()?;
        let file = lease.recv().ok()??;
        Some(InPlace { windows: Arc::clone(&self.windows), file, window: None, is_last: false })
    }

    /// # Errors
    /// Returns an error if bytes were lost: see [`FileWindows::have_failed`].
    pub(super) fn check(&self) -> io::Result<()> {
        check(&self.windows)
    }
}

fn check(windows: &FileWindows) -> io::Result<()> {
    if windows.have_failed() {
        return Err(io::Error::other(
            "the kernel removed a part of the file from memory and could not read it again, so some packets were \
             handled as zeros",
        ));
    }
    Ok(())
}

#[derive(Debug)]
pub(super) struct InPlace {
    windows: Arc<FileWindows>,
    file: Arc<LeasedFile>,
    window: Option<Shows>,
    /// The file can be read in place only up to the end of the current window.
    is_last: bool,
}

#[derive(Clone, Copy, Debug)]
struct Shows {
    window: usize,
    /// The file offset of the window's first byte.
    from: u64,
    bytes: usize,
}

pub(super) enum Step {
    /// The bytes from `at` to `end` of the block can be read.
    Bytes { block: usize, at: usize, end: usize },
    /// Handlers still hold frames in all windows, or the windows are being copied.
    Later,
    /// The remaining bytes of the file have to be read with read(2).
    End,
}

impl InPlace {
    /// Makes more bytes readable, for the record at `offset` of the file.
    ///
    /// # Errors
    /// Fails in the same cases as [`Windows::check`].
    pub(super) fn step(&mut self, (blocks, claim): (&mut Blocks, &Claim), offset: u64) -> io::Result<Step> {
        check(&self.windows)?;
        let shows = match self.window {
            Some(shows) => shows,
            None => match self.begin_window((blocks, claim), offset) {
                Ok(shows) => shows,
                Err(step) => return Ok(step),
            },
        };
        match self.windows.extend((blocks, claim), shows.window, STEP_BYTES) {
            Shown::Bytes(0) if shows.from + shows.bytes as u64 >= self.file.bytes() => self.is_last = true,
            Shown::Bytes(0) => {
                self.window = None;
                return self.step((blocks, claim), offset);
            }
            Shown::Bytes(more) => {
                let shows = Shows { bytes: shows.bytes + more, ..shows };
                self.window = Some(shows);
                let at = (offset - shows.from) as usize;
                return Ok(Step::Bytes { block: BLOCKS + shows.window, at, end: shows.bytes.max(at) });
            }
            Shown::Later => return Ok(Step::Later),
            Shown::Gone => self.is_last = true,
        }
        // Windows in use are closed later, when another file is read in place.
        Ok(match self.windows.close((blocks, claim)) {
            Shown::Later => Step::Later,
            _ => Step::End,
        })
    }

    fn begin_window(&mut self, (blocks, claim): (&mut Blocks, &Claim), offset: u64) -> Result<Shows, Step> {
        if self.is_last {
            return Err(Step::End);
        }
        let free = (0..WINDOWS).find(|window| blocks.out(BLOCKS + window) == 0);
        let Some(window) = free else { return Err(Step::Later) };
        let from = offset - offset % ALIGNMENT;
        match self.windows.show((blocks, claim), window, &self.file, from) {
            Shown::Bytes(_) => {
                let shows = Shows { window, from, bytes: 0 };
                self.window = Some(shows);
                Ok(shows)
            }
            Shown::Later => Err(Step::Later),
            Shown::Gone => Err(Step::End),
        }
    }
}
