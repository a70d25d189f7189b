//! Two network namespaces joined by a cable, made for one test and gone with it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::sched::{CloneFlags, setns};

/// The near end's addresses: what listens is in this namespace.
pub(crate) const NEAR: &str = "10.209.0.1";
/// The far end's.
pub(crate) const FAR: &str = "10.209.0.2";

const NEAR_MAC: &str = "02:00:00:00:00:01";
const FAR_MAC: &str = "02:00:00:00:00:02";

/// `near`'s interface `near0` and `far`'s `far0` are the ends of a veth. Nothing but what the test sends goes over it: there
/// is no IPv6, and each knows the other's address.
pub(crate) struct Net {
    pub(crate) near: String,
    pub(crate) far: String,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Net {
    /// `None`, and why on standard error, where this may not be done; on a machine that has to, a failure.
    pub(crate) fn new() -> Option<Self> {
        Self::with("")
    }

    /// The same, with what `ip link add` is to know of both ends besides: `mtu 9000`, `numrxqueues 4`.
    #[allow(dead_code)] // Not every test that makes one has wishes.
    pub(crate) fn with(wishes: &str) -> Option<Self> {
        let name = |end| format!("st-{}-{}-{end}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let net = Self { near: name("near"), far: name("far") };
        if !ip(&format!("netns add {}", net.near)) || !ip(&format!("netns add {}", net.far)) {
            assert!(std::env::var_os("CI").is_none(), "cannot make network namespaces, and CI says that this can");
            let _ = writeln!(io::stderr(), "skipped: it takes root to make network namespaces");
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

    /// Runs `ip` with these arguments, well.
    pub(crate) fn must(&self, args: &str) {
        assert!(ip(args), "ip {args}");
    }

    /// What `body` returns when it is run in the near namespace.
    pub(crate) fn near<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        within(&self.near, body)
    }

    /// The same in the far one.
    pub(crate) fn far<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        within(&self.far, body)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.near));
        ip(&format!("netns del {}", self.far));
    }
}

fn ip(args: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(args.split_whitespace()).stderr(if args.starts_with("netns del") {
        Stdio::null()
    } else {
        Stdio::inherit()
    });
    command.status().is_ok_and(|status| status.success())
}

/// Runs `body` in a namespace, on a thread of its own.
fn within<R: Send>(namespace: &str, body: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| {
        let run = || {
            setns(File::open(format!("/run/netns/{namespace}")).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
            body()
        };
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
