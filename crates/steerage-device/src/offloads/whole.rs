//! Records the longest super-frames that a kernel accepts.
//!
//! The kernel does not report which super-frames it accepts. Limits differ between kernels and
//! between routes, so an output finds its limit by trying. If the kernel refuses a super-frame but
//! accepts its packets one by one, the output splits all later super-frames with at least as many
//! packets as this one.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use steerage::flow::offload::OffloadKind;

/// The maximum number of packets in a super-frame. All CPUs that send to an output use the same
/// maximum.
#[derive(Debug)]
pub(crate) struct Whole {
    tcp: AtomicUsize,
    udp: AtomicUsize,
    told: AtomicBool,
}

impl Whole {
    /// `udp`: the kernel supports UDP super-frames.
    pub(crate) fn new(udp: bool) -> Self {
        let most = |has: bool| AtomicUsize::new(if has { usize::MAX } else { 1 });
        Self { tcp: most(true), udp: most(udp), told: AtomicBool::new(false) }
    }

    fn most(&self, kind: OffloadKind) -> Option<&AtomicUsize> {
        match kind {
            OffloadKind::Single => None,
            OffloadKind::Tcp => Some(&self.tcp),
            OffloadKind::Udp => Some(&self.udp),
        }
    }

    pub(crate) fn takes(&self, kind: OffloadKind, packets: usize) -> bool {
        // `Relaxed`: with an old value, the kernel only refuses one more super-frame.
        self.most(kind).is_none_or(|most| packets <= most.load(Ordering::Relaxed))
    }

    pub(crate) fn merges(&self) -> bool {
        self.takes(OffloadKind::Tcp, 2) || self.takes(OffloadKind::Udp, 2)
    }

    /// Call after the kernel refused a super-frame and accepted the packets in it one by one.
    #[cold]
    pub(crate) fn refused(&self, device: &str, kind: OffloadKind, packets: usize) {
        let Some(most) = self.most(kind) else { return };
        // `Relaxed`, as in `takes`.
        most.fetch_min(packets.saturating_sub(1).max(1), Ordering::Relaxed);
        if !self.told.swap(true, Ordering::Relaxed) {
            let protocol = if kind == OffloadKind::Tcp { "TCP" } else { "UDP" };
            tracing::warn!(
                device,
                "the kernel refuses {packets} packets of {protocol} in one piece: from now on, steerage cuts what it refuses"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_lowers_the_limit_of_its_kind() {
        let whole = Whole::new(true);
        let takes = |kind, packets| whole.takes(kind, packets);
        assert!(whole.merges() && takes(OffloadKind::Udp, 4096) && takes(OffloadKind::Tcp, 4096));
        whole.refused("test", OffloadKind::Udp, 129);
        assert!(takes(OffloadKind::Udp, 128) && !takes(OffloadKind::Udp, 129) && takes(OffloadKind::Tcp, 129));
        whole.refused("test", OffloadKind::Udp, 200);
        assert!(takes(OffloadKind::Udp, 128) && !takes(OffloadKind::Udp, 129));
        whole.refused("test", OffloadKind::Tcp, 2);
        assert!(whole.merges() && !takes(OffloadKind::Tcp, 2));
        whole.refused("test", OffloadKind::Udp, 2);
        assert!(!whole.merges());
        // Single packets are never split, even if the kernel refuses all of them.
        whole.refused("test", OffloadKind::Single, 1);
        assert!(takes(OffloadKind::Single, 1) && takes(OffloadKind::Udp, 1));
    }

    #[test]
    fn a_kernel_may_have_no_super_frames_of_udp() {
        let whole = Whole::new(false);
        assert!(whole.merges() && whole.takes(OffloadKind::Tcp, 45));
        assert!(!whole.takes(OffloadKind::Udp, 2));
    }
}
