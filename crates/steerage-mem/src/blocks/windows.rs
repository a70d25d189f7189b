//! Blocks that show parts of files.
//!
//! A window is mapped only from a file with a lease. Before another process changes the file, a
//! thread that calls [`FileWindows::serve`] replaces the windows by copies and returns the lease.
//! Frames of the windows stay valid, however long their handlers keep them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::bus_error::Watched;
use super::lease::LeasedFile;
use super::{Blocks, Claim};
use crate::mapping::{HUGE_BYTES, RegionError};
use crate::region::{Owner, Region};

/// The outcome of a step of the owner of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// This many more bytes of the window can be read.
    Bytes(usize),
    /// Another thread is working on the windows: try again later.
    Later,
    /// The file has to be read by other means: the lease was returned, or the kernel cannot map the
    /// file or read it.
    Gone,
}

/// The windows of some [`Blocks`].
#[derive(Debug)]
pub struct FileWindows {
    range: Arc<Range>,
    /// The number of blocks before the first window.
    before: usize,
    window_bytes: usize,
    /// The owner of the blocks only tries this lock, so it never waits.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// All files whose leases were not returned.
    files: Vec<Arc<LeasedFile>>,
    windows: Box<[Window]>,
}

#[derive(Debug, Default)]
struct Window {
    /// The file that is mapped. `None` if nothing is mapped, or if a copy has replaced the file.
    file: Option<Arc<LeasedFile>>,
    offset: u64,
    shown: usize,
}

/// The addresses of all blocks.
#[derive(Debug)]
struct Range {
    base: NonNull<u8>,
    mapped: (usize, usize),
    watched: Option<Watched>,
}

// SAFETY: a range is only addresses. The users of the range are responsible for how they access the
// bytes.
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
        Ok(Self { base, mapped: (start as usize, more), watched: Watched::new(aligned, bytes) })
    }

    /// Replaces the mapping of `bytes` bytes from `at` on: by memory, by a part of a file, or by
    /// addresses that cannot be read.
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

    /// Gives the kernel advice on a part of the range.
    fn advise(&self, at: usize, bytes: usize, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the advice of this module does not change the contents of memory.
        match unsafe { libc::madvise(self.base.as_ptr().add(at).cast(), bytes, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Replaces a mapping of `bytes` bytes by memory with the same first `used` bytes. Concurrent
    /// readers see the same bytes all the time.
    fn copy(&self, at: usize, bytes: usize, used: usize) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the first mapping is new. The copy reads bytes that are mapped and does not
        // overlap them. `mremap` replaces the window in one step, as seen by other threads: a reader
        // that faults meanwhile waits for the call to end.
        unsafe {
            let to = self.base.as_ptr().add(at);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let copy = libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0);
            if copy == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            std::ptr::copy_nonoverlapping(to, copy.cast(), used);
            let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            let moved = libc::mremap(copy, bytes, bytes, how, to.cast::<libc::c_void>());
            if moved == libc::MAP_FAILED {
                let error = io::Error::last_os_error();
                libc::munmap(copy, bytes);
                return Err(error);
            }
        }
        Ok(())
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
    /// bytes. Windows take no memory of their own, because they show pages of the page cache.
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
        let range = Arc::new(Range::reserve(bytes).map_err(failed)?);
        let huge = memory.1.next_multiple_of(HUGE_BYTES);
        for block in 0..memory.0 {
            let at = block * block_bytes;
            // SAFETY: the bytes lie in the range, and no other code knows the range.
            unsafe { range.map(at, huge, What::Memory) }.map_err(failed)?;
            // Without huge pages, reading is a little slower.
            let _ = range.advise(at, huge, libc::MADV_HUGEPAGE);
        }
        let region = Region::foreign(range.base, count, block_bytes, Owner::new(Arc::clone(&range)))?;
        let (mut blocks, claim) = Self::of(region, memory.0 * huge);
        (blocks.memory_blocks, blocks.memory_bytes) = memory;
        blocks.shown = vec![0; windows.0].into();
        let state = State { files: Vec::new(), windows: (0..windows.0).map(|_| Window::default()).collect() };
        let windows = FileWindows { range, before: memory.0, window_bytes: block_bytes, state: Mutex::new(state) };
        Ok((blocks, claim, windows))
    }
}

impl FileWindows {
    /// Requests a lease for a file: see [`LeasedFile`]. [`serve`](Self::serve) must be called
    /// regularly from now on, until it returns false.
    pub fn lease(&self, file: Arc<File>) -> Option<Arc<LeasedFile>> {
        self.range.watched.as_ref()?;
        let leased = LeasedFile::new(file)?;
        self.lock().files.push(Arc::clone(&leased));
        Some(leased)
    }

    /// Returns the leases for which other processes wait, after copies have replaced the windows of
    /// these files, and the leases of files that are not used any more. Returns whether files with a
    /// lease are left. If there is no memory for copies, the next call tries again.
    pub fn serve(&self) -> bool {
        let mut state = self.lock();
        let State { files, windows } = &mut *state;
        files.retain(|file| {
            // The list has one reference. The queue and the windows have the others.
            let is_used = Arc::strong_count(file) > 1;
            if is_used && (file.is_undisturbed() || !self.copy_windows_of(file, windows)) {
                return true;
            }
            file.release();
            false
        });
        !files.is_empty()
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

    /// Whether bytes of a window were lost, because the kernel could not read them again. Handlers
    /// have seen zeros instead.
    pub fn have_failed(&self) -> bool {
        self.range.watched.as_ref().is_some_and(Watched::has_failed)
    }

    /// Shows the part of `file` from `offset` on, a multiple of the page size, in a window without
    /// lent frames. Then no bytes of the window can be read: see [`extend`](Self::extend). All other
    /// windows without lent frames are closed.
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
        // The advice makes the kernel read ahead. Without the advice, reading is slower.
        let _ = self.range.advise(self.at(window), self.window_bytes, libc::MADV_SEQUENTIAL);
        windows[window] = Window { file: Some(Arc::clone(file)), offset, shown: 0 };
        Shown::Bytes(0)
    }

    /// Makes up to `most` more bytes of a window readable. `most` is a multiple of the page size.
    /// The kernel reads the bytes into the page cache if necessary. 0 bytes remain at the end of the
    /// window or of the file.
    pub fn extend(&self, (blocks, claim): (&mut Blocks, &Claim), window: usize, most: usize) -> Shown {
        let Some(mut state) = self.try_lock(blocks, claim) else { return Shown::Later };
        let Some(state) = state.windows.get_mut(window) else { return Shown::Gone };
        let Some(file) = &state.file else { return Shown::Gone };
        let left = usize::try_from(file.bytes().saturating_sub(state.offset)).unwrap_or(usize::MAX);
        let bytes = left.min(self.window_bytes).saturating_sub(state.shown).min(most);
        // Without the call, a page that cannot be read would raise SIGBUS.
        if bytes > 0 && self.range.advise(self.at(window) + state.shown, bytes, MADV_POPULATE_READ).is_err() {
            return Shown::Gone;
        }
        state.shown += bytes;
        blocks.shown[window] = state.shown as u32;
        Shown::Bytes(bytes)
    }

    /// Closes all windows without lent frames.
    pub fn close(&self, (blocks, claim): (&mut Blocks, &Claim)) -> Shown {
        let Some(mut state) = self.try_lock(blocks, claim) else { return Shown::Later };
        self.close_unused(blocks, &mut state.windows);
        Shown::Bytes(0)
    }

    fn close_unused(&self, blocks: &mut Blocks, windows: &mut [Window]) {
        for (nth, window) in windows.iter_mut().enumerate() {
            let is_open = blocks.shown[nth] > 0 || window.file.is_some();
            // SAFETY: no frame of the window is lent, and its bytes are no longer shown.
            if is_open
                && blocks.out(self.before + nth) == 0
                && unsafe { self.range.map(self.at(nth), self.window_bytes, What::Nothing) }.is_ok()
            {
                blocks.shown[nth] = 0;
                *window = Window::default();
            }
        }
    }

    /// The offset of a window in the range.
    fn at(&self, window: usize) -> usize {
        (self.before + window) * self.window_bytes
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, for the owner of the blocks. `None` if another thread has it, or if these are not
    /// the blocks of the windows.
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

/// Since Linux 5.14. Older kernels refuse the advice, and files are then read without mapping them.
const MADV_POPULATE_READ: libc::c_int = 22;
