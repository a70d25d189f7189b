//! The CPUs of a run, from the masks on the command line.

use steerage::{Builder, CpuId, CpuMask, policy::Policy, topology::MaskError};

use super::set_if_given;
use crate::args::CpuArgs;
use crate::error::{CommandLineError, Error};
use crate::host_cpus;

pub(crate) fn count_cpus(args: &CpuArgs) -> Result<usize, Error> {
    let cpus = CpuSelection::parse(args)?;
    let all: CpuMask = cpus.workers(args)?.iter().chain(cpus.rx).collect();
    Ok(all.iter().count())
}

pub(super) struct CpuSelection {
    work: Option<CpuMask>,
    /// The CPUs of `--rx-cpu`, or no CPUs without this option.
    pub(super) rx: Vec<CpuId>,
    /// The mask of `--rps-cpus` or `--rps-cpus-list`. An empty mask disables steering.
    pub(super) rps: Option<CpuMask>,
    pub(super) of_queues: Vec<QueueMask>,
    rps_option: &'static str,
}

pub(super) struct QueueMask {
    pub(super) name: String,
    pub(super) mask: CpuMask,
}

/// Masks of single queues. The queues of all inputs are numbered consecutively.
pub(super) struct QueueMasks {
    pub(super) own: Vec<(usize, CpuMask)>,
    pub(super) off: Vec<usize>,
}

impl CpuSelection {
    pub(super) fn parse(args: &CpuArgs) -> Result<Self, Error> {
        let nr = args.virtual_cpus.unwrap_or_else(host_cpus::nr_cpu_ids);
        let list = |option, text: &Option<String>| -> Result<Option<CpuMask>, Error> {
            let Some(text) = text else { return Ok(None) };
            let mask = CpuMask::parse_list(text, nr).map_err(|error| CommandLineError::Mask { option, error })?;
            if mask.is_empty() { Err(CommandLineError::NoCpu { option }.into()) } else { Ok(Some(mask)) }
        };
        let work = list("--cpus", &args.cpus)?;
        let rx = list("--rx-cpu", &args.rx_cpu)?;
        if args.virtual_cpus.is_none() {
            [&work, &rx].into_iter().flatten().try_for_each(host_cpus::require_online)?;
        }
        let rx = rx.iter().flat_map(CpuMask::iter).collect();
        let mut cpus = Self { work, rx, rps: None, of_queues: Vec::new(), rps_option: "--rps-cpus" };
        args.rps_cpus.iter().try_for_each(|text| cpus.add_mask(text, nr, CpuMask::parse_bitmap))?;
        if !args.rps_cpus_list.is_empty() {
            cpus.rps_option = "--rps-cpus-list";
        }
        args.rps_cpus_list.iter().try_for_each(|text| cpus.add_mask(text, nr, CpuMask::parse_list))?;
        Ok(cpus)
    }

    /// Adds a mask for all queues (`f`), or for one queue (`rx-0=f`). An empty mask disables
    /// steering, as in the kernel.
    fn add_mask(
        &mut self,
        text: &str,
        nr_cpu_ids: usize,
        parse: fn(&str, usize) -> Result<CpuMask, MaskError>,
    ) -> Result<(), Error> {
        let option = self.rps_option;
        let mask = |text| parse(text, nr_cpu_ids).map_err(|error| CommandLineError::Mask { option, error });
        let Some((queue, text)) = text.rsplit_once('=') else {
            let mask = mask(text)?;
            return match self.rps.replace(mask) {
                None => Ok(()),
                Some(_) => Err(two_masks(option, "all queues (one queue's is written rx-0=3)")),
            };
        };
        let name = queue.to_owned();
        let (_, rx) = of_device(queue);
        let digits = rx.strip_prefix("rx-").unwrap_or_default();
        if digits.is_empty() || digits.starts_with('+') || digits.parse::<u32>().is_err() {
            let message = format!("`{name}` is not the name of a queue: write such as rx-0=3 or eth1/rx-0=3");
            return Err(CommandLineError::QueueMask { option, message }.into());
        }
        if self.of_queues.iter().any(|other| other.name == name) {
            return Err(two_masks(option, &name));
        }
        self.of_queues.push(QueueMask { name, mask: mask(text)? });
        Ok(())
    }

    /// `devices` contains each device's directory name in the control tree and its number of
    /// queues. `rx-0` is queue 0 of the only device, and `eth1/rx-0` is queue 0 of `eth1`.
    pub(super) fn queue_masks(&self, devices: &[(String, usize)]) -> Result<QueueMasks, Error> {
        let option = self.rps_option;
        let queues = || devices.iter().flat_map(|(device, queues)| (0..*queues).map(move |rx| (device, rx)));
        let mut own: Vec<(usize, CpuMask)> = Vec::new();
        for QueueMask { name, mask } in &self.of_queues {
            let (device, rx) = of_device(name);
            let is_it = |(its, number): (&String, usize)| {
                device.map_or(devices.len() == 1, |device| device == its) && rx == format!("rx-{number}")
            };
            let queue = queues().position(is_it).ok_or_else(|| {
                let message = format!("there is no queue {name}: there is {}", ranges(devices).join(", "));
                CommandLineError::QueueMask { option, message }
            })?;
            if own.iter().any(|(other, _)| *other == queue) {
                return Err(two_masks(option, name));
            }
            own.push((queue, mask.clone()));
        }
        let mask_of =
            |queue: usize| own.iter().find(|(other, _)| *other == queue).map(|(_, mask)| mask).or(self.rps.as_ref());
        let off = (0..queues().count()).filter(|queue| mask_of(*queue).is_some_and(CpuMask::is_empty)).collect();
        Ok(QueueMasks { own, off })
    }

    pub(super) fn masks(&self) -> impl Iterator<Item = &CpuMask> {
        self.rps.iter().chain(self.of_queues.iter().map(|queue| &queue.mask))
    }

    pub(super) fn workers(&self, args: &CpuArgs) -> Result<CpuMask, Error> {
        match (&self.work, args.virtual_cpus) {
            (Some(work), _) => Ok(work.clone()),
            (None, Some(count)) => Ok((0..count as u16).map(CpuId).collect()),
            (None, None) => host_cpus::usable_cpus(),
        }
    }

    pub(super) fn apply(&self, mut builder: Builder, args: &CpuArgs) -> Result<Builder, Error> {
        builder = set_if_given(builder, args.virtual_cpus, Builder::virtual_cpus);
        if self.work.is_some() || args.virtual_cpus.is_none() {
            builder = builder.cpus(self.workers(args)?);
        }
        builder = builder.policy(args.policy.parse::<Box<dyn Policy>>().map_err(CommandLineError::Policy)?);
        Ok(set_if_given(builder, self.rps.clone(), Builder::rps_cpus))
    }
}

fn of_device(queue: &str) -> (Option<&str>, &str) {
    queue.rsplit_once('/').map_or((None, queue), |(device, rx)| (Some(device), rx))
}

/// Returns the names of queues for an error message, such as `rx-0` or `eth1/rx-0 to rx-3`.
fn ranges(devices: &[(String, usize)]) -> Vec<String> {
    let range = |(device, queues): &(String, usize)| {
        let first = if devices.len() == 1 { "rx-0".to_owned() } else { format!("{device}/rx-0") };
        if *queues > 1 { format!("{first} to rx-{}", queues - 1) } else { first }
    };
    devices.iter().map(range).collect()
}

fn two_masks(option: &'static str, queue: &str) -> Error {
    CommandLineError::QueueMask { option, message: format!("there are two masks for {queue}: keep one") }.into()
}
