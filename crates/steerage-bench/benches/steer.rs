//! Steering by load beside no steering and fixed masks: throughput, delay and CPU time, by what the function takes for a packet
//! and by how much is offered.
//!
//! `cargo bench -p steerage-bench --bench steer [-- ROUNDS [NS ...] [PERCENT% ...]]`. For each function cost the ways run in turn,
//! A B C D A B C D ...; of a load of 0 % there is always more.
//! Overload comes from a source that can wait, so nothing is lost and the rate is what was done; a part of a load from one that
//! cannot. `allowed` is what two CPUs could do if all of the work were cut in halves: from the time that both took for a packet
//! where one receives and the other works.
#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use steerage::{
    Balance, Batch, Builder, Completions, Cpu, CpuId, CpuMask, DeviceError, Filled, Handler, Hash, Input, Polled,
    QueueMemory, RxQueue, Timestamp,
};
use steerage_bench::measure::{RX_CPU, WORK_CPU};
use steerage_bench::placement::{Placement, one_way_nanos};

/// How long each run warms up, and is measured.
const WARM: Duration = Duration::from_millis(1000);
const MEASURED: Duration = Duration::from_millis(2000);

const FRAME_BYTES: usize = 64;
const FLOWS: u32 = 65_536;
/// Frames that a device holds while nobody polls it, as a NIC's ring.
const DEVICE_RING: u64 = 4096;

/// Shares of what one CPU can do that are offered; 0 is more than anybody can.
const OFFERED: [f64; 3] = [0.01, 0.5, 0.0];
const COSTS: [u64; 8] = [0, 20, 50, 100, 200, 500, 1000, 2000];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Inline,
    Worker,
    Both,
    Balance,
}

const WAYS: [(Way, &str); 4] =
    [(Way::Inline, "no steering"), (Way::Worker, "mask 2"), (Way::Both, "mask 3"), (Way::Balance, "balance")];

/// UDP flows at a steady rate, each frame with the time at which it was due.
struct Paced {
    /// Nanoseconds between frames; 0: as many as are asked for.
    gap: f64,
    next: f64,
    chance: u64,
}

impl RxQueue for Paced {
    fn memory(&mut self) -> Result<QueueMemory, DeviceError> {
        Ok(QueueMemory::Pages { frame_bytes_max: FRAME_BYTES })
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let now = out.now().as_nanos();
        let mut count = budget;
        if self.gap > 0.0 {
            if self.next == 0.0 {
                self.next = now as f64;
            }
            let due = ((now as f64 - self.next) / self.gap) as u64;
            if due > DEVICE_RING {
                out.lost(due - DEVICE_RING);
                self.next += (due - DEVICE_RING) as f64 * self.gap;
            }
            count = budget.min(due as usize);
        }
        let Self { gap, next, chance } = self;
        out.fill(count, |page| {
            *chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let flow = (*chance >> 33) as u32 % FLOWS;
            let frame: &mut [u8; FRAME_BYTES] = page.first_chunk_mut().expect("a page holds a frame");
            *frame = [0; FRAME_BYTES];
            (frame[12], frame[14], frame[17], frame[22], frame[23]) = (8, 0x45, 50, 64, 17);
            frame[26..30].copy_from_slice(&(0x0a00_0000 + flow).to_be_bytes());
            frame[30..34].copy_from_slice(&[192, 168, 0, 1]);
            frame[34..38].copy_from_slice(&[4, 0, 0, 9]);
            frame[39] = 30;
            frame[42..50].copy_from_slice(&(*next as u64).to_le_bytes());
            *next += *gap;
            Filled { len: FRAME_BYTES, wire_len: FRAME_BYTES, hash: None }
        });
        out.prefetch_pages(budget);
        if self.gap > 0.0 && count < budget {
            return Ok(Polled::NotBefore(Timestamp::from_nanos(self.next as u64)));
        }
        Ok(Polled::More)
    }

    fn can_wait(&self) -> bool {
        self.gap == 0.0
    }
}

/// So many rounds of arithmetic that nobody can shorten.
#[inline(never)]
fn spin(rounds: u64, seed: u64) -> u64 {
    (0..rounds).fold(seed | 1, |x, _| std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).rotate_left(17)))
}

/// Works for a while on each packet, and notes how old packets are when it is done with them.
struct Works {
    rounds: u64,
    sum: u64,
    /// Ages by powers of two and eighths of them, in nanoseconds.
    ages: Vec<u64>,
}

fn slot(nanos: u64) -> usize {
    let nanos = nanos.max(8);
    let power = nanos.ilog2() as usize;
    power * 8 + (nanos >> (power - 3)) as usize % 8
}

fn nanos_of(slot: usize) -> f64 {
    (8 + slot % 8) as f64 * 2f64.powi((slot / 8) as i32 - 3)
}

impl Handler for Works {
    type Moved = ();
    type Report = Vec<u64>;

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        let began = cpu.now();
        let mut oldest = None;
        for packet in batch.iter_mut() {
            let stamp = u64::from_le_bytes(*packet.data()[42..].first_chunk().expect("a stamp"));
            self.sum = self.sum.wrapping_add(spin(self.rounds, stamp));
            oldest = oldest.or(Some(stamp));
        }
        if let Some(stamp) = oldest {
            self.ages[slot(began.as_nanos().saturating_sub(stamp))] += 1;
        }
    }

    fn finish(self) -> Vec<u64> {
        std::hint::black_box(self.sum);
        self.ages
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    per_second: f64,
    p50: f64,
    p99: f64,
    /// CPU seconds a second.
    cpu: f64,
    /// What both CPUs were busy with a packet, in nanoseconds.
    busy: f64,
}

fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("what this process used");
    Duration::from_micros((usage.user_time() + usage.system_time()).num_microseconds() as u64)
}

fn run(way: Way, rounds: u64, per_second: f64) -> Figures {
    let gap = if per_second > 0.0 { 1e9 / per_second } else { 0.0 };
    let queue = Paced { gap, next: 0.0, chance: 1 };
    let input = Input { name: "paced".into(), kind: "bench", mode: "", queues: vec![Box::new(queue)] };
    let cpus: CpuMask = [RX_CPU, WORK_CPU].map(|cpu| CpuId(cpu as u16)).into_iter().collect();
    let mask: CpuMask = match way {
        Way::Inline => CpuMask::new(),
        Way::Worker => [CpuId(WORK_CPU as u16)].into_iter().collect(),
        Way::Both | Way::Balance => cpus.clone(),
    };
    let builder = Builder::new().cpus(cpus).rps_cpus(mask).input_on(input, &[CpuId(RX_CPU as u16)], None);
    let builder = if way == Way::Balance { builder.policy(Balance::new()) } else { builder.policy(Hash) };
    let make = move |_| Works { rounds, sum: 0, ages: vec![0; 64 * 8] };
    let running = builder.build(make).and_then(steerage::Instance::start).expect("a benchmark that can be set up");
    let handle = running.handle();
    std::thread::sleep(WARM);
    let (before, cpu_before) = (handle.snapshot(), cpu_time());
    std::thread::sleep(MEASURED);
    let (after, cpu_after) = (handle.snapshot(), cpu_time());
    handle.stop();
    let outcome = running.join();
    let seconds = (after.elapsed - before.elapsed).as_secs_f64();
    let delivered = (after.delivered() - before.delivered()) as f64;
    let busy: Duration = after.cpus.iter().zip(&before.cpus).map(|(after, before)| after.busy - before.busy).sum();
    let mut ages = vec![0; 64 * 8];
    outcome.reports.iter().for_each(|(_, report)| ages.iter_mut().zip(report).for_each(|(all, one)| *all += one));
    let total: u64 = ages.iter().sum();
    let quantile = |share: f64| {
        let mut left = (total as f64 * share) as u64;
        let at = ages.iter().position(|count| {
            let found = *count > left;
            left = left.saturating_sub(*count);
            found
        });
        at.map_or(0.0, nanos_of)
    };
    Figures {
        per_second: delivered / seconds,
        p50: quantile(0.5),
        p99: quantile(0.99),
        cpu: (cpu_after - cpu_before).as_secs_f64() / seconds,
        busy: busy.as_nanos() as f64 / delivered.max(1.0),
    }
}

fn median(mut of: Vec<f64>) -> (f64, f64, f64) {
    of.sort_by(f64::total_cmp);
    (of[of.len() / 2], of[0], of[of.len() - 1])
}

/// How many rounds of [`spin`] take a microsecond.
fn calibrated() -> f64 {
    let rounds = 20_000_000;
    let start = std::time::Instant::now();
    std::hint::black_box(spin(rounds, 3));
    rounds as f64 / (start.elapsed().as_nanos() as f64 / 1e3)
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let times: usize = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(3);
    let (shares, numbers): (Vec<String>, Vec<String>) = args.partition(|arg| arg.ends_with('%'));
    let asked: Vec<u64> = numbers.iter().filter_map(|arg| arg.parse().ok()).collect();
    let offered_asked: Vec<f64> = shares.iter().filter_map(|arg| arg.trim_end_matches('%').parse().ok()).collect();
    let parts =
        if shares.is_empty() { OFFERED.to_vec() } else { offered_asked.iter().map(|part| part / 100.0).collect() };
    let costs = if asked.is_empty() { COSTS.to_vec() } else { asked };
    let each = calibrated();
    println!("{times} rounds; median [least..most]\n");
    println!(
        "{:>5} {:>8}  {:<12} {:<26} {:>9} {:>9} {:>7}  of the better fixed  of allowed",
        "ns", "offered", "", "kpps", "p50 us", "p99 us", "CPUs"
    );
    for cost in costs {
        let rounds = (cost as f64 * each / 1e3) as u64;
        // What one CPU can do alone, to offer parts of it.
        let solo = run(Way::Inline, rounds, 0.0).per_second;
        for offered in parts.iter().copied() {
            let mut seen: Vec<Vec<Figures>> = vec![Vec::new(); WAYS.len()];
            let placed = one_way_nanos(WORK_CPU);
            for _ in 0..times {
                for (at, (way, _)) in WAYS.iter().enumerate() {
                    seen[at].push(run(*way, rounds, solo * offered));
                }
            }
            let placement = Placement::of(placed, one_way_nanos(WORK_CPU));
            for (at, (_, name)) in WAYS.iter().enumerate() {
                let column = |of: fn(&Figures) -> f64| median(seen[at].iter().map(of).collect());
                let (mid, low, high) = column(|f| f.per_second / 1e3);
                let best = |round: usize| (0..3).map(|way| seen[way][round].per_second).fold(0.0, f64::max);
                let ratios = seen[at].iter().enumerate().map(|(round, f)| f.per_second / best(round)).collect();
                let allowed = (0..times).map(|round| seen[at][round].per_second * seen[1][round].busy / 2e9).collect();
                let (ratio, least, most) = median(ratios);
                let share = if offered == 0.0 { format!("{:.3}", median(allowed).0) } else { String::new() };
                let offer = if offered == 0.0 { "more".to_owned() } else { format!("{:.0} %", offered * 100.0) };
                println!(
                    "{cost:>5} {offer:>8}  {name:<12} {:<26} {:>9.1} {:>9.1} {:>7.2}  {ratio:.3} [{least:.3}..{most:.3}]  {share}",
                    format!("{mid:.0} [{low:.0}..{high:.0}]"),
                    column(|f| f.p50).0 / 1e3,
                    column(|f| f.p99).0 / 1e3,
                    column(|f| f.cpu).0,
                );
            }
            println!("{:>5} {placement}", "");
        }
    }
}
