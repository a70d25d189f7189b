//! Counts the packets that the kernel dropped because a queue of a TUN or TAP was full. The
//! kernel's count of these drops is the interface's `tx_dropped`.

use std::io;

use steerage_netlink::Rtnetlink;

#[derive(Debug)]
pub(super) struct Drops {
    kernel: Rtnetlink,
    interface: u32,
    /// The value of the interface's `tx_dropped` at the last call of `look`.
    seen: u64,
}

impl Drops {
    /// Creates a counter of the packets that are dropped after this call.
    pub(super) fn of(interface: u32) -> io::Result<Self> {
        let mut drops = Self { kernel: Rtnetlink::open()?, interface, seen: 0 };
        drops.seen = drops.read()?;
        Ok(drops)
    }

    /// Returns the number of packets that the kernel has dropped since the last call of `look`.
    /// Returns 0 if the interface was deleted.
    pub(super) fn look(&mut self) -> u64 {
        let Ok(now) = self.read() else { return 0 };
        now.saturating_sub(std::mem::replace(&mut self.seen, now))
    }

    fn read(&mut self) -> io::Result<u64> {
        let statistics = self.kernel.link_at(self.interface)?.statistics;
        statistics.map(|statistics| statistics.tx_dropped).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}
