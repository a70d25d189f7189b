//! Decides from pairs of measurement windows whether a setting is kept.

use std::fmt;

use crate::facts::{CpuCounts, Sample};

/// A changed setting is kept only if its gain (as a fraction) is at least this value. A gain below
/// this minimum is not worth the reordering of packets that a change causes. Also, the next
/// measurement might show a loss instead.
const GAIN_MIN: f64 = 0.03;

/// The machine is at its throughput limit if a CPU spends at least this share of its time in
/// interrupts. Even at the limit, the rest of the CPU's time is used by threads that share the CPU
/// with ksoftirqd, the kernel's thread for interrupt work.
const LIMIT: f64 = 0.9;

/// The minimum number of packets in a measurement window. With fewer packets in a measurement
/// window, the time per packet is not accurate enough.
const PACKETS_MIN: u64 = 1_000;

/// In a measurement window, CPUs must spend at least this number of ticks in interrupts. The kernel
/// counts whole ticks of 10 ms, so five ticks are accurate to a fifth.
const TICKS_MIN: f64 = 5.0;

/// Shares of lost packets that are smaller than `LOST_MIN` are ignored. Such a small share of lost
/// packets does not show that the machine is at its limit, or that more packets are lost than
/// before.
const LOST_MIN: f64 = 0.001;

/// The quantiles of Student's t-distribution for a two-sided interval of 99 %, for 1 to 30 degrees
/// of freedom.
const T_99: [f64; 30] = [
    63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947, 2.921,
    2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.750,
];

/// The counts of one measurement window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// The length in seconds.
    pub seconds: f64,
    /// The number of packets that the kernel handled.
    pub packets: u64,
    /// Packets that were lost.
    pub lost: u64,
    /// The number of ticks that all CPUs spent in interrupts. With threaded NAPI, the count also
    /// includes the ticks that CPUs spent in the kernel outside of interrupts.
    pub ticks: f64,
    /// The number of ticks that the busiest CPU spent in interrupts, counted like the field
    /// `ticks`.
    pub busiest_ticks: f64,
    /// The share of its time that the busiest CPU spent in interrupts, counted like the field
    /// `ticks`.
    pub busiest: f64,
}

impl Window {
    /// Creates a measurement window from the difference between two readings of the counters.
    /// `losses_are_received` is true if the interface counts a packet as received even if the
    /// packet is lost later. Network cards count packets as received even if they are lost later. A
    /// veth does not. `threads` is true if packets may also be handled outside of interrupts, by
    /// threads of the kernel.
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

    /// Returns true if a larger share of packets was lost in this measurement window than in each
    /// of the other windows. The result is true only if two conditions hold: the difference between
    /// the shares exceeds the differences between the other windows, and the machine did not handle
    /// packets at a higher rate. The packet rate matters because a sender with an unlimited rate
    /// always loses packets. If a sender sends at an unlimited rate and the machine handles more of
    /// its packets, more of them may also be lost.
    pub fn loses_more_than(&self, others: &[Self]) -> bool {
        let shares = || others.iter().map(Self::lost_share);
        let (most, least) = (shares().fold(0.0, f64::max), shares().fold(1.0, f64::min));
        let noise = (most - least).max(0.0);
        let rate = others.iter().map(Self::rate).fold(0.0, f64::max);
        self.lost_share() > most + noise + LOST_MIN && self.rate() <= rate
    }
}

/// The ratio of a new value to an old value, with its confidence interval of 99 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The geometric mean of the ratios of all pairs of windows.
    pub mean: f64,
    /// The lower end of the confidence interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Ratio {
    /// Computes the mean ratio of new to old values over all pairs. The confidence interval of the
    /// mean is computed from the t-distribution of the logarithms. With fewer than two pairs of
    /// windows, the confidence interval is unlimited. Returns `None` if `pairs` is empty, or if a
    /// value is not positive.
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

/// The reason why a new setting is kept or undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The machine was at its limit, and handled more or fewer packets with the new setting.
    Throughput,
    /// With the new setting, the busiest CPU needs less or more time per packet. Because the
    /// busiest CPU's time per packet has changed, the machine's maximum packet rate is higher or
    /// lower with the new setting.
    Evenness,
    /// With the new setting, all CPUs together need less or more time per packet.
    CpuTime,
    /// The differences between the old and the new setting are not larger than the noise.
    Noise,
    /// More packets were lost with the new setting than with the old one, so the measurement window
    /// was ended early.
    Drops,
    /// Too few packets arrived, or they took too little CPU time, to compare the settings.
    TooFew,
}

/// The result of a comparison between an old and a new setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// True if the new setting is kept.
    pub keep: bool,
    /// Why.
    pub reason: Reason,
    /// True if the machine was at its limit. The throughput shows whether a setting helps only if
    /// the machine is at its limit.
    pub at_limit: bool,
    /// The packet rate with the new setting divided by the packet rate with the old setting.
    pub throughput: Option<Ratio>,
    /// The busiest CPU's time per packet with the new setting, divided by its time per packet with
    /// the old setting.
    pub busiest: Option<Ratio>,
    /// The time per packet of all CPUs together with the new setting, divided by the time with the
    /// old setting.
    pub cost: Option<Ratio>,
}

impl Verdict {
    /// Compares pairs of measurement windows. Each pair has one window with the old setting and one
    /// with the new setting. `drops_rose` is true if the last window with the new setting ended
    /// early because packets were dropped.
    ///
    /// Three figures of the settings are compared in order. The first figure that differs by more
    /// than the noise decides. The first figure that is compared is the throughput, if the machine
    /// was at its limit. The second figure that is compared is the busiest CPU's time per packet,
    /// which determines the throughput limit. The third figure that is compared is the time per
    /// packet of all CPUs. If a comparison decides for the new setting, the reverse comparison
    /// would not decide for the old setting. Therefore a second measurement of the two settings
    /// does not undo the result of the first.
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
        // A setting is better if the throughput is higher, or if the time per packet is shorter.
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

    /// Creates a measurement window of five seconds. `packets` and `lost` are in thousands. `ticks`
    /// is the number of ticks of all CPUs, and `busiest_ticks` is the number of ticks of the
    /// busiest CPU.
    fn window(packets: u64, lost: u64, ticks: f64, busiest_ticks: f64) -> Window {
        let (packets, lost) = (packets * 1_000, lost * 1_000);
        Window { seconds: 5.0, packets, lost, ticks, busiest_ticks, busiest: busiest_ticks / 500.0 }
    }

    /// Creates six pairs of measurement windows. The values differ by up to two percent from pair
    /// to pair.
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
        // The new setting spreads the load over the CPUs as evenly as the old setting, but needs
        // less CPU time.
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
        // Even if it is certain, a gain of two percent is too small for a setting to be kept.
        let gain = |_| (window(1_000, 0, 200.0, 150.0), window(1_000, 0, 200.0, 147.0));
        assert_eq!(Verdict::of(&(0..6).map(gain).collect::<Vec<_>>(), false).reason, Reason::Noise);
        // The gain is a fifth on average, but it is very uncertain.
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
        // A window's difference from the earlier windows is noise if it is not larger than the
        // differences among the earlier windows.
        let noisy = [window(1_000, 10, 200.0, 150.0), window(1_000, 60, 200.0, 150.0)];
        assert!(!window(1_000, 100, 200.0, 150.0).loses_more_than(&noisy));
        assert!(window(1_000, 140, 200.0, 150.0).loses_more_than(&noisy));
        // If more packets are dropped, the setting is not kept, even if its throughput is higher.
        let better = pairs(window(1_000, 300, 490.0, 490.0), window(1_700, 900, 900.0, 480.0));
        let verdict = Verdict::of(&better, true);
        assert_eq!((verdict.keep, verdict.reason), (false, Reason::Drops));
    }

    /// On a veth without RPS, the sending thread also does the receiver's work. Therefore the
    /// sending thread cannot send more packets than the machine handles. With RPS, the sender can
    /// send more packets, and the backlog drops the packets that do not fit.
    #[test]
    fn a_sender_without_a_limit_loses_packets_and_gets_more_of_them_through() {
        let (old, new) = (window(1_000, 0, 490.0, 490.0), window(1_800, 5_400, 900.0, 480.0));
        assert!(!new.loses_more_than(&[old]));
        assert_eq!(verdict(old, new), (true, Reason::Throughput, true));
        // If as many packets are lost but the machine does not handle packets at a higher rate, the
        // measurement window ends early.
        assert!(window(1_000, 5_400, 900.0, 480.0).loses_more_than(&[old]));
    }

    /// The machine does not count as being at its limit if it lost only a few packets.
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

    /// The expected confidence interval of three pairs, computed by hand from the logarithms 0, ln
    /// 1.1 and ln 1.21.
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
