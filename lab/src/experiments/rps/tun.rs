//! Compares more queues of a TUN without steering with fewer queues with steering. The kernel sends
//! the packets and chooses the queue of each flow, as a network card does.

use std::io;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use steerage_device::tap::{Layer, TapOptions};

use super::{Run, runs_by_queues};
use crate::error::LabError;
use crate::experiment::{Experiment, Settings};
use crate::measurement::Measurement;
use crate::placement::pin;

/// Packets per second, for which a single sender needs half of a CPU.
const OFFERED: f64 = 400_000.0;

/// The number of packets that the sender sends at a time. After fewer packets, its pauses would be
/// too short to sleep.
const BURST: usize = 64;

/// Flows with a socket each: enough for the kernel to spread them evenly over the queues.
const FLOWS: u16 = 256;

const NAME: &str = "lab0";
const SENDER: &str = "10.211.0.1";
/// No interface has this address of the TUN's network, so packets to it leave through the TUN.
const RECEIVER: &str = "10.211.0.2";
const FIRST_PORT: u16 = 20_000;

pub(super) fn plan(settings: &Settings) -> Experiment {
    let (all, mut experiment) = (settings.cpus.len(), Experiment::new("rps-tun", 5, settings));
    if !rustix::process::geteuid().is_root() {
        experiment.skip("all of it: TUNs in network namespaces take root".to_owned());
        return experiment;
    }
    // All CPUs together can just handle the packets that are sent.
    let work = Duration::from_secs_f64(all as f64 / OFFERED);
    for (name, cpus, mut run) in runs_by_queues(settings) {
        let sender = settings.cpus[0];
        // Queues get the last CPUs of the list, and share the sender's CPU only if all CPUs have
        // queues.
        run.cpus = settings.cpus.iter().rev().copied().take(cpus).collect();
        experiment.takes(run.takes());
        experiment.case(name, Some(all as f64), cpus, move || once(&run, sender, work));
    }
    experiment
}

fn once(run: &Run, sender: usize, work: Duration) -> Result<Measurement, LabError> {
    let failed = |error| LabError::set_up("network namespaces, which take root", error);
    unshare(CloneFlags::CLONE_NEWNET).map_err(failed)?;
    let tun = TapOptions::new(Layer::Tun, NAME).queues(run.queues).open();
    let tun = tun.map_err(|error| LabError::set_up("a TUN", error))?;
    let input = tun.input().map_err(|error| LabError::set_up("the queues of a TUN", error))?;
    for args in [format!("addr add {SENDER}/24 dev {NAME}"), format!("link set dev {NAME} up")] {
        ip(&args)?;
    }
    let sockets = sockets().map_err(|error| LabError::set_up("the sockets of the sender", error))?;
    let over = AtomicBool::new(false);
    let (measured, sent) = thread::scope(|scope| {
        let sending = scope.spawn(|| pin(sender).map(|()| send(&sockets, &over)));
        let measured = run.measure(input, work, false);
        over.store(true, Ordering::Relaxed);
        (measured, sending.join().unwrap_or(Err(LabError::Panicked)))
    });
    let (measured, sent_per_second) = (measured?, sent?);
    Ok(Measurement::of("mpps", measured.per_second / 1e6)
        .and("offered_mpps", sent_per_second / 1e6)
        .and("cpus", measured.cpus))
}

fn ip(args: &str) -> Result<(), LabError> {
    let run = Command::new("ip").args(args.split_whitespace()).stdin(Stdio::null()).output();
    let output = run.map_err(|error| LabError::set_up("`ip`, of the package iproute2", error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(LabError::set_up("the interface of a TUN", format!("ip {args}: {}", said.trim())))
}

fn sockets() -> io::Result<Vec<UdpSocket>> {
    let socket = |nth| {
        let socket = UdpSocket::bind((SENDER, 0))?;
        socket.set_nonblocking(true)?;
        socket.connect((RECEIVER, FIRST_PORT + nth)).map(|()| socket)
    };
    (0..FLOWS).map(socket).collect()
}

/// Sends at the rate [`OFFERED`]. Returns the packets per second that the kernel accepted.
fn send(sockets: &[UdpSocket], over: &AtomicBool) -> f64 {
    const PAYLOAD: [u8; 18] = [0; 18];
    let (start, mut due, mut sent) = (Instant::now(), Duration::ZERO, 0_u64);
    let mut turn = sockets.iter().cycle();
    while !over.load(Ordering::Relaxed) {
        // If a queue of the TUN is full, the packet is lost, as on a busy network card.
        sent += turn.by_ref().take(BURST).filter(|socket| socket.send(&PAYLOAD).is_ok()).count() as u64;
        due += Duration::from_secs_f64(BURST as f64 / OFFERED);
        thread::sleep(due.saturating_sub(start.elapsed()));
    }
    sent as f64 / start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use steerage_fixtures::namespaces::Namespaces;

    use super::*;

    /// The measuring time doubles until a packet arrives, because other programs may use all CPUs.
    #[test]
    fn packets_that_the_kernel_sends_are_handled() {
        if Namespaces::new(1).is_none() {
            return;
        }
        let mut settings = Settings::quick(vec![0, 0]);
        for (name, _, run) in runs_by_queues(&settings) {
            assert_eq!(run.queues, if name.starts_with("more") { 2 } else { 1 });
        }
        let handled = (0..10).any(|_| {
            settings.measured *= 2;
            let more = runs_by_queues(&settings).nth(1).expect("the run with more queues").2;
            let body = || once(&more, 0, Duration::ZERO).unwrap();
            let measured = thread::scope(|scope| scope.spawn(body).join().unwrap());
            measured.values["mpps"] > 0.0 && measured.values["offered_mpps"] > 0.0
        });
        assert!(handled);
    }
}
