//! The machine whose knobs are read and written: its files, and ethtool by netlink.

use std::io;

use crate::error::TuneError;
use crate::root::Root;
use crate::setting::Knob;

/// Reads and writes knobs.
#[derive(Debug, Default)]
pub struct Machine {
    root: Root,
}

impl Machine {
    /// This machine.
    pub fn new() -> Self {
        Self::default()
    }

    /// A machine below a directory of a test, in which ethtool's values are files, too.
    pub fn below(root: Root) -> Self {
        Self { root }
    }

    /// The root of the machine's files.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// The present value.
    ///
    /// # Errors
    ///
    /// Those of the kernel: the knob may not exist.
    pub fn read(&mut self, knob: &Knob) -> io::Result<String> {
        self.root.read(&knob.0)
    }

    /// Sets a value.
    ///
    /// # Errors
    ///
    /// The kernel refused the value, or this process may not write.
    pub fn write(&mut self, knob: &Knob, value: &str) -> Result<(), TuneError> {
        self.root.write(&knob.0, value).map_err(|error| TuneError::Write {
            knob: knob.0.clone(),
            value: value.to_owned(),
            error,
        })
    }
}
