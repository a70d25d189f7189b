//! Stands in for the kernels that this architecture's compiler cannot build: none can ever be made.

use super::{FlowKey, HashKey, Kernel};

#[derive(Clone)]
pub(super) enum Absent {}

pub(super) type Aes = Absent;
pub(super) type Gfni = Absent;

impl Absent {
    pub(super) fn new(_: &HashKey) -> Option<Absent> {
        None
    }
}

impl Kernel for Absent {
    const NAME: &'static str = "absent";

    fn hash(&self, _: &FlowKey) -> u32 {
        match *self {}
    }
}
