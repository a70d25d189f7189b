//! When a run begins, the CPU that handles the interrupt of a card's queue also polls the queue,
//! because the packets are in the cache of that CPU. If this CPU has too little time, the policy
//! `balance` later lets another CPU poll.

use std::collections::BTreeMap;

use steerage::policy::Plan;
use steerage::stats::MoveCause;
use steerage::topology::interrupt_cpus;
use steerage::{CpuMask, Handler, Instance};

/// Moves the polling of each AF_XDP queue to the CPU of its interrupt, if that CPU is in the
/// queue's mask. Only AF_XDP queues correspond to queues of a card.
pub(super) fn poll_where_interrupts_are<H: Handler>(instance: &Instance<H>) {
    let handle = instance.handle();
    let snapshot = handle.snapshot();
    let mut cards: BTreeMap<&str, BTreeMap<u32, CpuMask>> = BTreeMap::new();
    for (at, queue) in snapshot.queues.iter().enumerate().filter(|(_, queue)| queue.kind == "af_xdp") {
        let cpus = cards.entry(&queue.device).or_insert_with(|| interrupt_cpus(&queue.device));
        let Some(cpus) = cpus.get(&(queue.queue as u32)) else { continue };
        let Some(to) = snapshot.cpus.iter().position(|cpu| cpus.contains(cpu.cpu)) else { continue };
        let Some(from) = snapshot.cpus.iter().position(|cpu| cpu.cpu == queue.cpu).filter(|from| *from != to) else {
            continue;
        };
        let (from, to) = (from as u16, to as u16);
        let view = handle.view();
        let group = view.groups.iter().enumerate().find(|(_, group)| group.queues.contains(&at));
        let Some((number, group)) = group.filter(|(_, group)| group.order.contains(&to)) else { continue };
        tracing::info!(device = %queue.device, queue = queue.queue, cpu = %snapshot.cpus[usize::from(to)].cpu,
            "polling begins where the interrupts are");
        // The two CPUs exchange their buckets, so the new polling CPU handles the packets that the
        // old polling CPU would have handled itself.
        let there = |cpu: &u16| match *cpu {
            cpu if cpu == from => to,
            cpu if cpu == to => from,
            cpu => cpu,
        };
        let map = Box::new(group.map.each_ref().map(there));
        let order: Vec<u16> = group.order.iter().map(there).collect();
        let active = order.iter().filter(|cpu| map.contains(cpu)).count();
        handle.set_map(number, group.version, &map, Plan { order, active }, MoveCause::Balance);
        handle.poll_on(at, to);
    }
}
