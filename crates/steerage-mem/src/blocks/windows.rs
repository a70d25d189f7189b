//! Windows: blocks into which parts of files are mapped.
//!
//! A file is mapped into a window only while the process holds a lease on the file. Before another
//! process changes the file, the thread of [`FileWindows::serve`] replaces the file's windows by
//! copies and then returns the lease. The thread of `serve` runs until the last lent frame of a
//! window has returned. Therefore frames in windows (mapped parts of files) stay valid as long as
//! handlers keep them.

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

/// The time between two checks for processes that wait for the return of a file's lease.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// A request to the thread of [`FileWindows::serve`]: a file, and the channel through which the
/// thread returns the file with its lease. The thread sends `None` if the kernel grants no lease.
pub type LeaseRequest = (Arc<File>, Sender<Option<Arc<LeasedFile>>>);

/// The result of an attempt to map a window or to make more of its bytes readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The window (the mapped part of a file) has this many more readable bytes.
    Bytes(usize),
    /// Another thread holds the lock on the windows, so the caller should try the operation again
    /// later.
    Later,
    /// The file has to be read without a window (a mapped part of the file): the file's lease was
    /// returned, or the kernel cannot map or read the file.
    Gone,
}

/// The windows that belong to [`Blocks`].
#[derive(Debug)]
pub struct FileWindows {
    range: Arc<Range>,
    /// The number of memory blocks, which come before the first window (the first block that maps a
    /// part of a file).
    before: usize,
    window_bytes: usize,
    /// The owner of the blocks uses only `try_lock` for this lock, so the owner never waits.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// All files whose lease was not returned yet.
    files: Vec<Arc<LeasedFile>>,
    windows: Box<[Window]>,
}

#[derive(Debug, Default)]
struct Window {
    /// The file that is mapped. The field is `None` if no file is mapped into the window, or if a
    /// copy has replaced the mapped file.
    file: Option<Arc<LeasedFile>>,
    offset: u64,
    shown: usize,
}

/// The address range in which all blocks lie.
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
    /// Reserves addresses for `bytes` bytes, aligned for huge pages.
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

    /// Replaces the mapping of the `bytes` bytes after offset `at` by memory, by a part of a file,
    /// or by addresses that cannot be read.
    ///
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

    /// Gives the kernel advice about a part of the address range (madvise(2)).
    fn advise(&self, at: usize, bytes: usize, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the advice of this module does not change the contents of memory.
        match unsafe { libc::madvise(self.base.as_ptr().add(at).cast(), bytes, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Replaces a mapping of `bytes` bytes by new memory that begins with the same `used` bytes.
    /// Threads that read these bytes see the same contents before and after the replacement.
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
    /// Maps `memory.0` blocks of `memory.1` bytes, followed by `windows.0` windows (for parts of
    /// files) of `windows.1` bytes each. Windows take no memory of their own, because they map the
    /// pages of files in the kernel's page cache.
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
        // Memory blocks are mapped here, before their first use, so that they cause no page faults
        // later.
        let first_window = range.base.as_ptr() as usize + memory.0 * block_bytes;
        range.watched = Watched::new(first_window, windows.0 * block_bytes);
        let range = Arc::new(range);
        let huge = memory.1.next_multiple_of(HUGE_BYTES);
        for block in 0..memory.0 {
            let at = block * block_bytes;
            // SAFETY: the bytes lie in the range, and no other code knows the range.
            unsafe { range.map(at, huge, What::Memory) }.map_err(failed)?;
            // If the kernel provides no huge pages, the blocks still work, and reading them is only
            // a little slower.
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
    /// Starts a thread that requests leases for files and returns the leases. The new thread calls
    /// `begin` before anything else. The thread ends when the returned sender was dropped and no
    /// frame in a window (a mapped part of a file) is in use any more.
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
                // If the code that requested the lease no longer waits for the answer, the lease is
                // dropped.
                Ok((file, to)) => drop(to.send(self.lease(file))),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) if has_leases => thread::sleep(CHECK_EVERY),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            has_leases = self.return_leases();
        }
    }

    /// Requests a lease on a file: see [`LeasedFile`]. Only the thread of [`serve`](Self::serve)
    /// may request a lease, because this thread returns the lease.
    fn lease(&self, file: Arc<File>) -> Option<Arc<LeasedFile>> {
        self.range.watched.as_ref()?;
        let leased = LeasedFile::new(file)?;
        self.lock().files.push(Arc::clone(&leased));
        Some(leased)
    }

    /// Returns to the kernel the leases of the files that are not used any more. If another process
    /// waits for a file, copies replace the file's windows (mapped parts), and then the file's
    /// lease is returned too. If there is too little memory for the copies, the next call of this
    /// function tries again. Returns true if some files still have a lease: frames may then lie in
    /// the windows (mapped parts) of these files.
    fn return_leases(&self) -> bool {
        let mut state = self.lock();
        let State { files, windows } = &mut *state;
        files.retain(|file| {
            // The list has one reference. All further references to the file belong to the queue
            // and to the windows (mapped parts of the file).
            let is_used = Arc::strong_count(file) > 1;
            if is_used && (file.is_undisturbed() || !self.copy_windows_of(file, windows)) {
                return true;
            }
            file.release();
            false
        });
        // `self` has one reference to the address range. The other references belong to the region
        // of the blocks, which stays alive as long as a frame uses it.
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

    /// Returns true if bytes of a window (a mapped part of a file) were lost, because the kernel
    /// could not read them again. Handlers get zeros in place of bytes of a file that the kernel
    /// could not read again.
    pub fn have_failed(&self) -> bool {
        self.range.watched.as_ref().is_some_and(Watched::has_failed)
    }

    /// Maps the part of `file` after `offset` into a window (a block for mapped parts of files)
    /// that has no lent frames. `offset` is a multiple of the page size. No bytes of the window can
    /// be read yet: see [`extend`](Self::extend). Also closes all other windows that have no lent
    /// frames.
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
        // The advice `MADV_SEQUENTIAL` makes the kernel read the file ahead. Without the advice
        // `MADV_SEQUENTIAL`, reading is slower.
        let _ = self.range.advise(self.at(window), self.window_bytes, libc::MADV_SEQUENTIAL);
        windows[window] = Window { file: Some(Arc::clone(file)), offset, shown: 0 };
        Shown::Bytes(0)
    }

    /// Makes up to `most` more bytes of a window (a mapped part of a file) readable by the owner of
    /// the blocks. `most` is a multiple of the page size. If necessary, the kernel reads the bytes
    /// from the file into the page cache. At the end of the window or of the file, the result is 0
    /// bytes.
    pub fn extend(&self, (blocks, claim): (&mut Blocks, &Claim), window: usize, most: usize) -> Shown {
        let Some(mut state) = self.try_lock(blocks, claim) else { return Shown::Later };
        let Some(state) = state.windows.get_mut(window) else { return Shown::Gone };
        let Some(file) = &state.file else { return Shown::Gone };
        let left = usize::try_from(file.bytes().saturating_sub(state.offset)).unwrap_or(usize::MAX);
        let bytes = left.min(self.window_bytes).saturating_sub(state.shown).min(most);
        // Without this `madvise` call, reading a page that the kernel cannot provide would raise
        // SIGBUS.
        if bytes > 0 && self.range.advise(self.at(window) + state.shown, bytes, MADV_POPULATE_READ).is_err() {
            return Shown::Gone;
        }
        state.shown += bytes;
        blocks.shown[window] = state.shown as u32;
        Shown::Bytes(bytes)
    }

    /// Closes all windows (mapped parts of files) that have no lent frames.
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

    /// The offset of a window in the address range of all blocks.
    fn at(&self, window: usize) -> usize {
        (self.before + window) * self.window_bytes
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state of the windows (mapped parts of files) for the owner of the blocks. Returns
    /// `None` if another thread holds the lock, or if the windows belong to other blocks.
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

/// Since Linux 5.14. Kernels before Linux 5.14 do not support the advice `MADV_POPULATE_READ`. If
/// the kernel does not support `MADV_POPULATE_READ`, files are read without mapping them.
const MADV_POPULATE_READ: libc::c_int = 22;

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::fs::OpenOptions;
    use std::io::{ErrorKind, Write as _};
    use std::os::unix::fs::OpenOptionsExt as _;
    use std::path::PathBuf;

    use super::*;
    use crate::{Completion, FrameHeader, Memory, RecordForm, Spot};

    const PACKET_BYTES: usize = 1000;
    const RECORD_BYTES: usize = FrameHeader::BYTES + PACKET_BYTES;
    const STEP_BYTES: usize = 64 << 10;

    /// A file of records. The value of each byte of a packet is the number of the packet's record.
    /// The file is deleted when this value is dropped.
    struct Records(PathBuf);

    impl Records {
        fn new(name: &str, count: u32) -> Self {
            let path = std::env::temp_dir().join(format!("steerage-mem-{}-{name}", std::process::id()));
            let record = |number: u32| {
                let header = [number, 7, PACKET_BYTES as u32, 1500].map(u32::to_le_bytes).concat();
                [header, vec![number as u8; PACKET_BYTES]].concat()
            };
            std::fs::write(&path, (0..count).flat_map(record).collect::<Vec<u8>>()).unwrap();
            Self(path)
        }

        fn open(&self) -> Arc<File> {
            Arc::new(File::open(&self.0).unwrap())
        }

        /// Opens the file for writing, without waiting for a lease.
        fn open_to_write(&self) -> io::Result<File> {
            OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&self.0)
        }
    }

    impl Drop for Records {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// Creates blocks with two windows, maps a file into the first window, and lends all readable
    /// records as frames.
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

    /// In this test, a handler on another CPU still reads frames after the blocks, the file and the
    /// windows were dropped, and no further request for a lease can arrive.
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
        // A process that opens the file for writing waits until the lease was returned.
        OpenOptions::new().write(true).open(&records.0).unwrap().set_len(0).unwrap();
        for (number, frame) in frames.iter().enumerate() {
            assert!(memory.bytes(frame) == [number as u8; PACKET_BYTES], "frame {number}");
        }
        drop(memory);
        // The thread ends.
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

    /// Only windows are watched. If the signal handler replaced a page of a memory block by zeros,
    /// packets would be lost without being counted.
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
        // The file is not used any more, so its lease is returned.
        drop((file, std::mem::replace(&mut lent.file, lent.windows.lease(Records::new("other", 1).open()).unwrap())));
        assert!(lent.windows.return_leases());
        assert!(records.open_to_write().is_ok());
    }

    #[test]
    fn bytes_that_cannot_be_read_again_are_reported() {
        let records = Records::new("lost", 200);
        let Some(mut lent) = Lent::of(&records) else { return };
        // Without a lease, another process can truncate the file, which removes pages from the
        // mapping.
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
