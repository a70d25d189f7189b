//! A packet's parts, and how it gets longer and shorter.

use steerage_mem::{Kept, Segments};

use super::{NoRoom, Packet};

impl Packet<'_> {
    /// The frame's bytes, part by part and none of them empty: where a device received it into several buffers, it lies in several
    /// pages. [`data`](Self::data) is the first of them.
    #[inline]
    pub fn segments(&self) -> Segments<'_> {
        self.written().map_or_else(|| self.frame.segments(), Kept::segments)
    }

    /// The frame's length as received, in bytes: of all its parts. (`len` of the kernel's `sk_buff`, `pkt_len` of DPDK's `mbuf`.)
    #[inline(always)]
    pub fn total_len(&self) -> usize {
        if self.frame.is_chained() { self.frame.total_len() } else { self.data().len() }
    }

    /// Brings the frame into one part, if it is in several, and gives it to be read. That takes no page: it is the first part's page
    /// that the others are copied to, and some or all of the [`headroom`](Self::headroom) is used where it would not fit else. See
    /// [`Builder::linear_bytes`](crate::Builder::linear_bytes).
    ///
    /// # Errors
    /// [`NoRoom`] if it is longer than a page; it is then as it was.
    pub fn linearise(&mut self) -> Result<&[u8], NoRoom> {
        if self.frame.is_chained() && !self.frame.linearise() {
            return Err(NoRoom);
        }
        Ok(self.data())
    }

    /// How many bytes [`prepend`](Self::prepend) has room for: at least [`HEADROOM`](crate::HEADROOM) in the pool's own pages, unless some of it
    /// was used; none in lent memory as long as the frame was not written.
    pub fn headroom(&self) -> usize {
        self.written().map_or_else(|| self.frame.room(), Kept::room).0
    }

    /// How many bytes [`append`](Self::append) has room for, as [`headroom`](Self::headroom): what the frame leaves of its page,
    /// of the one that it ends in.
    pub fn tailroom(&self) -> usize {
        self.written().map_or_else(|| self.frame.room(), Kept::room).1
    }

    /// Makes the frame `len` bytes longer at its front, where it lies, and gives those to be written: until then they are
    /// whatever was there. A frame in lent memory is copied to a page first. The packet is as much longer on the wire. What
    /// the device noted of it ([`header`](Self::header)) goes along; where nothing is left of the headroom for that, it is gone.
    ///
    /// # Errors
    /// [`NoRoom`] if its page does not reach so far, or there is none for the copy.
    pub fn prepend(&mut self, len: usize) -> Result<&mut [u8], NoRoom> {
        self.resize(signed(len)?, 0)?;
        self.data_mut()?.get_mut(..len).ok_or(NoRoom)
    }

    /// As [`prepend`](Self::prepend), at its end.
    ///
    /// # Errors
    /// As [`prepend`](Self::prepend).
    pub fn append(&mut self, len: usize) -> Result<&mut [u8], NoRoom> {
        self.resize(0, signed(len)?)?;
        if !self.frame.is_lent() {
            return self.frame.tail_mut(len).ok_or(NoRoom);
        }
        let copy = self.copy_mut()?;
        let before = copy.len().checked_sub(len).ok_or(NoRoom)?;
        copy.get_mut(before..).ok_or(NoRoom)
    }

    /// Takes the first `len` bytes off the frame, or all if there are fewer. The packet is as much shorter on the wire.
    ///
    /// # Errors
    /// [`NoRoom`] if it lies in lent memory, and there is no page for a copy; or if it is in several parts and the first has fewer:
    /// [`linearise`](Self::linearise) it before.
    pub fn trim_front(&mut self, len: usize) -> Result<(), NoRoom> {
        self.resize(-signed(len.min(self.total_len()))?, 0)
    }

    /// Takes off what the frame has behind its first `len` bytes, as [`trim_front`](Self::trim_front).
    ///
    /// # Errors
    /// [`NoRoom`] if it lies in lent memory, and there is no page for a copy.
    pub fn truncate(&mut self, len: usize) -> Result<(), NoRoom> {
        self.resize(0, -signed(self.total_len().saturating_sub(len))?)
    }

    fn resize(&mut self, front: i32, back: i32) -> Result<(), NoRoom> {
        let resized =
            if self.frame.is_lent() { self.copy_mut()?.resize(front, back) } else { self.frame.resize(front, back) };
        if resized { Ok(()) } else { Err(NoRoom) }
    }
}

fn signed(len: usize) -> Result<i32, NoRoom> {
    i32::try_from(len).map_err(|_| NoRoom)
}
