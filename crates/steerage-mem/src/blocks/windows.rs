//! Windows: blocks into which parts of files are mapped.
//!
//! A file is mapped only while the process holds a lease on it. Before another process changes the
//! file, the thread of [`FileWindows::serve`] replaces the file's windows by copies and returns the
//! lease. The thread of `serve` runs until the last lent frame of a window has returned.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use super::bus_error::Watched;
use super::lease::LeasedFile;
use super::{Blocks, Claim};
use crate::mapping::{HUGE_BYTES, RegionError, map_small, move_over, unmap};
use crate::region::{Owner, Region};

const CHECK_EVERY: Duration = Duration::from_millis(50);

/// A request for a lease: the file, and the channel that gets the lease, or `None` if the kernel
/// grants no lease.
pub type LeaseRequest = (Arc<File>, Sender<Option<Arc<LeasedFile>>>);

/// The result of mapping a window or of making more of its bytes readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The window has this many more readable bytes.
    Bytes(usize),
    /// Another thread holds the lock on the windows. Try again later.
    Later,
    /// The caller must read the file without a window: the file's lease was returned, or the kernel
    /// cannot map or read the file.
    Gone,
}

/// The windows that belong to [`Blocks`].
#[derive(Debug)]
pub struct FileWindows {
    range: Arc<Range>,
    before: usize,
    window_bytes: usize,
    /// The owner of the blocks uses only `try_lock`, so it never waits.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    files: Vec<Arc<LeasedFile>>,
    windows: Box<[Window]>,
}

#[derive(Debug, Default)]
struct Window {
    /// `None` if no file is mapped into the window, or if a copy in memory has replaced the mapped
    /// part of the file.
    file: Option<Arc<LeasedFile>>,
    offset: u64,
    shown: usize,
}

#[derive(Debug)]
struct Range {
    base: NonNull<u8>,
    mapped: (usize, usize),
    watched: Option<Watched>,
}

// SAFETY: a range is only addresses. Code that uses the range is responsible for how it accesses
// the bytes.
unsafe impl Send for Range {}
// SAFETY: as above.
unsafe impl Sync for Range {}

impl Drop for Range {
    fn drop(&mut self) {
        self.watched = None;
        let (start, bytes) = self.mapped;
        // SAFETY: the whole range belongs to this value, and no code reaches it any more.
        unsafe { libc::munmap(start as *mut _, bytes) };
    }
}

impl Range {
    fn reserve(bytes: usize) -> io::Result<Self> {
        let more = bytes.checked_add(HUGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses affects no existing memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), more, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let aligned = (start as usize).next_multiple_of(HUGE_BYTES);
        let base = NonNull::new(aligned as *mut u8).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, mapped: (start as usize, more), watched: None })
    }

    /// # Safety
    /// The bytes lie in the range, and no code reads or writes them.
    unsafe fn map(&self, at: usize, bytes: usize, what: What<'_>) -> io::Result<()> {
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let (access, flags, file, offset) = match what {
            What::Memory => (libc::PROT_READ | libc::PROT_WRITE, anonymous, -1, 0),
            What::Nothing => (libc::PROT_NONE, anonymous | libc::MAP_NORESERVE, -1, 0),
            What::File(file, offset) => (libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), offset),
        };
        let offset = offset.try_into().map_err(|_| io::ErrorKind::FileTooLarge)?;
        // SAFETY: the caller's promise.
        let mapped = unsafe {
            let to = self.base.as_ptr().add(at).cast();
            libc::mmap(to, bytes, access, flags | libc::MAP_FIXED, file, offset)
        };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn advise(&self, at: usize, bytes: usize, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the advice of this module does not change the contents of memory.
        match unsafe { libc::madvise(self.base.as_ptr().add(at).cast(), bytes, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Replaces a window by a copy. Threads that read the first `used` bytes of the window see no
    /// change.
    fn copy(&self, at: usize, bytes: usize, used: usize) -> io::Result<()> {
        let (copy, _) = map_small(bytes)?;
        // SAFETY: the copy is new memory. Frames are read only in the first `used` bytes, which are
        // the same in both mappings.
        unsafe {
            let to = self.base.as_ptr().add(at);
            std::ptr::copy_nonoverlapping(to, copy.as_ptr(), used);
            move_over(copy.as_ptr(), to, bytes).inspect_err(|_| unmap(copy, bytes))
        }
    }
}

#[derive(Clone, Copy)]
enum What<'a> {
    Memory,
    Nothing,
    File(&'a File, u64),
}

impl Blocks {
    /// Maps `memory.0` blocks of `memory.1` bytes, followed by `windows.0` windows of `windows.1`
    /// bytes each. Windows take no memory of their own.
    ///
    /// # Errors
    /// [`RegionError`] if a size is zero or too large, if a window is smaller than a block or is no
    /// multiple of a huge page, or if the kernel has too little memory.
    pub fn map_with_windows(
        memory: (usize, usize),
        windows: (usize, usize),
    ) -> Result<(Self, Claim, FileWindows), RegionError> {
        let (count, block_bytes) = (memory.0.saturating_add(windows.0), windows.1);
        let wrong = RegionError::Size { pages: count, page_bytes: block_bytes };
        let bytes = count.checked_mul(block_bytes).filter(|_| block_bytes % HUGE_BYTES == 0 && memory.1 <= block_bytes);
        let Some(bytes) = bytes else { return Err(wrong) };
        let failed = |error| RegionError::Map { bytes, error };
        let mut range = Range::reserve(bytes).map_err(failed)?;
        // Map the memory blocks now, so that they cause no page faults later.
        let first_window = range.base.as_ptr() as usize + memory.0 * block_bytes;
        range.watched = Watched::new(first_window, windows.0 * block_bytes);
        let range = Arc::new(range);
        let huge = memory.1.next_multiple_of(HUGE_BYTES);
        for block in 0..memory.0 {
            let at = block * block_bytes;
            // SAFETY: the bytes lie in the range, and no other code knows the range.
            unsafe { range.map(at, huge, What::Memory) }.map_err(failed)?;
            // Without huge pages, reading the blocks is only a little slower.
            let _ = range.advise(at, huge, libc::MADV_HUGEPAGE);
        }
        let region = Region::foreign(range.base, count, block_bytes, Owner::new(Arc::clone(&range)))?;
        let (mut blocks, claim) = Self::of(region, memory.0 * huge);
        (blocks.memory_blocks, blocks.block_bytes) = memory;
        blocks.shown = vec![0; windows.0].into();
        let state = State { files: Vec::new(), windows: (0..windows.0).map(|_| Window::default()).collect() };
        let windows = FileWindows { range, before: memory.0, window_bytes: block_bytes, state: Mutex::new(state) };
        Ok((blocks, claim, windows))
    }
}

impl FileWindows {
    /// Starts a thread that first calls the function `begin`, and then requests and returns leases
    /// on files. The thread ends when the returned sender was dropped and no frame in a window is
    /// in use any more.
    ///
    /// # Errors
    /// Returns the error that `begin` returned, or the error if the thread cannot be started.
    pub fn serve(
        self: &Arc<Self>,
        begin: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<Sender<LeaseRequest>> {
        let (windows, (requests, to_do), (started, outcome)) = (Arc::clone(self), mpsc::channel(), mpsc::channel());
        thread::Builder::new().name("lease".to_owned()).spawn(move || {
            let begun = begin();
            let may_go_on = begun.is_ok();
            if started.send(begun).is_ok() && may_go_on {
                windows.serve_requests(&to_do);
            }
        })?;
        outcome.recv().map_err(|_| io::Error::other("the thread that returns leases has panicked"))??;
        Ok(requests)
    }

    fn serve_requests(&self, requests: &Receiver<LeaseRequest>) {
        let mut has_leases = false;
        loop {
            let request = match has_leases {
                true => requests.recv_timeout(CHECK_EVERY),
                false => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match request {
                Ok((file, to)) => drop(to.send(self.lease(file))),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) if has_leases => thread::sleep(CHECK_EVERY),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            has_leases = self.return_leases();
        }
    }

    /// Only the thread of [`serve`](Self::serve) may request a lease, because this thread must
    /// later return the lease.
    fn lease(&self, file: Arc<File>) -> Option<Arc<LeasedFile>> {
        self.range.watched.as_ref()?;
        let leased = LeasedFile::new(file)?;
        self.lock().files.push(Arc::clone(&leased));
        Some(leased)
    }

    /// Returns the leases of unused files. If another process waits for a file, copies replace the
    /// file's windows before the lease is returned. If there is no memory for the copies, a later
    /// call tries again. Returns true if frames may still lie in windows of leased files.
    fn return_leases(&self) -> bool {
        let mut state = self.lock();
        let State { files, windows } = &mut *state;
        files.retain(|file| {
            // One reference to a leased file is in the list `files`. Further references belong to
            // the queue and to the windows.
            let is_used = Arc::strong_count(file) > 1;
            if is_used && (file.is_undisturbed() || !self.copy_windows_of(file, windows)) {
                return true;
            }
            file.release();
            false
        });
        // Apart from the reference in `self`, only the region of the blocks refers to the address
        // range.
        !files.is_empty() && Arc::strong_count(&self.range) > 1
    }

    fn copy_windows_of(&self, file: &Arc<LeasedFile>, windows: &mut [Window]) -> bool {
        let shows = |window: &Window| window.file.as_ref().is_some_and(|shown| Arc::ptr_eq(shown, file));
        windows.iter_mut().enumerate().filter(|(_, window)| shows(window)).all(|(nth, window)| {
            let is_copied = self.range.copy(self.at(nth), self.window_bytes, window.shown).is_ok();
            if is_copied {
                window.file = None;
            }
            is_copied
        })
    }

    /// Returns true if the kernel failed to read a part of a window that was readable before.
    /// Handlers get zeros in place of the lost bytes.
    pub fn have_failed(&self) -> bool {
        self.range.watched.as_ref().is_some_and(Watched::has_failed)
    }

    /// Maps the part of `file` after `offset` (a multiple of the page size) into an unused window,
    /// to be [extended](Self::extend). First closes all windows that have no lent frames.
    pub fn show(
        &self,
        (blocks, claim): (&mut Blocks, &Claim),
        window: usize,
        file: &Arc<LeasedFile>,
        offset: u64,
    ) -> Shown {
        let Some(mut state) = self.try_lock(blocks, claim) else { return Shown::Later };
        let State { files, windows } = &mut *state;
        self.close_unused(blocks, windows);
        let is_leased = files.iter().any(|leased| Arc::ptr_eq(leased, file));
        if !is_leased || window >= windows.len() || blocks.out(self.before + window) > 0 {
            return Shown::Gone;
        }
        let what = What::File(file.file(), offset);
        // SAFETY: no frame of the window is lent, so no code reads the window.
        if unsafe { self.range.map(self.at(window), self.window_bytes, what) }.is_err() {
            return Shown::Gone;
        }
        // Makes the kernel read ahead in the file. Without reading ahead, reading a file is slower.
        let _ = self.range.advise(self.at(window), self.window_bytes, libc::MADV_SEQUENTIAL);
        windows[window] = Window { file: Some(Arc::clone(file)), offset, shown: 0 };
        Shown::Bytes(0)
    }

    /// Makes up to `most` (a multiple of the page size) more bytes of a window readable, or 0 bytes
    /// at the end of the window or of the file.
    pub fn extend(&self, (blocks, claim): (&mut Blocks, &Claim), window: usize, most: usize) -> Shown {
        let Some(mut state) = self.try_lock(blocks, claim) else { return Shown::Later };
        let Some(state) = state.windows.get_mut(window) else { return Shown::Gone };
        let Some(file) = &state.file else { return Shown::Gone };
        let left = usize::try_from(file.bytes().saturating_sub(state.offset)).unwrap_or(usize::MAX);
        let bytes = left.min(self.window_bytes).saturating_sub(state.shown).min(most);
        // Without the advice `MADV_POPULATE_READ`, reading a page that the kernel cannot provide
        // would raise SIGBUS.
        if bytes > 0 && self.range.advise(self.at(window) + state.shown, bytes, MADV_POPULATE_READ).is_err() {
            return Shown::Gone;
        }
        state.shown += bytes;
        blocks.shown[window] = state.shown as u32;
        Shown::Bytes(bytes)
    }

    /// Closes all windows that have no lent frames.
    pub fn close(&self, (blocks, claim): (&mut Blocks, &Claim)) -> Shown {
        let Some(mut state) = self.try_lock(blocks, claim) else { return Shown::Later };
        self.close_unused(blocks, &mut state.windows);
        Shown::Bytes(0)
    }

    fn close_unused(&self, blocks: &mut Blocks, windows: &mut [Window]) {
        for (nth, window) in windows.iter_mut().enumerate() {
            let is_open = blocks.shown[nth] > 0 || window.file.is_some();
            if !is_open || blocks.out(self.before + nth) > 0 {
                continue;
            }
            // SAFETY: no frame of the window is lent, and `blocks` is borrowed mutably, so no code
            // reads the window.
            let closed = unsafe { self.range.map(self.at(nth), self.window_bytes, What::Nothing) };
            if closed.is_ok() {
                blocks.shown[nth] = 0;
                *window = Window::default();
            }
        }
    }

    fn at(&self, window: usize) -> usize {
        (self.before + window) * self.window_bytes
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `None` if another thread holds the lock, or if the windows belong to other blocks.
    fn try_lock(&self, blocks: &Blocks, claim: &Claim) -> Option<MutexGuard<'_, State>> {
        if !blocks.are_claimed_by(claim) || blocks.region().base() != self.range.base {
            return None;
        }
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// `MADV_POPULATE_READ` exists since Linux 5.14. On kernels before 5.14, files are read without
/// mapping them.
const MADV_POPULATE_READ: libc::c_int = 22;

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::fs::OpenOptions;
    use std::io::{ErrorKind, Write as _};
    use std::os::unix::fs::OpenOptionsExt as _;
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::{Completion, FrameHeader, Memory, RecordForm, Spot};

    const PACKET_BYTES: usize = 1000;
    const RECORD_BYTES: usize = FrameHeader::BYTES + PACKET_BYTES;
    const STEP_BYTES: usize = 64 << 10;

    /// A capture file. Each byte of a packet is the number of the packet's record.
    struct Records(PathBuf);

    impl Records {
        fn new(name: &str, count: u32) -> Self {
            let path = std::env::temp_dir().join(format!("steerage-mem-{}-{name}", std::process::id()));
            let record = |number: u32| {
                let header = [number, 7, PACKET_BYTES as u32, 1500].map(u32::to_le_bytes).concat();
                [header, vec![number as u8; PACKET_BYTES]].concat()
            };
            // Another process writes the file. If this process wrote it, a child of another test could
            // hold the open file until the child executes its program, and the kernel grants no lease
            // of a file that is open for writing.
            let to = format!("of={}", path.display());
            let mut writer = Command::new("dd").args([&to, "status=none"]).stdin(Stdio::piped()).spawn().unwrap();
            let bytes: Vec<u8> = (0..count).flat_map(record).collect();
            writer.stdin.take().unwrap().write_all(&bytes).unwrap();
            assert!(writer.wait().unwrap().success(), "{to}");
            Self(path)
        }

        fn open(&self) -> Arc<File> {
            Arc::new(File::open(&self.0).unwrap())
        }

        /// Opens the file in nonblocking mode, so that the call does not wait until the file's
        /// lease is returned.
        fn open_to_write(&self) -> io::Result<File> {
            OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&self.0)
        }
    }

    impl Drop for Records {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// A file mapped into the first of two windows, with all readable records lent as frames.
    struct Lent {
        blocks: Blocks,
        claim: Claim,
        windows: FileWindows,
        file: Arc<LeasedFile>,
        frames: Vec<Completion>,
    }

    impl Lent {
        /// Returns `None` if the file system of the temporary folder has no leases.
        fn of(records: &Records) -> Option<Self> {
            let (mut blocks, claim, windows) = Blocks::map_with_windows((1, 4096), (2, HUGE_BYTES)).unwrap();
            let Some(file) = windows.lease(records.open()) else {
                assert!(std::env::var_os("CI").is_none(), "the kernel grants no lease");
                let folder = std::env::temp_dir();
                let _ = writeln!(io::stderr(), "skipped: the kernel grants no lease for files in {}", folder.display());
                return None;
            };
            assert_eq!(windows.show((&mut blocks, &claim), 0, &file, 0), Shown::Bytes(0));
            assert!(blocks.tail(&claim, 1).unwrap().read().is_empty());
            assert_eq!(windows.extend((&mut blocks, &claim), 0, STEP_BYTES), Shown::Bytes(STEP_BYTES));
            let mut frames = Vec::new();
            let mut tail = blocks.tail(&claim, 1).unwrap();
            assert!(tail.bytes().is_empty() && tail.read().len() == STEP_BYTES);
            let spot = |_: &[u8]| Ok(Spot::new(FrameHeader::BYTES, PACKET_BYTES, FrameHeader::from_bytes([9; 16])));
            assert_eq!(tail.lend_records((&mut frames, &mut 0), 1, None, || "outside", spot), Some("outside"));
            let form = Some(RecordForm::new(false, false));
            assert_eq!(tail.lend_records((&mut frames, &mut 0), 100, form, || "outside", spot), Some("outside"));
            assert_eq!(frames.len(), STEP_BYTES / RECORD_BYTES);
            Some(Self { blocks, claim, windows, file, frames })
        }

        fn check(&self) {
            let memory = Memory::new(Region::map(1, 64).unwrap().0, Some(self.blocks.region().clone()));
            for (number, frame) in self.frames.iter().enumerate() {
                assert!(memory.bytes(frame) == [number as u8; PACKET_BYTES], "frame {number}");
                let header = memory.header_of(frame).unwrap();
                assert_eq!((header.nanos, header.wire_len), (number as u64 * 1_000_000_000 + 7_000, 1500));
            }
        }

        fn extend(&mut self) -> Shown {
            self.windows.extend((&mut self.blocks, &self.claim), 0, STEP_BYTES)
        }
    }

    #[test]
    fn frames_of_a_file_stay_as_they_are_when_the_file_is_truncated() {
        let records = Records::new("truncated", 200);
        let Some(mut lent) = Lent::of(&records) else { return };
        lent.check();
        assert!(lent.windows.return_leases(), "nobody wants the file");
        assert_eq!(lent.extend(), Shown::Bytes(STEP_BYTES));
        assert_eq!(records.open_to_write().unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(!lent.windows.return_leases(), "the lease is still there");
        records.open_to_write().unwrap().set_len(0).unwrap();
        lent.check();
        assert_eq!(lent.blocks.readable(&lent.claim, 1).len(), 2 * STEP_BYTES);
        let file = Arc::clone(&lent.file);
        assert_eq!(lent.extend(), Shown::Gone);
        assert_eq!(lent.windows.show((&mut lent.blocks, &lent.claim), 1, &file, 0), Shown::Gone);
        assert!(!lent.windows.have_failed());
    }

    /// A handler still reads frames after the blocks, the file and the windows were dropped.
    #[test]
    fn a_lease_is_returned_as_long_as_there_are_frames() {
        let records = Records::new("outlived", 200);
        let Some(lent) = Lent::of(&records) else { return };
        let Lent { blocks, windows, file, frames, .. } = lent;
        let windows = Arc::new(windows);
        let requests = windows.serve(|| Ok(())).unwrap();
        let (to, lease) = mpsc::channel();
        requests.send((records.open(), to)).unwrap();
        assert!(lease.recv().unwrap().is_some());
        let memory = Memory::new(Region::map(1, 64).unwrap().0, Some(blocks.region().clone()));
        let serves = Arc::downgrade(&windows);
        drop((blocks, windows, requests, file));
        OpenOptions::new().write(true).open(&records.0).unwrap().set_len(0).unwrap();
        for (number, frame) in frames.iter().enumerate() {
            assert!(memory.bytes(frame) == [number as u8; PACKET_BYTES], "frame {number}");
        }
        drop(memory);
        while serves.strong_count() > 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn the_thread_of_leases_reports_how_it_began() {
        let (_blocks, _claim, windows) = Blocks::map_with_windows((1, 4096), (1, HUGE_BYTES)).unwrap();
        let error = Arc::new(windows).serve(|| Err(io::Error::other("planted"))).unwrap_err();
        assert_eq!(error.to_string(), "planted");
    }

    /// If zeros replaced a page of a memory block, packets would be lost without being counted.
    #[test]
    fn only_windows_are_watched() {
        let (blocks, _claim, windows) = Blocks::map_with_windows((2, 4096), (2, HUGE_BYTES)).unwrap();
        let base = blocks.region().base().as_ptr() as usize;
        let watched = windows.range.watched.as_ref().unwrap();
        let are_watched = [0, 1, 2, 3, 4].map(|block| watched.contains(base + block * HUGE_BYTES));
        assert_eq!(are_watched, [false, false, true, true, false]);
    }

    #[test]
    fn a_window_is_not_closed_before_its_frames_return() {
        let records = Records::new("closed", 200);
        let Some(mut lent) = Lent::of(&records) else { return };
        let file = Arc::clone(&lent.file);
        assert_eq!(lent.windows.close((&mut lent.blocks, &lent.claim)), Shown::Bytes(0));
        assert_eq!(lent.windows.show((&mut lent.blocks, &lent.claim), 0, &file, 0), Shown::Gone);
        lent.check();
        lent.frames.drain(..).for_each(|frame| lent.blocks.recycle(frame).unwrap());
        assert_eq!(lent.windows.close((&mut lent.blocks, &lent.claim)), Shown::Bytes(0));
        assert!(lent.blocks.readable(&lent.claim, 1).is_empty());
        drop((file, std::mem::replace(&mut lent.file, lent.windows.lease(Records::new("other", 1).open()).unwrap())));
        assert!(lent.windows.return_leases());
        assert!(records.open_to_write().is_ok());
    }

    #[test]
    fn bytes_that_cannot_be_read_again_are_reported() {
        let records = Records::new("lost", 200);
        let Some(mut lent) = Lent::of(&records) else { return };
        // Without a lease, another process can truncate the file, which unmaps pages.
        lent.file.release();
        records.open_to_write().unwrap().set_len(0).unwrap();
        assert_eq!(lent.extend(), Shown::Gone, "the kernel reads bytes that do not exist");
        assert!(!lent.windows.have_failed());
        assert!(lent.blocks.readable(&lent.claim, 1).iter().all(|byte| *byte == 0));
        assert!(lent.windows.have_failed());
    }

    #[test]
    fn a_file_that_is_open_for_writing_has_no_lease() {
        let records = Records::new("written", 1);
        let (_blocks, _claim, windows) = Blocks::map_with_windows((1, 4096), (1, HUGE_BYTES)).unwrap();
        let writer = records.open_to_write().unwrap();
        assert!(windows.lease(records.open()).is_none());
        drop(writer);
    }

    #[test]
    fn records_of_all_forms_have_the_same_header() {
        let words = [1_700_000_000_u32, 999_999, 60, 0];
        for (big_endian, nanos, expected) in [(false, false, 999_999_000), (true, true, 999_999)] {
            let bytes = words.map(|word| if big_endian { word.to_be_bytes() } else { word.to_le_bytes() }).concat();
            let header = RecordForm::new(big_endian, nanos).header_of(bytes.try_into().unwrap());
            assert_eq!((header.nanos, header.wire_len), (1_700_000_000_000_000_000 + expected, 60));
        }
    }
}
