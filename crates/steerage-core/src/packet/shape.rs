use steerage_mem::Kept as WrittenCopy;

use super::{InBatch, NoRoom, Packet, Parts, Segments, SegmentsMut, parts};

impl Packet<'_> {
    /// Returns the bytes of the frame, one part for each page ([`data`](Self::data) returns the
    /// first). A frame has several pages if the device received it in several buffers.
    #[inline]
    pub fn segments(&self) -> Segments<'_> {
        self.written().map_or_else(|| self.0.frame.segments(), |copy| copy.segments_with(&self.0.frame))
    }

    /// The packets of a [super-frame](Self::offload), with new headers, and without a copy of the
    /// payload. Returns `None` if the frame is one complete packet.
    ///
    /// ```
    /// # mod steerage { pub use steerage_core::packet::*; }
    /// use steerage::Packet;
    ///
    /// /// How many packets on the wire the frame stands for, and their length.
    /// fn on_the_wire(packet: &Packet<'_>) -> (usize, usize) {
    ///     let Some(parts) = packet.parts() else { return (1, packet.total_len()) };
    ///     parts.without_checksums().fold((0, 0), |(packets, bytes), part| (packets + 1, bytes + part.len()))
    /// }
    /// ```
    pub fn parts(&self) -> Option<Parts<'_>> {
        Some(parts(&self.0.frame, self.written(), &self.offload()?))
    }

    /// Like [`segments`](Self::segments), but writable. A lent frame is first copied to a page.
    ///
    /// # Errors
    /// Returns the same errors as [`data_mut`](Self::data_mut).
    pub fn segments_mut(&mut self) -> Result<SegmentsMut<'_>, NoRoom> {
        self.forget_dissection();
        if self.0.frame.is_writable() {
            return self.0.frame.segments_mut().ok_or(NoRoom::Taken);
        }
        self.copy_mut(None).map(WrittenCopy::segments_mut)
    }

    /// The memory of the packet's pages in bytes, unused bytes included. For a lent frame (in
    /// memory of the device), the number includes only the frame and its header, until a handler
    /// writes to the frame. Metadata is not included, unlike in the kernel's `truesize`.
    pub fn truesize(&self) -> usize {
        self.written().map_or_else(|| self.0.frame.truesize(), WrittenCopy::truesize)
    }

    /// The received length in bytes: `len` of an `sk_buff`, and `pkt_len` of an `mbuf` in DPDK.
    #[inline(always)]
    pub fn total_len(&self) -> usize {
        let behind = self.written().map_or(0, |copy| copy.behind_bytes(&self.0.frame));
        if self.0.frame.is_chained() { self.0.frame.total_len() } else { self.data().len() + behind }
    }

    /// Joins the parts of a frame in its first page, using the [`headroom`](Self::headroom) if
    /// necessary, and returns all bytes of the frame. See `Builder::linear_bytes`.
    ///
    /// # Errors
    /// [`NoRoom`] if the frame is longer than a page. The frame is then unchanged.
    pub fn linearise(&mut self) -> Result<&[u8], NoRoom> {
        self.forget_dissection();
        if self.0.frame.is_chained() && !self.0.frame.linearise() || self.total_len() > self.data().len() {
            return Err(NoRoom::TooLong);
        }
        Ok(self.data())
    }

    /// Returns how many bytes [`prepend`](Self::prepend) can add: at first at least
    /// [`HEADROOM`](crate::limits::HEADROOM) in a page of the pool, and 0 for a lent frame that was
    /// not written to yet.
    pub fn headroom(&self) -> usize {
        self.written().map_or_else(|| self.0.frame.room(), WrittenCopy::room).0
    }

    /// Returns how many bytes [`append`](Self::append) can add. A frame that is not longer than its
    /// device declared has at least [`TAILROOM`](crate::limits::TAILROOM) bytes, minus the bytes
    /// that were already added. A lent frame that was not written to yet has 0.
    pub fn tailroom(&self) -> usize {
        self.written().map_or_else(|| self.0.frame.room(), WrittenCopy::room).1
    }

    /// Adds `len` arbitrary bytes at the front of the frame, and returns them for writing. A lent
    /// frame is first copied to a page. The wire length grows by `len`. The device's record of the
    /// frame (time and wire length) moves before the added bytes, or is lost if the headroom is too
    /// small for it.
    ///
    /// # Errors
    /// [`NoRoom`] if the headroom is too small, or if no page is free for the copy of a lent frame.
    pub fn prepend(&mut self, len: usize) -> Result<&mut [u8], NoRoom> {
        self.resize(signed(len)?, 0)?;
        self.data_mut()?.get_mut(..len).ok_or(NoRoom::TooLong)
    }

    /// Like [`prepend`](Self::prepend), but adds bytes at the end of the frame.
    ///
    /// # Errors
    /// [`NoRoom`] if the tailroom is too small, or if no page is free for the copy.
    pub fn append(&mut self, len: usize) -> Result<&mut [u8], NoRoom> {
        self.resize(0, signed(len)?)?;
        if self.0.frame.is_writable() {
            return self.0.frame.tail_mut(len).ok_or(NoRoom::TooLong);
        }
        let copy = self.copy_mut(None)?;
        let before = copy.len().checked_sub(len).ok_or(NoRoom::TooLong)?;
        copy.get_mut(before..).ok_or(NoRoom::TooLong)
    }

    /// Removes the first `len` bytes of the frame (or all), and shortens its wire length.
    ///
    /// # Errors
    /// [`NoRoom`] if no page is free for the copy of a lent frame, or if the first of several parts
    /// is shorter than `len`. If the first part is too short, call [`linearise`](Self::linearise)
    /// first.
    pub fn trim_front(&mut self, len: usize) -> Result<(), NoRoom> {
        self.resize(-signed(len.min(self.total_len()))?, 0)
    }

    /// Cuts the frame to its first `len` bytes. The wire length shrinks accordingly. A packet that
    /// was merged from several frames becomes one frame, and its other frames count as discarded.
    ///
    /// # Errors
    /// [`NoRoom`] if no page is free for the copy of a lent frame.
    pub fn truncate(&mut self, len: usize) -> Result<(), NoRoom> {
        if !self.0.frame.is_writable() {
            self.copy_mut(Some(len))?;
            let InBatch { frame, copy, .. } = &mut *self.0;
            copy.iter_mut().filter_map(|copy| copy.as_mut()).for_each(|copy| copy.cut_to(len, frame));
        }
        self.resize(0, -signed(self.total_len().saturating_sub(len))?)
    }

    fn resize(&mut self, front: i32, back: i32) -> Result<(), NoRoom> {
        self.forget_dissection();
        let resized = if !self.0.frame.is_writable() {
            // If only the headers of a super-frame were copied, the copy cannot shorten the
            // payload.
            let copy = self.copy_mut(None)?;
            (back == 0 || copy.front().is_none()) && copy.resize(front, back)
        } else {
            self.0.frame.resize(front, back)
        };
        if resized { Ok(()) } else { Err(NoRoom::TooLong) }
    }
}

fn signed(len: usize) -> Result<i32, NoRoom> {
    i32::try_from(len).map_err(|_| NoRoom::TooLong)
}
