use std::ops::AddAssign;

use steerage::{Batch, Cpu, Handler};

/// Counts the packets and bytes that arrive on a CPU.
///
/// The handler reads a packet's length but none of its bytes, so a run shows the cost of the
/// receive path itself. The counts do not depend on which CPU handles a packet. The handler keeps
/// both directions of a flow on one CPU, as handlers that need both directions do.
///
/// ```
/// use steerage::{Builder, Input};
/// use steerage_apps::{Count, Counted};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let queue = steerage_device::synthetic::SyntheticOptions::new().packets(1000);
/// # let input: Input = queue.open()?;
/// let running = Builder::new().virtual_cpus(4).input(input).build(|_| Count::default())?.start()?;
/// let all: Counted = running.join().reports.into_iter().map(|(_cpu, counted)| counted).sum();
/// assert_eq!(all.packets, 1000);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Count {
    counted: Counted,
}

/// The counts of one [`Count`]. The total of a run is the sum of the counts of all its handlers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The frames that the handler handled. A [super-frame](steerage::Packet::offload) counts as
    /// one frame. If a handler panicked, the run delivered more packets than all handlers count,
    /// because the handler's replacement starts at zero.
    pub packets: u64,
    /// The bytes of the handled frames, without bytes that a capture truncated.
    pub bytes: u64,
    /// The number of packets on the wire that the counted frames contain.
    pub wire_packets: u64,
    /// The bytes that the counted packets had on the wire, including the headers of each packet.
    pub wire_bytes: u64,
}

impl AddAssign for Counted {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.wire_packets += other.wire_packets;
        self.wire_bytes += other.wire_bytes;
    }
}

impl std::iter::Sum for Counted {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), |mut all, part| {
            all += part;
            all
        })
    }
}

impl Handler for Count {
    type Moved = ();
    type Report = Counted;

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        let packets = batch.len() as u64;
        let (mut bytes, mut more_packets, mut more_bytes) = (0, 0, 0);
        // `read_common` skips super-frames, so each frame in the closure is one packet on the wire.
        let others = batch.read_common(|_, received| {
            bytes += received.data.len() as u64;
            true
        });
        if !others.is_empty() {
            for (_, packet) in batch.iter_mut().enumerate().filter(|(nth, _)| others.contains(*nth)) {
                let len = packet.total_len();
                bytes += len as u64;
                if let Some(offload) = packet.offload() {
                    more_packets += offload.packets(len) as u64 - 1;
                    more_bytes += (offload.wire_bytes(len) - len) as u64;
                }
            }
        }
        let (wire_packets, wire_bytes) = (packets + more_packets, bytes + more_bytes);
        self.counted += Counted { packets, bytes, wire_packets, wire_bytes };
    }

    fn finish(self, _cpu: &mut Cpu) -> Counted {
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use steerage::Builder;
    use steerage_device::synthetic::SyntheticOptions;

    use super::*;

    #[test]
    fn the_parts_add_up_to_what_was_delivered() {
        let options = SyntheticOptions::new().packets(10_000).size(100);
        let builder = Builder::new().virtual_cpus(4).input(options.open().unwrap());
        let outcome = builder.build(|_| Count::default()).unwrap().start().unwrap().join();

        let all: Counted = outcome.reports.iter().map(|(_, counted)| *counted).sum();
        let (packets, bytes) = (10_000, 1_000_000);
        assert_eq!(all, Counted { packets, bytes, wire_packets: packets, wire_bytes: bytes });
        assert_eq!(all.packets, outcome.snapshot.delivered());
        for ((_, counted), cpu) in outcome.reports.iter().zip(&outcome.snapshot.cpus) {
            assert_eq!(counted.packets, cpu.processed);
        }
    }
}
