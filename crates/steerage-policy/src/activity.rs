use steerage_ledger::Ledgers;

/// Detects whether an instance is idle, so that policies check it less often.
#[derive(Clone, Copy, Debug, Default)]
pub struct Activity {
    packets: u64,
}

impl Activity {
    /// Returns true if packets were received or handled since the last call.
    pub fn since_last(&mut self, ledgers: &Ledgers) -> bool {
        let packets = ledgers.cpus.iter().map(|cpu| cpu.polled.get().wrapping_add(cpu.processed.get()));
        let packets = packets.fold(0, u64::wrapping_add);
        std::mem::replace(&mut self.packets, packets) != packets
    }
}
