//! Memory from the kernel, in huge pages if the kernel has any.
//!
//! Under Miri, Rust's allocator provides the memory, with small "huge pages" to save time.

use std::fmt;
use std::io;
use std::ptr::NonNull;

#[cfg(miri)]
pub(crate) use by_allocator::{map_anonymous, map_small, map_transparent, map_unused, unmap};

/// The size in bytes of a huge page on all supported machines. The size of a region is a multiple
/// of `HUGE_BYTES`.
pub(crate) const HUGE_BYTES: usize = if cfg!(miri) { 4096 } else { 2 << 20 };

/// The kind of pages that the kernel used for the packet memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backing {
    /// Reserved 2 MiB pages (`vm.nr_hugepages`).
    HugePages,
    /// 2 MiB pages (transparent huge pages) as far as the kernel finds some, else 4 KiB pages.
    TransparentHugePages,
    /// 4 KiB pages only.
    #[default]
    SmallPages,
    /// Memory that a device mapped.
    Foreign,
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HugePages => "huge pages",
            Self::TransparentHugePages => "transparent huge pages",
            Self::SmallPages => "small pages",
            Self::Foreign => "foreign memory",
        })
    }
}

/// The reason why a region could not be mapped.
///
/// ```
/// use steerage_mem::Region;
///
/// let error = Region::map(0, 2048).unwrap_err();
/// assert_eq!(error.to_string(), "cannot map 0 pages of 2048 bytes: ask for at least one of at least one byte");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum RegionError {
    /// No pages or pages of 0 bytes were requested, or the total size cannot be addressed.
    Size {
        /// The requested number of pages.
        pages: usize,
        /// The requested size of a page, in bytes.
        page_bytes: usize,
    },
    /// The process has used all of its 2^32 page numbers. No page number is used twice.
    OutOfNumbers,
    /// The kernel refused the mapping, because it has too little memory.
    Map {
        /// The requested size, in bytes.
        bytes: usize,
        /// The kernel's error.
        error: io::Error,
    },
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { pages, page_bytes } => {
                write!(f, "cannot map {pages} pages of {page_bytes} bytes: ask for at least one of at least one byte")
            }
            Self::OutOfNumbers => {
                f.write_str("this process has mapped 2^32 pages in its life and has no numbers left: restart it")
            }
            Self::Map { bytes, error } => {
                write!(f, "cannot map {bytes} bytes of packet memory: {error}; use fewer queues, CPUs or backlog slots")
            }
        }
    }
}

impl std::error::Error for RegionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Map { error, .. } => Some(error),
            _ => None,
        }
    }
}

#[cfg(miri)]
mod by_allocator {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    use super::*;

    fn layout(bytes: usize) -> io::Result<Layout> {
        Layout::from_size_align(bytes, 4096).map_err(|_| io::ErrorKind::OutOfMemory.into())
    }

    pub(crate) fn map_anonymous(bytes: usize) -> Result<(NonNull<u8>, Backing, usize), RegionError> {
        let (base, mapped) = map_small(bytes).map_err(|error| RegionError::Map { bytes, error })?;
        Ok((base, Backing::SmallPages, mapped))
    }

    pub(crate) fn map_transparent(bytes: usize) -> io::Result<(NonNull<u8>, usize)> {
        map_small(bytes)
    }

    pub(crate) fn map_small(bytes: usize) -> io::Result<(NonNull<u8>, usize)> {
        // SAFETY: the size is not 0, because no caller requests 0 bytes. `mmap` would not provide 0
        // bytes either.
        let base = unsafe { alloc_zeroed(layout(bytes)?) };
        Ok((NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?, bytes))
    }

    pub(crate) fn map_unused(bytes: usize) -> io::Result<(NonNull<u8>, usize)> {
        map_small(bytes)
    }

    /// # Safety
    /// The rules are those of the `unmap` function of builds without Miri.
    pub(crate) unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise; the memory was allocated with the same layout.
        layout(bytes).into_iter().for_each(|layout| unsafe { dealloc(base.as_ptr(), layout) });
    }
}

/// Maps reserved huge pages if possible, or else memory that is aligned for transparent huge pages.
#[cfg(not(miri))]
pub(crate) fn map_anonymous(bytes: usize) -> Result<(NonNull<u8>, Backing, usize), RegionError> {
    if let Ok(base) = mmap(bytes, libc::MAP_HUGETLB) {
        return Ok((base, Backing::HugePages, bytes));
    }
    let (base, advised) = map_aligned(bytes, 0).map_err(|error| RegionError::Map { bytes, error })?;
    let never = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .map_or(true, |enabled| enabled.contains("[never]"));
    let backing = if advised && !never { Backing::TransparentHugePages } else { Backing::SmallPages };
    Ok((base, backing, bytes))
}

/// Maps memory for transparent huge pages. Untouched pages take no memory. Returns the address and
/// the number of bytes to [unmap].
#[cfg(not(miri))]
pub(crate) fn map_transparent(bytes: usize) -> io::Result<(NonNull<u8>, usize)> {
    let bytes = bytes.checked_next_multiple_of(HUGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
    map_aligned(bytes, libc::MAP_NORESERVE).map(|(base, _)| (base, bytes))
}

#[cfg(not(miri))]
pub(crate) fn map_small(bytes: usize) -> io::Result<(NonNull<u8>, usize)> {
    mmap(bytes, 0).map(|base| (base, bytes))
}

/// The size in bytes of the reserved huge pages that no program uses yet.
pub(crate) fn huge_pages_free() -> u64 {
    let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    let pages = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    if cfg!(miri) { 0 } else { pages.unwrap_or(0).saturating_mul(HUGE_BYTES as u64) }
}

/// Maps small pages that take memory only when they are touched.
#[cfg(not(miri))]
#[cfg_attr(loom, expect(dead_code, reason = "loom has slots of its own"))]
pub(crate) fn map_unused(bytes: usize) -> io::Result<(NonNull<u8>, usize)> {
    let base = mmap(bytes, libc::MAP_NORESERVE)?;
    // SAFETY: this function made the mapping. `madvise` is only advice: if the call fails, the
    // kernel may provide a huge page on access.
    unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_NOHUGEPAGE) };
    Ok((base, bytes))
}

/// # Safety
/// `base` and `bytes` were returned by one of the mapping functions above, and no reference to the
/// memory exists any more.
#[cfg(not(miri))]
pub(crate) unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(base.as_ptr().cast(), bytes) };
}

/// Moves a mapping from the address `from` to `to` in one atomic step for threads that read at
/// `to`. Aborts the process if the kernel fails after it has removed the old mapping.
///
/// # Safety
/// Both ranges are mapped, do not overlap, and belong to the caller. No code reads at `from` any
/// more. No code reads at `to`, unless both ranges have the same contents in the bytes that are
/// read.
///
/// # Errors
/// Fails if the kernel has too little memory. After an error, both mappings are unchanged.
pub unsafe fn move_over(from: *mut u8, to: *mut u8, bytes: usize) -> io::Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller's promise.
    let moved = unsafe { libc::mremap(from.cast(), bytes, bytes, flags, to.cast::<libc::c_void>()) };
    if moved != libc::MAP_FAILED {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    // SAFETY: `mincore` reads no memory and writes one byte, because a page has at least 4 KiB.
    if unsafe { libc::mincore(to.cast(), 4096, [0_u8].as_mut_ptr()) } != 0 {
        // The old mapping at `to` is gone, and another thread may be about to read at `to`.
        std::process::abort();
    }
    Err(error)
}

/// Maps memory that is aligned to huge pages. The returned flag is true if the kernel accepts the
/// advice to use huge pages.
#[cfg(not(miri))]
fn map_aligned(bytes: usize, extra: libc::c_int) -> io::Result<(NonNull<u8>, bool)> {
    // The mapping is one huge page longer than requested, to contain an aligned range.
    let more = bytes.checked_add(HUGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
    let base = mmap(more, extra)?;
    let skip = base.as_ptr().align_offset(HUGE_BYTES);
    // SAFETY: `skip` < HUGE_BYTES, and both trimmed ends are whole small pages of the mapping just
    // made.
    let aligned = unsafe {
        let aligned = base.as_ptr().add(skip);
        if skip > 0 {
            libc::munmap(base.as_ptr().cast(), skip);
        }
        if skip < HUGE_BYTES {
            libc::munmap(aligned.add(bytes).cast(), HUGE_BYTES - skip);
        }
        NonNull::new_unchecked(aligned)
    };
    // SAFETY: this function made the mapping. `madvise` is only advice: if the call fails, the
    // pages stay small.
    let advised = unsafe { libc::madvise(aligned.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) } == 0;
    Ok((aligned, advised))
}

#[cfg(not(miri))]
fn mmap(bytes: usize, extra: libc::c_int) -> Result<NonNull<u8>, io::Error> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | extra;
    // SAFETY: a new anonymous mapping at an address that the kernel chooses affects no existing
    // memory.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap gave the null address"))
}
