//! Counts the packets that the kernel dropped because a queue was full. The count is the interface's `tx_dropped`.

use std::io;

use steerage_netlink::Rtnetlink;

/// Asks for the drops of one interface, in the namespace where this was created.
#[derive(Debug)]
pub(super) struct Drops {
    kernel: Rtnetlink,
    interface: u32,
    /// The count at the last look.
    seen: u64,
}

impl Drops {
    /// Counts the drops from now on.
    pub(super) fn of(interface: u32) -> io::Result<Self> {
        let mut kernel = Rtnetlink::open_without_waiting()?;
        let seen = kernel.statistics(interface)?.tx_dropped;
        Ok(Self { kernel, interface, seen })
    }

    /// How many packets were dropped since the last look. 0 if the interface is gone.
    pub(super) fn look(&mut self) -> u64 {
        let Ok(now) = self.kernel.statistics(self.interface) else { return 0 };
        now.tx_dropped.saturating_sub(std::mem::replace(&mut self.seen, now.tx_dropped))
    }
}
