//! Reads and writes the attributes `rps_cpus` and `rps_cpus_list`. A write works like the kernel's
//! `store_rps_map` (Linux, net/core/net-sysfs.c). A read returns the mask that is in use.

use std::thread;
use std::time::Instant;

use steerage::{
    CpuId, CpuMask, Snapshot,
    topology::{MaskError, MaskErrorKind},
};

use super::{Change, Tree, locked};
use crate::error::{AttributeError, ErrorCode};
use crate::limits::{SETTLE_LOOK, SETTLE_LOOK_MAX, SETTLE_LOOK_PART};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Bitmap,
    List,
}

#[derive(Debug)]
pub(super) struct Masks {
    queues: Vec<InForce>,
    /// The queue whose new mask has been written but has not taken effect yet.
    pending: Option<usize>,
}

/// A queue's mask, and the CPUs that the mask selects. An empty mask selects the CPU that polls the
/// queue.
#[derive(Debug)]
struct InForce {
    mask: CpuMask,
    cpus: Vec<CpuId>,
}

impl Masks {
    pub(super) fn new(snapshot: &Snapshot, off: &[usize]) -> Self {
        let in_force = |(at, cpus): (usize, &Vec<CpuId>)| {
            let mask = if off.contains(&at) { CpuMask::new() } else { cpus.iter().copied().collect() };
            InForce { mask, cpus: cpus.clone() }
        };
        let cpus = snapshot.queues.iter().map(|queue| &queue.rps_cpus);
        Self { queues: cpus.enumerate().map(in_force).collect(), pending: None }
    }
}

impl From<MaskError> for AttributeError {
    fn from(error: MaskError) -> Self {
        let code = match error.kind() {
            MaskErrorKind::Overflow => ErrorCode::Overflow,
            MaskErrorKind::Range => ErrorCode::Range,
            _ => ErrorCode::Invalid,
        };
        Self::new(code, error.to_string())
    }
}

impl Tree {
    pub(super) fn shown_mask(&self, queue: usize, form: Form) -> String {
        let mask = self.mask_in_force(queue);
        match form {
            Form::Bitmap => mask.to_bitmap(self.machine.nr_cpu_ids()),
            Form::List => mask.to_list(),
        }
    }

    fn mask_in_force(&self, queue: usize) -> CpuMask {
        // A mask that has not taken effect is never shown, because `pending` is set under this
        // lock.
        let masks = locked(&self.masks);
        let known = &masks.queues[queue];
        if masks.pending == Some(queue) {
            return known.mask.clone();
        }
        let cpus = self.handle.snapshot().queues.swap_remove(queue).rps_cpus;
        // The program that uses the library may have changed the CPUs through the handle.
        if cpus == known.cpus { known.mask.clone() } else { cpus.into_iter().collect() }
    }

    /// Sets the mask of a queue. The caller has checked that the user may write.
    pub(super) fn store_mask(&self, queue: usize, form: Form, text: &str) -> Result<Option<Change>, AttributeError> {
        let nr_cpu_ids = self.machine.nr_cpu_ids();
        let asked = match form {
            Form::Bitmap => CpuMask::parse_bitmap(text, nr_cpu_ids)?,
            Form::List => CpuMask::parse_list(text, nr_cpu_ids)?,
        };
        let left = self.machine.without_isolated(&asked);
        let left = left.ok_or_else(|| AttributeError::invalid(format!("CPUs {asked} are isolated: name others")))?;
        // CPUs outside of the instance count as offline: they are removed from the mask without an
        // error.
        let mask = self.machine.online_of(&left.and(&self.cpus()));
        self.put_in_force(queue, mask, form)
    }

    fn put_in_force(&self, queue: usize, mask: CpuMask, form: Form) -> Result<Option<Change>, AttributeError> {
        let start = Instant::now();
        let old = self.mask_in_force(queue);
        let shown = self.shown_mask(queue, form);
        if old == mask {
            return Ok(None);
        }
        let before = self.handle.snapshot().moves;
        locked(&self.masks).pending = Some(queue);
        // Setting the mask should not fail, because the mask has only CPUs of this instance.
        let done = self.handle.set_queue_rps_cpus(queue, &mask).map_err(AttributeError::invalid);
        let done = done.and_then(|()| self.settle(start));
        if done.is_err() {
            // The change failed, so the old mask is set again, and the data path moves the buckets
            // back as soon as possible.
            if let Err(error) = self.handle.set_queue_rps_cpus(queue, &old) {
                tracing::error!(queue, "cannot put the old mask in force again: {error}");
            }
        }
        let snapshot = self.handle.snapshot();
        let mut masks = locked(&self.masks);
        masks.pending = None;
        let mask = if done.is_ok() { mask } else { old };
        masks.queues[queue] = InForce { mask, cpus: snapshot.queues[queue].rps_cpus.clone() };
        drop(masks);
        done?;
        let buckets = snapshot.moves.buckets - before.buckets;
        let (to, seconds) = (self.shown_mask(queue, form), start.elapsed().as_secs_f64());
        Ok(Some(Change { from: shown, to, buckets, seconds }))
    }

    /// Sets the CPUs with a flow limit. CPUs outside of the instance have no backlog, so they are
    /// ignored in the mask.
    pub(super) fn store_flow_limit_cpus(&self, text: &str) -> Result<Option<Change>, AttributeError> {
        let nr_cpu_ids = self.machine.nr_cpu_ids();
        let cpus = CpuMask::parse_bitmap(text, nr_cpu_ids)?.and(&self.cpus());
        let old = self.handle.flow_limit_cpus();
        let set = |cpus: &CpuMask| self.handle.set_flow_limit_cpus(cpus).map_err(AttributeError::invalid);
        let seconds = self.set_and_settle(&old, &cpus, set)?;
        let [from, to] = [&old, &cpus].map(|mask| mask.to_bitmap(nr_cpu_ids));
        Ok((old != cpus).then_some(Change { from, to, buckets: 0, seconds }))
    }

    /// Sets a value, and waits until it is in force. If this takes too long, sets the old value
    /// again. Returns the time in seconds.
    pub(super) fn set_and_settle<T>(
        &self,
        old: &T,
        new: &T,
        set: impl Fn(&T) -> Result<(), AttributeError>,
    ) -> Result<f64, AttributeError> {
        let start = Instant::now();
        set(new)?;
        if let Err(error) = self.settle(start) {
            set(old)?;
            return Err(error);
        }
        Ok(start.elapsed().as_secs_f64())
    }

    pub(super) fn cpus(&self) -> CpuMask {
        self.handle.snapshot().cpus.iter().map(|cpu| cpu.cpu).collect()
    }

    /// Waits until a change applies to all new packets, at most for
    /// [`Options::settle_max`](super::Options::settle_max).
    pub(super) fn settle(&self, start: Instant) -> Result<(), AttributeError> {
        while !self.handle.is_settled() {
            if start.elapsed() > self.settle_max {
                let message = format!(
                    "it is not in force after {:?}: a CPU does not get on, see busy_seconds and deaths of the report",
                    self.settle_max
                );
                return Err(AttributeError::new(ErrorCode::TimedOut, message));
            }
            thread::sleep((start.elapsed() / SETTLE_LOOK_PART).clamp(SETTLE_LOOK, SETTLE_LOOK_MAX));
        }
        Ok(())
    }
}
