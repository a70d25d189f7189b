//! The CPUs of a run, from the masks of the command line.

use steerage::{Balance, Builder, CpuId, CpuMask, policy::Policy};

use crate::args::CpuArgs;
use crate::error::Error;
use crate::host_cpus;

/// Counts the CPUs of a run: those that work and those that receive.
pub(crate) fn count_cpus(args: &CpuArgs) -> Result<usize, Error> {
    let cpus = CpuSelection::parse(args)?;
    let all: CpuMask = cpus.workers(args)?.iter().chain(cpus.rx).collect();
    Ok(all.iter().count())
}

/// The CPU masks of the command line, parsed by the kernel's rules.
pub(super) struct CpuSelection {
    /// `--cpus`
    work: Option<CpuMask>,
    /// `--rx-cpu`; empty if it is not given.
    pub(super) rx: Vec<CpuId>,
    /// `--rps-cpus` or `--rps-cpus-list`. An empty mask means no steering.
    pub(super) rps: Option<CpuMask>,
}

impl CpuSelection {
    /// Parses the masks, and checks that the CPUs are online.
    pub(super) fn parse(args: &CpuArgs) -> Result<Self, Error> {
        let nr = args.virtual_cpus.unwrap_or_else(host_cpus::nr_cpu_ids);
        let list = |option, text: &Option<String>| -> Result<Option<CpuMask>, Error> {
            let Some(text) = text else { return Ok(None) };
            let mask = CpuMask::parse_list(text, nr).map_err(|error| Error::Mask { option, error })?;
            if mask.is_empty() { Err(Error::NoCpu { option }) } else { Ok(Some(mask)) }
        };
        let work = list("--cpus", &args.cpus)?;
        let rx = list("--rx-cpu", &args.rx_cpu)?;
        // An empty mask is valid here: as in the kernel, it turns steering off.
        let rps = match (&args.rps_cpus, &args.rps_cpus_list) {
            (Some(text), _) => {
                Some(CpuMask::parse_bitmap(text, nr).map_err(|error| Error::Mask { option: "--rps-cpus", error })?)
            }
            (None, Some(text)) => {
                Some(CpuMask::parse_list(text, nr).map_err(|error| Error::Mask { option: "--rps-cpus-list", error })?)
            }
            (None, None) => None,
        };
        if args.virtual_cpus.is_none() {
            [&work, &rx].into_iter().flatten().try_for_each(host_cpus::require_online)?;
        }
        Ok(Self { work, rx: rx.iter().flat_map(CpuMask::iter).collect(), rps })
    }

    /// The CPUs that work.
    pub(super) fn workers(&self, args: &CpuArgs) -> Result<CpuMask, Error> {
        match (&self.work, args.virtual_cpus) {
            (Some(work), _) => Ok(work.clone()),
            (None, Some(count)) => Ok((0..count as u16).map(CpuId).collect()),
            (None, None) => host_cpus::usable_cpus(),
        }
    }

    /// Whether the run should begin with its work on another CPU than the receiver: the policy is `balance`, the
    /// receiver is in the mask, and the first CPU that would join it is near.
    pub(super) fn begins_as_collector(&self, args: &CpuArgs) -> Result<bool, Error> {
        if args.policy != Balance::new().name() || args.virtual_cpus.is_some() {
            return Ok(false);
        }
        let work = self.workers(args)?;
        let Some(receiver) = self.rx.first().copied().or_else(|| work.first()) else { return Ok(false) };
        let mask = self.rps.as_ref().unwrap_or(&work);
        let others = mask.iter().filter(|cpu| !self.rx.contains(cpu) && *cpu != receiver);
        // If the mask does not contain the receiver, other CPUs have all the work anyway.
        Ok(mask.contains(receiver) && host_cpus::nearest_is_near(receiver, &others.collect()))
    }

    /// Sets the CPUs, the mask and the policy in `builder`.
    pub(super) fn apply(&self, mut builder: Builder, args: &CpuArgs) -> Result<Builder, Error> {
        if let Some(count) = args.virtual_cpus {
            builder = builder.virtual_cpus(count);
        }
        builder = match (&self.work, args.virtual_cpus) {
            (Some(work), _) => builder.cpus(work.clone()),
            (None, Some(_)) => builder,
            (None, None) => builder.cpus(host_cpus::usable_cpus()?),
        };
        builder = builder.policy(args.policy.parse::<Box<dyn Policy>>().map_err(Error::Policy)?);
        Ok(match &self.rps {
            Some(rps) => builder.rps_cpus(rps.clone()),
            None => builder,
        })
    }
}
