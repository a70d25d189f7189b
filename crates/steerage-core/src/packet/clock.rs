//! The time of packets.

use steerage_flow::WallTime;

use super::Packet;
use crate::handler::Cpu;

/// The time as packets tell it, for state that expires. It never goes back, although packets of several interfaces or CPUs may
/// come out of order.
///
/// A capture file is read much faster than its packets once arrived, so [`Cpu::now`] is the wrong clock for it. Between two
/// packets this clock stands still, and it does not move in a tick.
///
/// ```
/// # mod steerage { pub use steerage_core::{handler::*, ids::*}; pub mod packet { pub use steerage_core::packet::*; } }
/// # use std::{collections::HashMap, time::Duration};
/// # use steerage_flow::{FlowKey, WallTime};
/// use steerage::Cpu;
/// use steerage::packet::{Batch, PacketClock};
///
/// /// When each flow was last seen.
/// #[derive(Default)]
/// struct Flows {
///     clock: PacketClock,
///     last_seen: HashMap<FlowKey, WallTime>,
/// }
///
/// impl Flows {
///     fn handle(&mut self, batch: &mut Batch<'_>, cpu: &Cpu) {
///         for packet in batch.iter_mut() {
///             let now = self.clock.see(&packet, cpu);
///             self.last_seen.extend(packet.flow_key().map(|flow| (flow, now)));
///         }
///         let now = self.clock.now();
///         self.last_seen.retain(|_, seen| now.since(*seen) < Duration::from_secs(60));
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketClock(WallTime);

impl PacketClock {
    /// Moves on to the packet's time, and returns the time then. If the device does not record times, this is the time of the
    /// CPUs' clock, which begins at 0.
    #[inline]
    pub fn see(&mut self, packet: &Packet<'_>, cpu: &Cpu) -> WallTime {
        let time = packet.time().unwrap_or_else(|| WallTime::from_nanos(cpu.now().as_nanos()));
        self.0 = self.0.max(time);
        self.0
    }

    /// The time of the latest packet so far.
    pub fn now(&self) -> WallTime {
        self.0
    }
}
