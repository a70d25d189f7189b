//! Stands in for the kernels that cannot be compiled for this architecture. No value of this type can exist.

use super::{HashKey, Kernel};
use crate::flow_key::FlowKey;

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
