//! Stands in for the hash kernels that do not exist for this CPU architecture.

use super::{HashKey, Kernel, PortLanes, TOGETHER};
use crate::affinity::Affinity;
use crate::flow_key::FlowKey;
use std::convert::Infallible;
use std::marker::PhantomData;

#[derive(Clone)]
pub(super) enum Absent {}

#[cfg(not(all(target_arch = "aarch64", target_endian = "little")))]
pub(super) type Aes = Absent;
pub(super) type Gfni = Absent;

impl Absent {
    pub(super) fn new(_: &HashKey) -> Option<Absent> {
        None
    }
}

#[derive(Clone, Copy)]
pub(crate) struct PlainFrames<'a>(Infallible, PhantomData<&'a ()>);

impl<'a> PlainFrames<'a> {
    pub(super) fn new<Aes>(_: &'a Aes, _: &'static PortLanes) -> Option<Self> {
        None
    }

    pub(crate) fn hash(self, _: &[&[u8]], _: Affinity, _: &mut [u32; TOGETHER]) -> u64 {
        match self.0 {}
    }
}

impl Kernel for Absent {
    const NAME: &'static str = "absent";

    fn hash(&self, _: &FlowKey) -> u32 {
        match *self {}
    }
}
