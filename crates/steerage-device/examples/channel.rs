//! A device whose packets come from another thread of the program, through a channel.
//!
//! ```sh
//! cargo run --release -p steerage-device --example channel
//! ```

use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Duration;

use steerage::device::{Capabilities, Completions, Polled, RxQueue};
use steerage::testing::QueueTester;
use steerage::{DeviceError, Timestamp};

const LONGEST: usize = 1514;
/// The interval at which an empty channel is checked: the longest delay of a packet.
const CHECK_EVERY: Duration = Duration::from_millis(1);

struct Channel {
    frames: Receiver<Vec<u8>>,
    /// A frame that was taken from the channel when no page was free.
    next: Option<Vec<u8>>,
}

impl RxQueue for Channel {
    /// The sender waits for room in the channel, so no frame is lost while the queue is not polled.
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(LONGEST).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        for _ in 0..budget {
            let frame = match self.next.take().map_or_else(|| self.frames.try_recv(), Ok) {
                Ok(frame) => frame,
                Err(TryRecvError::Empty) => return Ok(Polled::NotBefore(out.now() + CHECK_EVERY)),
                Err(TryRecvError::Disconnected) => return Ok(Polled::Ended),
            };
            if frame.len() > LONGEST {
                out.lost(1);
            } else if !out.copy_in(&frame) {
                self.next = Some(frame);
                return Ok(Polled::More); // All pages are in use.
            }
        }
        Ok(Polled::More)
    }
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (sender, frames) = sync_channel(256);
    sender.send(vec![1; 60])?;
    sender.send(vec![0; LONGEST + 1])?;
    drop(sender); // The queue ends.
    let mut tester = QueueTester::new(Box::new(Channel { frames, next: None }))?;
    let (polled, frames) = tester.poll(Timestamp::ZERO, 64)?;
    assert_eq!((polled, frames), (Polled::Ended, vec![vec![1; 60]]));
    Ok(())
}
