//! Published measurements of the techniques that the experiments repeat: the set-up, and the rates
//! with the CPU use.
//!
//! All texts and figures of other people's measurements are here, so they can be checked in one place.

/// A published measurement, and how the experiment that repeats it differs.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// The work: its author, its title and the place of publication.
    pub work: &'static str,
    /// The subject and the machines of the measurement.
    pub set_up: &'static str,
    /// Rates, with the CPU use.
    pub result: &'static str,
    /// How the experiment of this program differs, if the difference explains another result.
    /// Otherwise empty.
    pub differs: &'static str,
    /// The result as ratios.
    pub ratios: &'static [Ratio],
}

/// A published gain.
#[derive(Clone, Copy, Debug)]
pub struct Ratio {
    /// The point of the ratio on the experiment's axis, if there is an axis.
    pub x: Option<f64>,
    /// The rate before.
    pub before: f64,
    /// The rate after, in the same unit.
    pub after: f64,
    /// The set-up, in a few words.
    pub set_up: &'static str,
}

impl Published {
    /// The text of a report.
    pub fn text(&self) -> String {
        let Self { work, set_up, result, differs, .. } = self;
        let parts = [*work, *set_up, *result, *differs];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    }
}

/// Receive Packet Steering.
pub const RPS: Published = Published {
    work: "Tom Herbert, Receive Packet Steering (Linux commit 0a9627f2649a, March 2010).",
    set_up: "500 instances of netperf TCP_RR, requests and responses of 1 byte: transactions per second, and the machine's CPU use.",
    result: "e1000e, 8-core Intel: 108 thousand at 33 % CPU without RPS, 311 thousand at 64 % with it. forcedeth, 16-core AMD: 156 \
             thousand at 15 %, 404 thousand at 49 %. bnx2x with 4 hardware queues, 16-core AMD: 567 thousand at 61 %, 854 thousand \
             at 76 %; 8 hardware queues without RPS: 738 thousand at 96 %.",
    differs: "",
    ratios: &[
        Ratio { x: Some(8.0), before: 108.0, after: 311.0, set_up: "e1000e, 8 CPUs, CPU use 33 % to 64 %" },
        Ratio { x: Some(16.0), before: 156.0, after: 404.0, set_up: "forcedeth, 16 CPUs, CPU use 15 % to 49 %" },
        Ratio { x: Some(16.0), before: 567.0, after: 854.0, set_up: "bnx2x, 16 CPUs, 4 queues, CPU use 61 % to 76 %" },
    ],
};

/// The result of the same work for lightly loaded machines.
pub const RPS_LIGHT_LOAD: Published = Published {
    work: RPS.work,
    set_up: "A lightly loaded server may get slower with RPS, and the best mask depends on the caches that CPUs share.",
    result: "There are no figures.",
    differs: "",
    ratios: &[],
};

/// Lists of packets for another CPU.
pub const HANDOFF: Published = Published {
    work: "Zhang Yanmin, \"hand off skb list to other cpu to submit to upper layer\" (RFC on netdev and LKML, February 2009).",
    set_up: "ip_forward between two 10G ixgbe cards with 16 queues, 64 packets per hand-over, netdev_max_backlog and netdev_budget \
             enlarged first.",
    result: "About 43 % more packets; without it the forwarder reaches about 60 % of the sender's rate. CPU use was not published.",
    differs: "Why 43 % is not seen here: a collector takes over the share of the work that receiving is, and no more. If receiving takes r \
              and handling h, the gain is at most (r + h) / max(r, h), so 1.43 needs a receiving CPU that does 30 % of the work. In the \
              kernel it did: it ran the driver, allocated an skb for each packet, and took locks. Here the device costs one cache line, \
              nothing is allocated, no lock is taken, and metadata is made by the CPU that handles the packet. The collector's part of \
              the time of one CPU is in the table; the handling CPU must also fetch each packet from the collector's cache, which takes \
              most of that away again.",
    ratios: &[Ratio { x: Some(64.0), before: 100.0, after: 143.0, set_up: "two 10G ixgbe, kernel forwarding" }],
};

/// Metadata that is created when the frame has arrived.
pub const BUILD_SKB: Published = Published {
    work: "Eric Dumazet, \"net: introduce build_skb()\" (netdev, July 2011).",
    set_up: "igb (Intel 82576), AMD Athlon II X2 at 3 GHz, receive ring of 4096. One CPU sends 1,488,137 packets per second with \
             pktgen; the other receives them and drops them in netfilter's raw table.",
    result: "About 15 % more packets. Loss falls from 15 %, with ksoftirqd at 100 % of the CPU, to under 0.1 %, at 80 % of the CPU.",
    differs: "",
    ratios: &[Ratio { x: None, before: 100.0, after: 115.0, set_up: "igb, 1.49 Mpps offered, CPU use 100 % to 80 %" }],
};

/// A cache of pages for each receive queue.
pub const LOCAL_PAGE_CACHE: Published = Published {
    work: "Shay Agroskin, local page cache of the ENA driver (netdev RFC, March 2021).",
    set_up: "Four c5n.18xlarge (32 queue pairs) send TCP with iperf, 1500 bytes, to one p4d.24xlarge (128 queue pairs).",
    result: "260 Gbit/s at 100 % CPU without the cache, 330 Gbit/s at 56 % with it.",
    differs: "ENA's allocator takes a lock and maps pages for DMA; here the shared pool moves 64 pages by one atomic exchange, so there is \
              less to save.",
    ratios: &[Ratio { x: None, before: 260.0, after: 330.0, set_up: "ENA, CPU use 100 % to 56 %" }],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_has_the_rates_with_the_cpu_use_beside_them() {
        for (published, figures) in [
            (
                RPS,
                &[
                    "0a9627f2649a",
                    "108 thousand at 33 %",
                    "311 thousand at 64 %",
                    "156 thousand at 15 %",
                    "854 thousand at 76 %",
                ][..],
            ),
            (HANDOFF, &["43 %", "60 %", "64 packets", "30 %"]),
            (BUILD_SKB, &["1,488,137", "4096", "100 % of the CPU", "80 % of the CPU", "0.1 %"]),
            (LOCAL_PAGE_CACHE, &["260 Gbit/s at 100 %", "330 Gbit/s at 56 %", "1500 bytes"]),
        ] {
            let text = published.text();
            figures.iter().for_each(|figure| assert!(text.contains(figure), "{figure}: {text}"));
            assert!(!published.ratios.is_empty() && published.ratios.iter().all(|ratio| ratio.after > ratio.before));
        }
        assert!(!RPS_LIGHT_LOAD.text().ends_with(' '));
    }
}
