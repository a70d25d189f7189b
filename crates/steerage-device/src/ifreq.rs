//! `struct ifreq` of linux/if.h: an interface's name, and what the kernel is asked of it or answers.

use std::io;

/// The longest name of an interface, with the zero behind it.
pub(crate) const NAME_BYTES: usize = libc::IFNAMSIZ;

#[repr(C, align(8))]
pub(crate) struct Request {
    name: [u8; NAME_BYTES],
    /// As long as the longest member of its union.
    pub(crate) answer: [u8; 24],
}

impl Request {
    /// About the interface of that name; some are answered with a name, and asked with none.
    pub(crate) fn of(name: &str) -> io::Result<Self> {
        let mut request = Self { name: [0; NAME_BYTES], answer: [0; 24] };
        match request.name[..NAME_BYTES - 1].get_mut(..name.len()) {
            Some(to) => to.copy_from_slice(name.as_bytes()),
            None => return Err(io::ErrorKind::InvalidInput.into()),
        }
        Ok(request)
    }

    pub(crate) fn with_short(mut self, value: u16) -> Self {
        self.answer[..2].copy_from_slice(&value.to_ne_bytes());
        self
    }

    pub(crate) fn with_int(mut self, value: i32) -> Self {
        self.answer[..4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    pub(crate) fn short(&self) -> u16 {
        u16::from_ne_bytes([self.answer[0], self.answer[1]])
    }

    pub(crate) fn int(&self) -> i32 {
        i32::from_ne_bytes([self.answer[0], self.answer[1], self.answer[2], self.answer[3]])
    }

    pub(crate) fn name(&self) -> String {
        let name = self.name.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }
}
