//! A region of memory consists of parts, each of which lies on a NUMA node of its own.

use std::io;
use std::ptr::NonNull;

use crate::mapping::{HUGE_BYTES, RegionError};

/// A part: consecutive pages of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The number of pages in the part, at least 1.
    pub pages: usize,
    /// The NUMA node, or `None` for the node of the CPU that accesses a page first.
    pub node: Option<u32>,
}

/// The maximum number of NUMA nodes, as in Linux (`CONFIG_NODES_SHIFT` is at most 10).
const NODES_MAX: u32 = 1024;

/// Returns the end of each part, in pages from the beginning of the region. Every part but the last
/// is up to 2 MiB longer than requested, so that the next part begins with a new huge page.
///
/// # Errors
/// [`RegionError::Size`] if there are no parts or pages, or if the size cannot be addressed.
pub fn part_ends(parts: &[Part], page_bytes: usize) -> Result<Vec<usize>, RegionError> {
    let asked = parts.iter().fold(0_usize, |sum, part| sum.saturating_add(part.pages));
    let wrong = || RegionError::Size { pages: asked, page_bytes };
    if parts.is_empty() || page_bytes == 0 || parts.iter().any(|part| part.pages == 0) {
        return Err(wrong());
    }
    let mut ends = Vec::with_capacity(parts.len());
    let mut end = 0_usize;
    for (nth, part) in parts.iter().enumerate() {
        end = end.checked_add(part.pages).ok_or_else(wrong)?;
        if nth + 1 < parts.len() {
            let border = end.checked_mul(page_bytes).and_then(|bytes| bytes.checked_next_multiple_of(HUGE_BYTES));
            end = border.ok_or_else(wrong)?.div_ceil(page_bytes);
        }
        ends.push(end);
    }
    Ok(ends)
}

/// Makes the kernel prefer the NUMA node of each part. If the kernel refuses this preference, or if
/// a page was touched before, the page is on the node of the CPU that first touches it.
pub(crate) fn bind(base: NonNull<u8>, parts: &[Part], ends: &[usize], page_bytes: usize) -> Result<(), io::Error> {
    let mut from = 0;
    for (nth, (part, end)) in parts.iter().zip(ends).enumerate() {
        // The mapping ends with the last part, at a multiple of the huge page size.
        let border = (end * page_bytes) / HUGE_BYTES * HUGE_BYTES;
        let to = if nth + 1 < parts.len() { border } else { (end * page_bytes).next_multiple_of(HUGE_BYTES) };
        if let Some(node) = part.node {
            prefer(base, from, to - from, node)?;
        }
        from = to;
    }
    Ok(())
}

fn prefer(base: NonNull<u8>, from: usize, bytes: usize, node: u32) -> Result<(), io::Error> {
    if node >= NODES_MAX || cfg!(miri) {
        return Err(io::Error::other("a node beyond those that there can be"));
    }
    let mut mask = [0_u64; NODES_MAX as usize / 64];
    mask[node as usize / 64] |= 1 << (node % 64);
    // SAFETY: the range lies within the mapping, no code has a reference to it yet, and the mask
    // outlives the call. The kernel prefers the given node, but uses another node if the given node
    // has no free memory. If the given node were mandatory, the kernel would kill the process if
    // that node has no free memory.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            base.as_ptr().add(from),
            bytes,
            libc::MPOL_PREFERRED,
            mask.as_ptr(),
            // The number of bits in the node mask, plus one.
            libc::c_ulong::from(NODES_MAX + 1),
            0_u32,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Page, Region};

    const PAGE_BYTES: usize = 2112;

    fn part(pages: usize) -> Part {
        Part { pages, node: None }
    }

    #[test]
    fn parts_meet_at_huge_pages() {
        let ends = part_ends(&[part(10), part(2000), part(3)], PAGE_BYTES).unwrap();
        assert_eq!(part_ends(&[part(10)], PAGE_BYTES).unwrap(), [10], "alone it is as long as was asked for");
        for end in &ends[..2] {
            let border = end * PAGE_BYTES / HUGE_BYTES * HUGE_BYTES;
            assert!((end - 1) * PAGE_BYTES < border && border <= end * PAGE_BYTES, "{end}");
        }
        assert!(ends[0] >= 10 && ends[1] >= ends[0] + 2000 && ends[2] == ends[1] + 3, "{ends:?}");
        for wrong in [&[][..], &[part(1), part(0)], &[part(usize::MAX), part(1)]] {
            assert!(part_ends(wrong, PAGE_BYTES).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_page_knows_its_part() {
        let (region, pages) = Region::map_parts(&[part(10), part(20)], PAGE_BYTES).unwrap();
        let ends = part_ends(&[part(10), part(20)], PAGE_BYTES).unwrap();
        assert_eq!((region.parts(), region.pages(), pages.len()), (2, ends[1], ends[1]));
        let parts: Vec<usize> = pages.iter().map(|page| region.part_of(page)).collect();
        assert_eq!(parts.iter().filter(|part| **part == 0).count(), ends[0]);
        assert!(parts.is_sorted());
        let numbers: Vec<u32> = (0..2).flat_map(|part| region.numbers(part)).collect();
        assert_eq!(numbers, pages.iter().map(Page::number).collect::<Vec<_>>());
        let (_, others) = Region::map(1, PAGE_BYTES).unwrap();
        assert_eq!(region.part_of(&others[0]), 0, "a page of other memory is nobody's, and no panic");
    }

    #[test]
    #[cfg_attr(miri, ignore = "there is no kernel")]
    #[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
    fn memory_is_asked_of_its_node() {
        let parts = [Part { pages: 1000, node: Some(0) }, part(1000)];
        let (region, _pages) = Region::map_parts(&parts, PAGE_BYTES).unwrap();
        if let Some(error) = region.unbound() {
            eprintln!("skipped: the kernel binds no memory here: {error}");
            return;
        }
        let Ok(maps) = std::fs::read_to_string("/proc/self/numa_maps") else {
            eprintln!("skipped: there is no /proc/self/numa_maps");
            return;
        };
        let begin = format!("{:08x} ", region.base().as_ptr() as usize);
        let line = maps.lines().find(|line| line.starts_with(&begin)).expect("the mapping's first part");
        assert!(line.contains("prefer") && line.contains(":0"), "{line}");
    }

    #[test]
    fn a_node_that_there_is_not_is_told_and_no_more() {
        for node in [NODES_MAX - 1, NODES_MAX, u32::MAX] {
            let (region, mut pages) = Region::map_parts(&[Part { pages: 1, node: Some(node) }], PAGE_BYTES).unwrap();
            assert!(region.unbound().is_some(), "node {node}");
            region.page_mut(&mut pages[0])[0] = 1;
        }
    }
}
