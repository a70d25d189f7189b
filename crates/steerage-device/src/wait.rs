//! A wrapper that lets a live device wait for room in backlogs and outputs, as a capture file does.

use steerage::{
    DeviceError, Input,
    device::{Capabilities, Completions, Polled, RxQueue},
};

use crate::wrapper::delegate_to_queue;

/// One queue of a wrapped live device.
///
/// Without `Wait`, packets for which a backlog or an output has no room are dropped
/// (`backlog_full`, `tx_full`). With `Wait`, the device is polled only while each CPU has room for
/// the packets of a poll, and packets wait in the backlogs while an output has no room
/// ([`TxQueue::has_room`](steerage::device::TxQueue::has_room)). When the device's buffer is full,
/// the device loses packets (drop reason `device`), or the sender of the packets waits.
///
/// If a handler does not return, the whole input stops. steerage does not declare the handler's CPU
/// dead, so no other CPU takes over its buckets. After a stop of the run, packets wait for an
/// output for one second at most.
///
/// ```
/// use steerage::Builder;
/// use steerage_device::{output, wait::Wait};
///
/// # let to = std::env::temp_dir().join(format!("wait-{}.pcapng", std::process::id()));
/// # let (live, to) = ("synthetic:rate=100000,packets=100", format!("pcap:{}", to.display()));
/// let mut builder = Builder::new().input(Wait::new(steerage_device::open(live)?));
/// let saved = builder.add_output(output::open(&to)?);
/// # std::fs::remove_file(&to["pcap:".len()..])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Wait {
    queue: Box<dyn RxQueue>,
}

impl Wait {
    /// Makes `input` wait for room. The name, kind and mode of the input stay unchanged.
    #[expect(clippy::new_ret_no_self, reason = "a device goes in and a device comes out")]
    pub fn new(input: Input) -> Input {
        input.wrap_queues(|queue, _| Box::new(Self { queue }))
    }
}

impl RxQueue for Wait {
    delegate_to_queue!(except capabilities);

    fn capabilities(&self) -> Capabilities {
        self.queue.capabilities().can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        self.queue.poll(out, budget)
    }
}
