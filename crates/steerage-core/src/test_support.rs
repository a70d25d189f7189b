use std::io;
use std::os::fd::BorrowedFd;

use steerage_flow::dissect::Layers;
use steerage_flow::{Affinity, FlowHasher, HashKey, Timestamp};
use steerage_mem::park::Bell;
use steerage_topology::{CpuId, CpuMask, NodeMap};

use crate::build::{BeginWith, Spec};
use crate::limits::{KEPT_DEFAULT, Limits, MEMORY_MAX_DEFAULT, QueueLimits};
use crate::placement::{Plan, PolicyInfo};
use crate::platform::Platform;
use crate::queue::hash::QueueHasher;

pub(crate) fn spec(cpus: u16) -> Spec {
    let workers: CpuMask = (0..cpus).map(CpuId).collect();
    let affinity = Affinity::BothDirections;
    Spec {
        mask: workers.clone(),
        queue_masks: Vec::new(),
        workers,
        inputs: Vec::new(),
        outputs: Vec::new(),
        hasher: QueueHasher::by_flow(FlowHasher::keyed(&HashKey::MICROSOFT), affinity, Layers::Inner),
        device_hash: Some(affinity),
        affinity,
        limits: Limits::DEFAULT,
        queue_limits: QueueLimits::DEFAULT,
        lpc_pages: None,
        nodes: NodeMap::default(),
        kept_max: KEPT_DEFAULT,
        linear_bytes: 0,
        originated_max: 0,
        senders: Vec::new(),
        memory_max: MEMORY_MAX_DEFAULT,
        usable_memory: u64::MAX,
        coalesce: false,
        check_order: false,
        always_hash: false,
        policy: PolicyInfo { name: "even", measures: false },
        bucket_plan: BeginWith(Box::new(|_, _| Plan::all())),
    }
}

pub(crate) struct Still;

impl Platform for Still {
    fn now(&self) -> Timestamp {
        Timestamp::ZERO
    }

    fn park(&mut self, _: &Bell, _: &[BorrowedFd<'_>], _: Option<Timestamp>) -> io::Result<()> {
        Ok(())
    }

    fn random(&mut self) -> u64 {
        0
    }
}
