//! Counts the packets that the kernel dropped at full queues of a TUN or TAP (`tx_dropped`).

use std::io;

use steerage_netlink::Rtnetlink;

#[derive(Debug)]
pub(super) struct Drops {
    kernel: Rtnetlink,
    interface: u32,
    seen: u64,
}

impl Drops {
    pub(super) fn of(interface: u32) -> io::Result<Self> {
        let mut drops = Self { kernel: Rtnetlink::open()?, interface, seen: 0 };
        drops.seen = drops.read()?;
        Ok(drops)
    }

    /// Returns the number of drops since the last call, or 0 if the interface was deleted.
    pub(super) fn look(&mut self) -> u64 {
        let Ok(now) = self.read() else { return 0 };
        now.saturating_sub(std::mem::replace(&mut self.seen, now))
    }

    fn read(&mut self) -> io::Result<u64> {
        let statistics = self.kernel.link_at(self.interface)?.statistics;
        statistics.map(|statistics| statistics.tx_dropped).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}
