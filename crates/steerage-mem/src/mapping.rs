//! Memory from the kernel, in huge pages where it has some.
//!
//! Miri has no kernel, so there it comes from the allocator: in pieces of 4 KiB, since Miri takes its time for each byte.

use std::io;
use std::ptr::NonNull;

use crate::region::{Backing, RegionError};

#[cfg(miri)]
pub(crate) use by_allocator::{map_anonymous, map_small, map_transparent, unmap};

/// Huge pages are 2 MiB on the machines we know; a region is a multiple of it so that it can be made of them.
pub(crate) const HUGE_BYTES: usize = if cfg!(miri) { 4096 } else { 2 << 20 };

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
        // SAFETY: nobody asks for no bytes, as `mmap` would not give them either.
        let base = unsafe { alloc_zeroed(layout(bytes)?) };
        Ok((NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?, bytes))
    }

    /// # Safety
    /// As there.
    pub(crate) unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise; it was allocated with the same layout.
        layout(bytes).into_iter().for_each(|layout| unsafe { dealloc(base.as_ptr(), layout) });
    }
}

/// Maps `bytes`, a multiple of 2 MiB: reserved huge pages, else normal memory aligned for transparent ones.
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

/// Address space for `bytes` or a little more, in transparent huge pages where the kernel has them. What is not touched
/// takes no memory and is promised none. Returns with it how much to [unmap].
#[cfg(not(miri))]
pub(crate) fn map_transparent(bytes: usize) -> io::Result<(NonNull<u8>, usize)> {
    let bytes = bytes.checked_next_multiple_of(HUGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
    map_aligned(bytes, libc::MAP_NORESERVE).map(|(base, _)| (base, bytes))
}

/// `bytes` in small pages. Returns with it how much to [unmap].
#[cfg(not(miri))]
pub(crate) fn map_small(bytes: usize) -> io::Result<(NonNull<u8>, usize)> {
    mmap(bytes, 0).map(|base| (base, bytes))
}

/// # Safety
/// `base` and `bytes` are what one of the above returned, and nobody refers to it any more.
#[cfg(not(miri))]
pub(crate) unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(base.as_ptr().cast(), bytes) };
}

/// Maps `bytes`, a multiple of 2 MiB, aligned to that. Returns whether the kernel took the advice to use huge pages.
#[cfg(not(miri))]
fn map_aligned(bytes: usize, extra: libc::c_int) -> io::Result<(NonNull<u8>, bool)> {
    // One huge page more than needed, so that an aligned stretch of the full size lies inside; the rest is given back.
    let more = bytes.checked_add(HUGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
    let base = mmap(more, extra)?;
    let skip = base.as_ptr().align_offset(HUGE_BYTES);
    // SAFETY: `skip` < HUGE_BYTES, and both trimmed ends are whole small pages of the mapping just made.
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
    // SAFETY: the range is ours. The call is advice: where it fails, pages stay small.
    let advised = unsafe { libc::madvise(aligned.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) } == 0;
    Ok((aligned, advised))
}

#[cfg(not(miri))]
fn mmap(bytes: usize, extra: libc::c_int) -> Result<NonNull<u8>, io::Error> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | extra;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap gave the null address"))
}
