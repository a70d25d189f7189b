//! Decides whether a setting is kept, from pairs of time windows in which packets and CPU time were
//! measured.

use std::fmt;

use crate::facts::{CpuCounts, Sample};

/// The smallest gain for which a setting is kept. A gain below the minimum is not worth the packets
/// that a change reorders, and the next measurement might show a loss.
const GAIN_MIN: f64 = 0.03;

/// A CPU that spends at least this share of its time in interrupts is at its limit, because other
/// threads use the rest.
const LIMIT: f64 = 0.9;

/// The minimum number of packets in a window for an accurate time per packet.
const PACKETS_MIN: u64 = 1_000;

/// A window with fewer clock ticks in interrupts than this does not count. A time of five ticks is
/// accurate to a fifth.
const TICKS_MIN: f64 = 5.0;

/// Lost packets do not show that the machine is at its limit if their share is at most `LOST_MIN`.
/// An increase of the share by at most `LOST_MIN` is ignored.
const LOST_MIN: f64 = 0.001;

/// Student's t for a two-sided interval of 99 %, for 1 to 30 degrees of freedom.
const T_99: [f64; 30] = [
    63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947, 2.921,
    2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.750,
];

/// The counts of one window (measuring time).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// The length of the window in seconds.
    pub seconds: f64,
    /// Packets that the kernel handled.
    pub packets: u64,
    /// Packets that were lost.
    pub lost: u64,
    /// The clock ticks that all CPUs spent in interrupts, and in the kernel if NAPI is threaded.
    pub ticks: f64,
    /// The part of `ticks` that the busiest CPU spent.
    pub busiest_ticks: f64,
    /// The share of the busiest CPU's time that is counted in `ticks`.
    pub busiest: f64,
}

impl Window {
    /// Creates a window from the difference between two readings. `losses_are_received` is true if
    /// the interface counts lost packets as received, as cards do and veths do not. `threads` is
    /// true if kernel threads may handle packets outside of interrupts.
    pub fn of(passed: &Sample, seconds: f64, losses_are_received: bool, threads: bool) -> Self {
        let time = |cpu: &CpuCounts| (cpu.softirq + if threads { cpu.system } else { 0 }) as f64;
        let backlogs: u64 = passed.cpus.values().map(|cpu| cpu.dropped + cpu.flow_limit).sum();
        let lost = passed.lost.max(backlogs);
        let share = |cpu: &CpuCounts| if cpu.all == 0 { 0.0 } else { time(cpu) / cpu.all as f64 };
        Self {
            seconds,
            packets: if losses_are_received { passed.packets.saturating_sub(lost) } else { passed.packets },
            lost,
            ticks: passed.cpus.values().map(time).sum(),
            busiest_ticks: passed.cpus.values().map(time).fold(0.0, f64::max),
            busiest: passed.cpus.values().map(share).fold(0.0, f64::max),
        }
    }

    fn rate(&self) -> f64 {
        self.packets as f64 / self.seconds
    }

    fn lost_share(&self) -> f64 {
        self.lost as f64 / (self.packets + self.lost).max(1) as f64
    }

    fn is_at_limit(&self) -> bool {
        self.lost_share() > LOST_MIN || self.busiest >= LIMIT
    }

    fn says_nothing(&self) -> bool {
        self.packets < PACKETS_MIN || self.ticks < TICKS_MIN
    }

    /// Returns true if this window lost a larger share of packets than each window in `others`,
    /// without a higher packet rate. The increase of the share must exceed the spread of the shares
    /// in `others`. A sender without a rate limit always causes losses, and may cause more losses
    /// when the machine handles more packets.
    pub fn loses_more_than(&self, others: &[Self]) -> bool {
        let shares = || others.iter().map(Self::lost_share);
        let (most, least) = (shares().fold(0.0, f64::max), shares().fold(1.0, f64::min));
        let noise = (most - least).max(0.0);
        let rate = others.iter().map(Self::rate).fold(0.0, f64::max);
        self.lost_share() > most + noise + LOST_MIN && self.rate() <= rate
    }
}

/// The ratio of a new to an old value, with its 99 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The geometric mean of the ratios of all pairs of an old and a new window.
    pub mean: f64,
    /// The lower end of the ratio's confidence interval.
    pub low: f64,
    /// The upper end of the ratio's confidence interval.
    pub high: f64,
}

impl Ratio {
    /// Computes the mean ratio of new to old values, or `None` without pairs of positive values.
    /// The confidence interval comes from Student's t-distribution of the ratios' logarithms. For a
    /// single pair, the interval is unlimited.
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let logarithms: Vec<f64> = pairs.into_iter().map(|(old, new)| (new / old).ln()).collect();
        if logarithms.is_empty() || !logarithms.iter().all(|logarithm| logarithm.is_finite()) {
            return None;
        }
        let count = logarithms.len() as f64;
        let mean = logarithms.iter().sum::<f64>() / count;
        let variance = logarithms.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let quantile = logarithms.len().checked_sub(2).map(|at| T_99[at.min(T_99.len() - 1)]);
        let half = quantile.map_or(f64::INFINITY, |quantile| quantile * (variance / count).sqrt());
        Some(Self { mean: mean.exp(), low: (mean - half).exp(), high: (mean + half).exp() })
    }

    fn is_more(&self) -> bool {
        self.low > 1.0 && self.mean > 1.0 + GAIN_MIN
    }

    fn is_less(&self) -> bool {
        self.high < 1.0 && self.mean < 1.0 - GAIN_MIN
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} [{:.2}..{:.2}]", self.mean, self.low, self.high)
    }
}

/// Why a new setting is kept or undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The packet rate changed while the machine was at its limit.
    Throughput,
    /// The busiest CPU's time per packet changed, and with it the maximum packet rate of the
    /// machine.
    Evenness,
    /// The time per packet of all CPUs together changed.
    CpuTime,
    /// The old and the new setting do not differ beyond the noise.
    Noise,
    /// The new setting lost more packets than the old setting, so the window ended early.
    Drops,
    /// Too few packets arrived, or the packets took too little CPU time.
    TooFew,
}

/// The comparison of an old and a new setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// True if the new setting is kept.
    pub keep: bool,
    /// The reason for the verdict.
    pub reason: Reason,
    /// True if the machine was at its limit. The throughput shows whether a setting helps only if
    /// the machine was at its limit.
    pub at_limit: bool,
    /// The new packet rate divided by the old packet rate.
    pub throughput: Option<Ratio>,
    /// The busiest CPU's new time per packet divided by its old time per packet.
    pub busiest: Option<Ratio>,
    /// The new CPU time per packet, of all CPUs together, divided by the old time.
    pub cost: Option<Ratio>,
}

impl Verdict {
    /// Compares pairs of windows. In each pair, the first window was measured with the old setting.
    /// `drops_rose` is true if the last new window ended early because of drops.
    ///
    /// The verdict depends on the first of these figures that differs by more than the noise: the
    /// throughput if the machine was at its limit, the busiest CPU's time per packet (which
    /// determines the maximum throughput), the time per packet of all CPUs. If a comparison decides
    /// for the new setting, the reverse comparison never decides for the old setting, so a second
    /// measurement does not undo the first.
    pub fn of(pairs: &[(Window, Window)], drops_rose: bool) -> Self {
        let ratio = |value: fn(&Window) -> f64| Ratio::of(pairs.iter().map(|(old, new)| (value(old), value(new))));
        let limited = pairs.iter().filter(|(old, new)| old.is_at_limit() || new.is_at_limit()).count();
        let mut verdict = Self {
            keep: false,
            reason: Reason::Noise,
            at_limit: 2 * limited > pairs.len(),
            throughput: ratio(Window::rate),
            busiest: ratio(|window| window.busiest_ticks / window.packets as f64),
            cost: ratio(|window| window.ticks / window.packets as f64),
        };
        if drops_rose {
            verdict.reason = Reason::Drops;
            return verdict;
        }
        let is_silent = pairs.iter().any(|(old, new)| old.says_nothing() || new.says_nothing());
        if pairs.is_empty() || is_silent {
            verdict.reason = Reason::TooFew;
            return verdict;
        }
        // Each figure has two booleans: whether the new setting is better, and whether it is worse.
        let throughput =
            verdict.throughput.filter(|_| verdict.at_limit).map(|ratio| (ratio.is_more(), ratio.is_less()));
        let less = |ratio: Option<Ratio>| ratio.map(|ratio| (ratio.is_less(), ratio.is_more()));
        let figures = [
            (Reason::Throughput, throughput),
            (Reason::Evenness, less(verdict.busiest)),
            (Reason::CpuTime, less(verdict.cost)),
        ];
        for (reason, figure) in figures {
            if let Some((is_better, _)) = figure.filter(|(is_better, is_worse)| *is_better || *is_worse) {
                (verdict.keep, verdict.reason) = (is_better, reason);
                break;
            }
        }
        verdict
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match (self.reason, self.keep) {
            (Reason::Throughput, true) => "more packets per second",
            (Reason::Throughput, false) => "fewer packets per second",
            (Reason::Evenness, true) => "the busiest CPU needs less time for a packet",
            (Reason::Evenness, false) => "the busiest CPU needs more time for a packet",
            (Reason::CpuTime, true) => "less CPU time for a packet",
            (Reason::CpuTime, false) => "more CPU time for a packet, and neither throughput nor evenness gained",
            (Reason::Noise, _) => "no difference beyond noise",
            (Reason::Drops, _) => "more packets were lost, so the window ended at once",
            (Reason::TooFew, _) => "too little traffic to compare",
        };
        write!(f, "{}: {why}", if self.keep { "kept" } else { "taken back" })?;
        if !self.at_limit {
            write!(f, "; not measured at the limit")?;
        }
        let figures = [
            ("throughput", self.throughput),
            ("busiest CPU's time per packet", self.busiest),
            ("CPU time per packet", self.cost),
        ];
        for (name, ratio) in figures {
            if let Some(ratio) = ratio {
                write!(f, "; {name} {ratio}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of five seconds. `packets` and `lost` are in thousands.
    fn window(packets: u64, lost: u64, ticks: f64, busiest_ticks: f64) -> Window {
        let (packets, lost) = (packets * 1_000, lost * 1_000);
        Window { seconds: 5.0, packets, lost, ticks, busiest_ticks, busiest: busiest_ticks / 500.0 }
    }

    /// Six pairs of windows that differ by up to two percent.
    fn pairs(old: Window, new: Window) -> Vec<(Window, Window)> {
        let noisy = |window: Window, nth: u32| {
            let factor = 1.0 + 0.01 * f64::from(nth % 3);
            Window { packets: (window.packets as f64 * factor) as u64, ..window }
        };
        (0..6).map(|nth| (noisy(old, nth), noisy(new, nth * 2 + 1))).collect()
    }

    fn verdict(old: Window, new: Window) -> (bool, Reason, bool) {
        let verdict = Verdict::of(&pairs(old, new), false);
        (verdict.keep, verdict.reason, verdict.at_limit)
    }

    #[test]
    fn more_packets_at_the_limit_are_kept() {
        let (one, two) = (window(1_000, 300, 490.0, 490.0), window(1_700, 0, 900.0, 480.0));
        assert_eq!(verdict(one, two), (true, Reason::Throughput, true));
        assert_eq!(verdict(two, one), (false, Reason::Throughput, true));
    }

    #[test]
    fn below_the_limit_the_busiest_cpu_decides_and_then_the_time() {
        let (one, two) = (window(1_000, 0, 200.0, 200.0), window(1_000, 0, 240.0, 130.0));
        assert_eq!(verdict(one, two), (true, Reason::Evenness, false));
        assert_eq!(verdict(two, one), (false, Reason::Evenness, false));
        // The new setting spreads the load as evenly as the old setting, but needs less CPU time.
        let cheap = window(1_000, 0, 150.0, 130.0);
        assert_eq!(verdict(two, cheap), (true, Reason::CpuTime, false));
    }

    #[test]
    fn cpu_time_alone_is_not_worth_it() {
        let (cheap, dear) = (window(1_000, 0, 150.0, 130.0), window(1_000, 0, 190.0, 130.0));
        assert_eq!(verdict(cheap, dear), (false, Reason::CpuTime, false));
        let text = Verdict::of(&pairs(cheap, dear), false).to_string();
        assert!(text.starts_with("taken back: more CPU time") && text.contains("not measured at the limit"), "{text}");
    }

    #[test]
    fn noise_is_taken_back() {
        let same = window(1_000, 0, 200.0, 150.0);
        assert_eq!(verdict(same, same), (false, Reason::Noise, false));
        // A gain of two percent is too small, even if it is certain.
        let gain = |_| (window(1_000, 0, 200.0, 150.0), window(1_000, 0, 200.0, 147.0));
        assert_eq!(Verdict::of(&(0..6).map(gain).collect::<Vec<_>>(), false).reason, Reason::Noise);
        // The mean gain is a fifth, but very uncertain.
        let wild = [120.0, 220.0, 90.0, 160.0, 70.0, 100.0];
        let wild: Vec<_> = wild.map(|ticks| (same, window(1_000, 0, 200.0, ticks))).into();
        let verdict = Verdict::of(&wild, false);
        assert!(!verdict.keep && verdict.busiest.unwrap().mean < 0.85, "{verdict}");
    }

    #[test]
    fn drops_that_rise_end_it() {
        let before = [window(1_000, 1, 200.0, 150.0), window(1_000, 2, 200.0, 150.0)];
        assert!(window(1_000, 20, 200.0, 150.0).loses_more_than(&before));
        assert!(!window(1_000, 2, 200.0, 150.0).loses_more_than(&before));
        // A difference in losses is noise if it is not larger than the differences between the
        // earlier windows.
        let noisy = [window(1_000, 10, 200.0, 150.0), window(1_000, 60, 200.0, 150.0)];
        assert!(!window(1_000, 100, 200.0, 150.0).loses_more_than(&noisy));
        assert!(window(1_000, 140, 200.0, 150.0).loses_more_than(&noisy));
        // If drops rise, the new setting is not kept, even with a higher throughput.
        let better = pairs(window(1_000, 300, 490.0, 490.0), window(1_700, 900, 900.0, 480.0));
        let verdict = Verdict::of(&better, true);
        assert_eq!((verdict.keep, verdict.reason), (false, Reason::Drops));
    }

    /// On a veth without RPS, the sending thread also does the receiver's work, which limits the
    /// thread's rate. With RPS, the sending thread is faster, and the backlog drops the packets
    /// that the receiver cannot handle.
    #[test]
    fn a_sender_without_a_limit_loses_packets_and_gets_more_of_them_through() {
        let (old, new) = (window(1_000, 0, 490.0, 490.0), window(1_800, 5_400, 900.0, 480.0));
        assert!(!new.loses_more_than(&[old]));
        assert_eq!(verdict(old, new), (true, Reason::Throughput, true));
        // The same losses without a higher packet rate end the window early.
        assert!(window(1_000, 5_400, 900.0, 480.0).loses_more_than(&[old]));
    }

    #[test]
    fn a_few_lost_packets_are_no_limit() {
        let (old, new) = (window(1_000, 0, 200.0, 150.0), Window { lost: 3, ..window(1_100, 0, 200.0, 150.0) });
        assert!(!Verdict::of(&pairs(old, new), false).at_limit);
    }

    #[test]
    fn silence_decides_nothing() {
        let quiet = Window { packets: 30, ..window(0, 0, 200.0, 100.0) };
        assert_eq!(verdict(quiet, quiet).1, Reason::TooFew);
        assert_eq!(verdict(window(1_000, 0, 0.0, 0.0), window(1_000, 0, 3.0, 3.0)).1, Reason::TooFew);
        assert_eq!(Verdict::of(&[], false).reason, Reason::TooFew);
    }

    /// The expected interval is computed by hand from the logarithms 0, ln 1.1 and ln 1.21.
    #[test]
    fn the_interval_is_students() {
        let ratio = Ratio::of([(1.0, 1.0), (10.0, 11.0), (100.0, 121.0)]).unwrap();
        let half = 9.925 * 1.1_f64.ln() / 3.0_f64.sqrt();
        assert!((ratio.mean - 1.1).abs() < 1e-9, "{ratio}");
        assert!((ratio.high / 1.1 - half.exp()).abs() < 1e-9 && (1.1 / ratio.low - half.exp()).abs() < 1e-9, "{ratio}");
        assert!(Ratio::of([(1.0, 2.0)]).unwrap().high.is_infinite());
        assert!(Ratio::of([(0.0, 1.0), (1.0, 1.0)]).is_none());
    }

    #[test]
    fn what_a_card_lost_it_had_received() {
        let cpu = |softirq, dropped| CpuCounts { softirq, system: 50, dropped, all: 500, ..CpuCounts::default() };
        let cpus = [(steerage::CpuId(0), cpu(450, 40)), (steerage::CpuId(1), cpu(50, 0))].into();
        let passed = Sample { uptime: 500, packets: 1_000, lost: 30, cpus };
        let card = Window::of(&passed, 5.0, true, false);
        assert_eq!(
            (card.packets, card.lost, card.ticks, card.busiest_ticks, card.busiest),
            (960, 40, 500.0, 450.0, 0.9)
        );
        let veth = Window::of(&passed, 5.0, false, true);
        assert_eq!((veth.packets, veth.ticks, veth.busiest), (1_000, 600.0, 1.0));
    }
}
