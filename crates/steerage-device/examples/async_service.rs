//! A network service that needs some time to compute each answer. Each query is a packet that the
//! handler keeps. An async task decides on the answer, and the CPU that kept the packet sends it:
//! `cargo run --release -p steerage-device --example async_service -- eth0`
//!
//! The service answers UDP packets to port 7 (echo), which AF_XDP takes away from the kernel.
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::{error::Error, time::Duration};

use steerage::{Batch, Builder, Cpu, Handler, Output, Packet, Snapshot, flow::protocol::UDP, packet::Kept};
use steerage_device::af_xdp::{AfXdpOptions, AfXdpOutput};
use tokio::{runtime, signal, sync::mpsc, task, time::sleep};

/// The maximum number of queries that wait for a task, and of answers that wait for a CPU.
const WAITING_MAX: usize = 512;

/// The number of bytes before the payload of a query: Ethernet, IPv4 without options, UDP.
const HEADER_BYTES: u32 = 42;

/// Passes queries to async code. Queries for which the channel has no room are dropped.
struct Ask(mpsc::Sender<Kept>);

fn is_query(packet: &Packet<'_>) -> bool {
    let to_us = |to: std::net::SocketAddr| to.port() == 7 && to.is_ipv4();
    let flow = packet.flow_key().filter(|flow| flow.protocol() == Some(UDP));
    flow.and_then(|flow| flow.destination()).is_some_and(to_us)
        && packet.dissection().payload_offset == Some(HEADER_BYTES)
}

impl Handler for Ask {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in batch.iter_mut().filter(is_query) {
            match self.0.try_reserve() {
                Ok(place) => drop(packet.keep().map(|kept| place.send(kept))),
                Err(_) => packet.discard(),
            }
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

fn answer(frame: &mut [u8]) {
    frame[..12].rotate_left(6);
    frame[26..34].rotate_left(4);
    frame[34..38].rotate_left(2);
}

/// Answers each query after the time `think`, until the inputs end or `stop` is ready.
pub(crate) async fn serve(
    mut builder: Builder,
    output: Output,
    think: Duration,
    stop: impl Future + Send + 'static,
) -> Result<Snapshot, Box<dyn Error>> {
    let to = builder.add_output(output);
    let sender = builder.add_sender(to, WAITING_MAX)?;
    let (ask, mut queries) = mpsc::channel::<Kept>(WAITING_MAX);
    let running = builder.build(move |_cpu| Ask(ask.clone()))?.start()?;
    let handle = running.handle();
    task::spawn(async move {
        stop.await;
        handle.stop();
    });
    while let Some(mut query) = queries.recv().await {
        let sender = sender.clone();
        task::spawn(async move {
            sleep(think).await; // Asks a database, for example.
            answer(&mut query);
            while let Err(unsent) = sender.try_send(query) {
                sleep(Duration::from_millis(1)).await;
                query = unsent;
            }
        });
    }
    Ok(running.join().snapshot)
}

fn main() -> Result<(), Box<dyn Error>> {
    let interface = std::env::args().nth(1).ok_or("name an interface, such as eth0")?;
    let taken = AfXdpOptions::new(&interface).take("udp dst port 7".parse()?).open()?;
    let output = AfXdpOutput::new(&interface).open()?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let builder = Builder::new().input(taken.input);
    let ledger = runtime.block_on(serve(builder, output, Duration::from_millis(5), signal::ctrl_c()))?;
    println!(
        "{} queries, {} answers",
        ledger.verdicts().kept,
        ledger.cpus.iter().map(|cpu| cpu.originated).sum::<u64>()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::future::pending;

    use steerage::flow::wire::FrameBuilder;
    use steerage::testing;

    use super::*;

    #[test]
    fn each_query_gets_its_answer_and_nothing_else_does() {
        let (us, client) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let datagram = |from: ([u8; 4], u16), to: ([u8; 4], u16), number: u16| {
            FrameBuilder::udp(from, to).frame(&number.to_be_bytes())
        };
        let queries = (0..300).map(|number| datagram((client, 1000 + number), (us, 7), number));
        let others = (0..300).map(|number| datagram((client, 1000 + number), (us, 9), number));
        let tagged = [FrameBuilder::udp((client, 1), (us, 7)).vlan(3).frame(&[0; 2])];
        let (output, recorded) = testing::output();
        let builder = Builder::new().virtual_cpus(2).input(testing::input(queries.chain(others).chain(tagged)));
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let serving = serve(builder, output, Duration::from_millis(1), pending::<()>());
        let ledger = runtime.block_on(serving).unwrap();
        let sent: BTreeSet<Vec<u8>> = recorded.packets().into_iter().map(|packet| packet.bytes).collect();
        // The answers also swap the Ethernet addresses, which the frame builder does not do.
        let turned = |number: u16| {
            let mut frame = datagram((us, 7), (client, 1000 + number), number);
            frame[..12].rotate_left(6);
            frame
        };
        assert_eq!(sent, (0..300).map(turned).collect());
        assert_eq!((ledger.verdicts().kept, ledger.verdicts().consumed), (300, 301));
        assert_eq!(ledger.cpus.iter().map(|cpu| cpu.originated).sum::<u64>(), 300);
        steerage_fixtures::assert_at_rest(&ledger);
    }
}
