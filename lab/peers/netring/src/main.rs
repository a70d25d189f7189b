//! This program receives packets by the crate netring, for a comparison with steerage:
//! `netring-peer IFACE [THREADS]` runs until SIGTERM.
//!
//! The ring, the timeout and the work for each packet are those of peers/af_packet/receive.c.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use netring::{Capture, FanoutMode};

const BLOCK_BYTES: usize = 512 << 10;
const BLOCKS: usize = 64;
const TIMEOUT_MILLIS: u32 = 10;
/// After SIGTERM, the program receives until no packet arrives for this time.
const LAST_LOOK: Duration = Duration::from_millis(100);

/// Packets received, packets dropped, and bytes.
type Counted = (u64, u64, u64);

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut args = std::env::args().skip(1);
    let interface = args.next().ok_or("usage: netring-peer IFACE [THREADS]")?;
    let threads: usize = args.next().map_or(Ok(1), |threads| threads.parse())?;
    let stopping = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stopping))?;
    }
    let captures = (0..threads).map(|_| open(&interface, threads)).collect::<Result<Vec<_>, _>>()?;
    println!("ready");
    let threads: Vec<_> = captures
        .into_iter()
        .map(|capture| {
            let stopping = Arc::clone(&stopping);
            thread::spawn(move || receive(capture, &stopping))
        })
        .collect();
    let mut all: Counted = (0, 0, 0);
    for thread in threads {
        let (received, dropped, bytes) = thread.join().map_err(|_| "a thread panicked")??;
        all = (all.0 + received, all.1 + dropped, all.2 + bytes);
    }
    println!("received {} dropped {} bytes {}", all.0, all.1, all.2);
    Ok(())
}

fn open(interface: &str, threads: usize) -> Result<Capture, netring::Error> {
    let builder = Capture::builder()
        .interface(interface)
        .block_size(BLOCK_BYTES)
        .block_count(BLOCKS)
        .block_timeout_ms(TIMEOUT_MILLIS)
        .fill_rxhash(false)
        .promiscuous(true);
    let group = std::process::id() as u16;
    if threads > 1 { builder.fanout(FanoutMode::Hash, group) } else { builder }.build()
}

fn receive(mut capture: Capture, stopping: &AtomicBool) -> Result<Counted, netring::Error> {
    let (mut received, mut bytes, mut sum) = (0, 0, 0);
    loop {
        let Some(batch) = capture.next_batch_blocking(LAST_LOOK)? else {
            if stopping.load(Ordering::Relaxed) {
                break;
            }
            continue;
        };
        for packet in &batch {
            // The work for each packet reads the EtherType, the protocol, and the addresses.
            let word = |at: usize| {
                packet.data().get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
            };
            sum ^= word(12) ^ word(26);
            bytes += packet.original_len() as u64;
            received += 1;
        }
    }
    std::hint::black_box(sum);
    Ok((received, u64::from(capture.cumulative_stats()?.drops), bytes))
}
