//! What the walks over both formats have in common.

use std::io;

use steerage::{DeviceError, LinkType};

/// Where a frame lies in the bytes that were walked over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) at: u32,
    pub(super) len: u32,
    /// Length on the wire, as the file gives it.
    pub(super) original: u32,
}

impl Span {
    /// Some writers leave the original length 0; no frame was shorter than what was captured of it.
    pub(super) fn wire_bytes(self) -> usize {
        self.original.max(self.len) as usize
    }
}

/// How far a walk came: `consumed` bytes are done with, and `stop` is about what follows them.
#[derive(Debug)]
pub(super) struct Walked {
    pub(super) consumed: usize,
    pub(super) stop: Stop,
    /// The link type of the frames found, if any were.
    pub(super) link: Option<LinkType>,
}

/// Why a walk ended.
#[derive(Debug)]
pub(super) enum Stop {
    /// As many frames as there was room for.
    Full,
    /// The record has at least `needs` bytes, and fewer follow.
    Short { needs: usize },
    /// The next `bytes` bytes hold nothing of interest, and more than need be in memory at once.
    Skip { bytes: u64 },
    /// The next frame is of another link type than those before it in this poll.
    OtherLink,
    /// What follows is no record.
    Wrong(Wrong),
}

/// What is wrong with a file, and what to do.
#[derive(Debug)]
pub(super) struct Wrong {
    text: String,
    advice: &'static str,
}

impl Wrong {
    pub(super) fn new(text: String, advice: &'static str) -> Self {
        Self { text, advice }
    }

    pub(super) fn into_error(self, device: &str, offset: u64) -> DeviceError {
        let cause = io::Error::new(io::ErrorKind::InvalidData, self.text);
        DeviceError::new(device, "read the capture", cause).at(offset).advise(self.advice)
    }
}
