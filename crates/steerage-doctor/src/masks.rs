//! The masks with which the kernel itself steers packets (`rps_cpus`), and advice about these
//! masks.

use steerage_text::shell_word;
use steerage_tune::same;

use crate::host::Host;

/// The masks of an interface's receive queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelMasks {
    interface: String,
    queues: Vec<(u32, String)>,
}

impl KernelMasks {
    /// Reads the masks of an interface.
    pub fn read(interface: &str) -> Self {
        Self::below(&Host::this(), interface)
    }

    pub(crate) fn below(host: &Host, interface: &str) -> Self {
        let queues = host.numbered(format!("sys/class/net/{interface}/queues"), "rx-").into_iter();
        let mask = |(queue, path): (u32, std::path::PathBuf)| Some((queue, host.text(path.join("rps_cpus"))?));
        Self { interface: interface.to_owned(), queues: queues.filter_map(mask).collect() }
    }

    /// Returns true if all queues have the mask `mask`, which is in the kernel's format.
    pub fn are(&self, mask: &str) -> bool {
        !self.queues.is_empty() && self.queues.iter().all(|(_, now)| same(now, mask))
    }

    /// Returns the queues whose packets the kernel steers, with their masks, such as `rx-0 3`, or
    /// `None` if there are no such queues.
    pub fn in_force(&self) -> Option<String> {
        let is_set = |mask: &str| mask.contains(|c| !"0,".contains(c));
        let set: Vec<String> = (self.queues.iter().filter(|(_, mask)| is_set(mask)))
            .map(|(queue, mask)| format!("rx-{queue} {mask}"))
            .collect();
        (!set.is_empty()).then(|| set.join(", "))
    }

    /// Returns advice about the masks. Only a measurement shows whether the masks help.
    pub fn remedy(&self) -> String {
        format!(
            "steerage tune {} measures whether that helps; a run of steerage steers by itself",
            shell_word(&self.interface)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;

    #[test]
    fn a_mask_is_compared_as_a_number() {
        let file = |queue| format!("sys/class/net/eth0/queues/rx-{queue}/rps_cpus");
        let host = FakeHost::new("masks", &[(&file(0), "00000000,00000003"), (&file(1), "0")]);
        let masks = KernelMasks::below(&host.host(), "eth0");
        assert_eq!(masks.in_force().as_deref(), Some("rx-0 00000000,00000003"));
        assert!(!masks.are("3"));
        std::fs::write(host.host().path(file(1)), "3").unwrap();
        let masks = KernelMasks::below(&host.host(), "eth0");
        assert!(masks.are("3") && masks.are("00000003") && !masks.are("1"));
        let none = KernelMasks::below(&host.host(), "eth1");
        assert!(none.in_force().is_none() && !none.are("0"));
    }
}
