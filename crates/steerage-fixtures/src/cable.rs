//! Two network namespaces for one test, joined by a veth pair.

use std::fs;

use crate::namespaces::{counted_here, fresh_name, ip, within};
use crate::skip;

/// The address of the near end, where the devices under test listen.
pub const NEAR: &str = "10.209.0.1";
/// The address of the far end.
pub const FAR: &str = "10.209.0.2";

const NEAR_MAC: &str = "02:00:00:00:00:01";
const FAR_MAC: &str = "02:00:00:00:00:02";

/// Two network namespaces with a veth pair from `near0` in `near` to `far0` in `far`. Only packets
/// of the test cross the veth pair: IPv6 is off in both namespaces, and each end knows the MAC
/// address of the other end.
#[derive(Debug)]
pub struct Net {
    /// The name of the near namespace.
    pub near: String,
    /// The name of the far namespace.
    pub far: String,
}

impl Net {
    /// If this process may not create network namespaces, prints why and returns `None`. In CI, the
    /// test fails instead.
    pub fn new() -> Option<Self> {
        Self::with("")
    }

    /// Like [`new`](Self::new), but creates both ends with these arguments of `ip link add`, such
    /// as `mtu 9000`.
    pub fn with(wishes: &str) -> Option<Self> {
        let net = Self { near: fresh_name(), far: fresh_name() };
        if !ip(&format!("netns add {}", net.near)) || !ip(&format!("netns add {}", net.far)) {
            skip("network namespaces take root");
            return None;
        }
        for end in [&net.near, &net.far] {
            within(end, || fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap_or_default());
            within(end, || fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap_or_default());
        }
        let Self { near, far } = &net;
        net.must(&format!(
            "-n {near} link add near0 address {NEAR_MAC} {wishes} type veth peer name far0 address {FAR_MAC} {wishes} netns {far}"
        ));
        for (end, device, address, other, mac) in
            [(near, "near0", NEAR, FAR, FAR_MAC), (far, "far0", FAR, NEAR, NEAR_MAC)]
        {
            net.must(&format!("-n {end} addr add {address}/24 dev {device}"));
            net.must(&format!("-n {end} link set lo up"));
            net.must(&format!("-n {end} link set {device} up"));
            net.must(&format!("-n {end} neigh replace {other} lladdr {mac} dev {device} nud permanent"));
        }
        Some(net)
    }

    /// Runs the program `ip` with the arguments `args`. The test fails if `ip` fails.
    pub fn must(&self, args: &str) {
        assert!(ip(args), "ip {args}");
    }

    /// Runs `body` in the namespace `near`, on a separate thread.
    pub fn near<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        within(&self.near, body)
    }

    /// Runs `body` in the namespace `far`, on a separate thread.
    pub fn far<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        within(&self.far, body)
    }

    /// Returns the number of packets that the far end has received, according to the kernel's
    /// counter.
    pub fn arrived(&self) -> u64 {
        self.far(|| counted_here("far0", 1))
    }

    /// Returns how many packets to the far end the veth pair has dropped. On a busy machine, the
    /// queue of the receiving end may be full.
    pub fn lost_to_far(&self) -> u64 {
        self.near(|| counted_here("near0", 11))
    }

    /// Returns how many packets to the near end the veth pair has dropped, as
    /// [`lost_to_far`](Self::lost_to_far) does for the other direction.
    pub fn lost_to_near(&self) -> u64 {
        self.far(|| counted_here("far0", 11))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.near));
        ip(&format!("netns del {}", self.far));
    }
}
