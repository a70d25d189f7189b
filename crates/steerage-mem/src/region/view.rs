use super::Region;

/// The values from which the address of a page is computed. Unlike a [`Region`], a `View` stays in
/// registers in a loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    base: *mut u8,
    page_bytes: usize,
    first: u32,
    count: u32,
}

impl View {
    #[inline(always)]
    pub(super) fn index_of(self, number: u32) -> Option<u32> {
        let index = number.wrapping_sub(self.first);
        (index < self.count).then_some(index)
    }

    #[inline(always)]
    pub(crate) fn start_of(self, number: u32, offset: u32, len: usize) -> Option<*mut u8> {
        let index = self.index_of(number)?;
        if (offset as usize).checked_add(len)? > self.page_bytes {
            return None;
        }
        // SAFETY: index < count and offset + len <= page_bytes, so the sum stays inside of the
        // mapping, whose size was checked against isize::MAX.
        Some(unsafe { self.base.add(index as usize * self.page_bytes + offset as usize) })
    }
}

impl Region {
    #[inline(always)]
    pub(crate) fn view(&self) -> View {
        View { base: self.base.as_ptr(), page_bytes: self.page_bytes, first: self.first, count: self.count }
    }
}
