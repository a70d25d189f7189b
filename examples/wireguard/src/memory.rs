//! Measures the gateway without a network. Runs with one CPU alternate with runs with two CPUs. In
//! each run, the gateway encrypts or decrypts recorded traffic of eight peers.
//!
//! The measurement also gives four costs of a packet: to receive it, to work on it (encrypt or
//! decrypt), to hand it over to another CPU, and to take it over from another CPU. The costs of a
//! packet determine the highest possible rate of two CPUs.

use std::error::Error;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use boringtun::noise::{Tunn, TunnResult};
use steerage::device::TxQueue;
use steerage::limits::ORIGINATED_MAX;
use steerage::{Balance, Batch, Builder, Cpu, CpuId, CpuMask, Handler, Hash, Input, InputId, Outcome, Output, TxId};

use crate::FRAME_BYTES;
use crate::gateway::{Counts, Devices, Gateway, Peer, put_headers};
use crate::network::Network;
use crate::traffic::{Check, Checked, Connected, Frames, PEERS, Recorded, Work, connect, plain, sealed};

/// A series is a set of runs with the same conditions: which CPUs take part, and what each CPU does
/// with the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Series {
    /// One CPU receives packets and does nothing with them, which costs r (receive) per packet.
    Receive,
    /// One CPU does everything, which costs r + w (receive and work) per packet.
    One,
    /// One CPU receives packets and hands all of them to the second CPU, which does nothing with
    /// them. The receiving CPU's cost per packet is r + h (receive and hand over).
    Give,
    /// One CPU receives packets and hands all of them to the second CPU, which encrypts or decrypts
    /// them. The second CPU's cost per packet is w + c (work and take over).
    Take,
    /// Two CPUs work. The receiving CPU handles three peers, and the other CPU handles five peers.
    Two,
    /// The policy `balance` spreads the peers over two CPUs.
    Balance,
    /// Two CPUs work, and the CPU mask changes 100 times a second.
    Shaken,
}

impl Series {
    fn cpus(self) -> u16 {
        if matches!(self, Self::Receive | Self::One) { 1 } else { 2 }
    }

    fn works(self) -> bool {
        !matches!(self, Self::Receive | Self::Give)
    }
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// Nanoseconds per packet in the second half of the run.
    nanos: f64,
    /// The share of the packets that the receiving CPU handled itself.
    own: f64,
}

/// Prints one row for each round of measurements, and then the medians of all rounds.
pub(crate) fn measure(rounds: usize, packets: usize) -> Result<(), Box<dyn Error>> {
    println!("the flow key of a handshake's first message: {:.0} us", handshake_key()?.as_nanos() as f64 / 1000.0);
    println!("ns per packet: r receive, w work, h give, c take; one CPU, two CPUs");
    println!(
        "over one CPU: two gateways that share nothing (apart), 2(r+w)/(r+w+h+c) (bound), two CPUs (reached), `balance`"
    );
    println!("own: the share of the packets that the CPU that receives handles with `balance`");
    for work in [Work::Seal, Work::Open] {
        let mut all = Vec::new();
        for round in 0..rounds {
            all.push(measure_round(work, packets, round)?);
            print_row(work, all.last().ok_or("no round")?);
        }
        let mut middle = [0.0; VALUES];
        for (nth, middle) in middle.iter_mut().enumerate() {
            let mut values: Vec<f64> = all.iter().map(|values| values[nth]).collect();
            values.sort_by(f64::total_cmp);
            *middle = *values.get(rounds / 2).ok_or("no round")?;
        }
        println!("medians of {rounds} rounds:");
        print_row(work, &middle);
        let Run { nanos, .. } = run(work, Series::Shaken, packets)?;
        println!("{work:?}: {nanos:.0} ns per packet while masks change, in order");
    }
    Ok(())
}

/// The number of values that a round measures and prints.
const VALUES: usize = 12;

/// Runs all series in turn. A round runs each series once. Each round begins with another series
/// (kind of run) than the round before.
fn measure_round(work: Work, packets: usize, round: usize) -> Result<[f64; VALUES], Box<dyn Error>> {
    const SERIES: [Series; 6] =
        [Series::Receive, Series::One, Series::Give, Series::Take, Series::Two, Series::Balance];
    let (mut runs, mut alone) = ([Run::default(); SERIES.len()], 0.0);
    for step in 0..=SERIES.len() {
        let nth = (step + round) % (SERIES.len() + 1);
        match SERIES.get(nth) {
            Some(series) => runs[nth] = run(work, *series, packets)?,
            None => alone = run_apart(work, packets)?,
        }
    }
    let [receive, one, give, take, two, balance] = runs.map(|run| run.nanos);
    let (r, w) = (receive, one - receive);
    let (h, c) = (give - r, take - w);
    let (bound, reached) = (2.0 * (r + w) / (r + w + h + c), one / two);
    Ok([r, w, h, c, one, two, one / alone, bound, reached, reached / bound, one / balance, runs[5].own])
}

fn print_row(work: Work, values: &[f64; VALUES]) {
    let [r, w, h, c, one, two, apart, bound, reached, part, balance, own] = values;
    println!(
        "{work:?}: r {r:.0}, w {w:.0}, h {h:.0}, c {c:.0}; one CPU {one:.0}, two {two:.0}; apart {apart:.2}, bound {bound:.2}, \
         reached {reached:.2}, {part:.2} of the bound; balance {balance:.2}, own {own:.2}"
    );
}

/// Returns the time to compute the flow key of a handshake's first message.
fn handshake_key() -> Result<Duration, Box<dyn Error>> {
    // The number of handshake messages to measure, all of which the rate limiter lets pass.
    const TIMES: u32 = 100;
    let Connected { network, mut theirs, .. } = connect()?;
    let mut frame = vec![0; 28 + 148];
    let first = theirs[0].format_handshake_initiation(&mut frame[28..], true);
    assert!(matches!(first, TunnResult::WriteToNetwork(_)), "{first:?}");
    put_headers(&mut frame, 40000, ([192, 0, 2, 1], 51820).into());
    let began = Instant::now();
    for _ in 0..TIMES {
        network.flow_key(&frame).ok_or("the message has no peer")?;
    }
    Ok(began.elapsed() / TIMES)
}

/// Makes the packets to encrypt, or the messages to decrypt.
fn record(work: Work, theirs: &mut [Tunn; PEERS], packets: usize) -> Frames {
    match work {
        Work::Seal => plain(packets),
        Work::Open => sealed(theirs, packets),
    }
}

/// Records traffic, and handles the traffic on the CPUs that this series (kind of run) uses.
fn run(work: Work, series: Series, packets: usize) -> Result<Run, Box<dyn Error>> {
    let Connected { network, ours, mut theirs } = connect()?;
    let frames = record(work, &mut theirs, packets);
    let cpus = (0..series.cpus()).map(CpuId).collect();
    if series.works() {
        gateway(cpus, work, series, frames, &network, ours)
    } else {
        receive_only(cpus, series, frames, &network)
    }
}

/// Runs two gateways at the same time, and returns the nanoseconds per packet of both together.
/// Each gateway has its own CPU and half of the packets.
fn run_apart(work: Work, packets: usize) -> Result<f64, Box<dyn Error>> {
    let half = || -> Result<_, Box<dyn Error>> {
        let Connected { network, ours, mut theirs } = connect()?;
        let frames = record(work, &mut theirs, packets / 2);
        Ok((network, ours, frames))
    };
    let halves = [half()?, half()?];
    let threads = halves.into_iter().zip([CpuId(0), CpuId(1)]).map(|((network, ours, frames), cpu)| {
        thread::spawn(move || {
            gateway(CpuMask::from_iter([cpu]), work, Series::One, frames, &network, ours).map_err(|e| e.to_string())
        })
    });
    let mut rate = 0.0;
    for thread in threads.collect::<Vec<_>>() {
        rate += 1.0 / thread.join().map_err(|_| "a thread panicked")??.nanos;
    }
    Ok(1.0 / rate)
}

/// A handler that only counts packets.
struct Discard;

impl Handler for Discard {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, _batch: &mut Batch<'_>, _cpu: &mut Cpu) {}

    fn finish(self, _cpu: &mut Cpu) {}
}

fn receive_only(cpus: CpuMask, series: Series, frames: Frames, network: &Arc<Network>) -> Result<Run, Box<dyn Error>> {
    // In `Series::Give`, which hands packets to the other CPU, each packet gets a flow key and a
    // hash.
    let builder = |builder: Builder| builder.always_hash(series == Series::Give).build(|_cpu| Discard);
    Ok(handle_all(cpus, series, frames, network, builder)?.0)
}

/// Runs the gateway on these CPUs, with recorded traffic as its input.
fn gateway(
    cpus: CpuMask,
    work: Work,
    series: Series,
    frames: Frames,
    network: &Arc<Network>,
    ours: [Peer; PEERS],
) -> Result<Run, Box<dyn Error>> {
    let packets = (frames.bytes.len() / frames.each) as u64;
    let devices = Devices { inside: InputId(u16::from(work == Work::Open)), to_inside: TxId(0), to_outside: TxId(0) };
    // When a peer's first packet arrives, the peer's session moves to the CPU that has the peer's
    // bucket.
    let ours = Arc::new(Mutex::new(ours.map(Some)));
    let checked = Arc::new(Checked::new(work));
    let peers = Arc::clone(network);
    let (run, outcome) = handle_all(cpus, series, frames, network, |builder| {
        builder
            .output(Output::new("check", "memory", move |_cpu| {
                Ok(Box::new(Check(Arc::clone(&checked))) as Box<dyn TxQueue>)
            }))
            .build(move |_cpu| {
                let (ours, made) = (Arc::clone(&ours), Arc::clone(&peers));
                let make = move |id: usize| {
                    let mut ours = ours.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    ours[id].take().unwrap_or_else(|| Peer::new(&made, id))
                };
                Gateway::new(Arc::clone(&peers), devices, Box::new(make))
            })
    })?;
    let mut counts = Counts::default();
    outcome.reports.into_iter().for_each(|(_cpu, part)| counts += part);
    let done = if work == Work::Seal { counts.sealed } else { counts.opened };
    // If two packets of a peer leave in the wrong order, the output `Checked` refuses all later
    // packets.
    let sent: u64 = outcome.snapshot.cpus.iter().map(|cpu| cpu.originated).sum();
    if [done, sent] != [packets; 2] {
        let dropped = outcome.snapshot.dropped();
        return Err(format!("{done} of {packets} packets were done, and {sent} sent: {counts:?}, {dropped}").into());
    }
    Ok(run)
}

type Measured<R> = Result<(Run, Outcome<R>), Box<dyn Error>>;

/// Handles all packets. Measures how long the second half of the packets takes.
fn handle_all<H: Handler>(
    cpus: CpuMask,
    series: Series,
    frames: Frames,
    network: &Arc<Network>,
    build: impl FnOnce(Builder) -> Result<steerage::Instance<H>, steerage::BuildError>,
) -> Measured<H::Report> {
    let measured = frames.bytes.len() / frames.each / 2;
    let began = Arc::new(OnceLock::new());
    let recorded = Recorded::new(frames, measured, Arc::clone(&began));
    let keys = Arc::clone(network);
    let first = cpus.iter().next().ok_or("no CPU")?;
    let mask = match series {
        Series::Give | Series::Take => CpuMask::from_iter([CpuId(1)]),
        _ => cpus.clone(),
    };
    let builder = Builder::new()
        .cpus(cpus)
        .input_on(Input::new("memory", "memory", vec![Box::new(recorded)]), &[first], Some(mask))
        .hash(network.hasher.clone())
        .flow_key_with_link(move |frame, _| keys.flow_key(frame))
        .linear_bytes(FRAME_BYTES)
        .originated_max(ORIGINATED_MAX);
    let builder = if series == Series::Balance { builder.policy(Balance::new()) } else { builder.policy(Hash) };
    let running = build(builder)?.start()?;
    let handle = running.handle();
    let mut moves = 0;
    while !handle.wait_finished(Duration::from_millis(10)) {
        if series == Series::Shaken {
            moves += 1;
            handle.set_rps_cpus(&CpuMask::from_iter([CpuId(moves % series.cpus())]))?;
        }
    }
    let nanos = began.get().ok_or("nothing was received")?.elapsed().as_nanos() as f64 / measured as f64;
    let outcome = running.join();
    let kept = outcome.snapshot.cpus.iter().find(|cpu| cpu.cpu == first).map_or(0, |cpu| cpu.inline);
    Ok((Run { nanos, own: kept as f64 / (2 * measured) as f64 }, outcome))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::packet;

    const PACKETS: usize = 20_000;

    #[test]
    fn peers_keep_their_order_while_masks_change() {
        for work in [Work::Seal, Work::Open] {
            run(work, Series::Shaken, PACKETS).unwrap();
        }
    }

    /// Tests that `Checked` detects two packets of a peer in the wrong order.
    #[test]
    fn the_check_can_fail() {
        let Connected { network, ours, mut theirs } = connect().unwrap();
        let mut frames = sealed(&mut theirs, 1000);
        let (front, behind) = frames.bytes.split_at_mut(501 * frames.each);
        front[500 * frames.each..].swap_with_slice(&mut behind[(PEERS - 1) * frames.each..PEERS * frames.each]);
        let error = gateway(CpuMask::from_iter([CpuId(0)]), Work::Open, Series::One, frames, &network, ours)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("1000 of 1000 packets were done"), "{error}"); // But not all of them were sent.
    }

    /// A message with an unknown session index has no flow key. A packet to an address that belongs
    /// to no peer also has no flow key.
    #[test]
    fn strangers_have_no_flow_key() {
        let Connected { network, mut theirs, .. } = connect().unwrap();
        let mut message = sealed(&mut theirs, 1).bytes;
        let key = network.flow_key(&message).unwrap();
        assert_eq!(network.flow_key(&packet(0)), Some(key));
        message[28 + 5] ^= 1; // The number of the receiver, without the lowest 8 bits.
        assert_eq!(network.flow_key(&message), None);
        let mut stranger = packet(0);
        stranger[18] = 1; // 10.0.1.0
        assert_eq!(network.flow_key(&stranger), None);
    }
}
