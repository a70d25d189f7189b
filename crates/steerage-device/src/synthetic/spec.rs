use std::fmt::Display;
use std::str::FromStr;

use steerage::limits::SEGMENTS_MAX;

use super::{
    BUFFER_MIN, FLOWS_MAX, Kind, MIX_MAX, QUEUES_MAX, RATE_MAX, SIZE_MAX, SIZE_MIN, SyntheticOptions, ZIPF_MAX,
};
use crate::options::{Item, SpecError, read, shown};

const OPTIONS: [&str; 9] = ["flows", "size", "zipf", "packets", "rate", "seed", "mix", "queues", "buffer"];

const DEVICE: &str = "synthetic";

fn wrong_option(option: &str, value: impl Display, wrong: impl Into<String>) -> SpecError {
    SpecError::of(DEVICE, option, value, wrong)
}

impl SyntheticOptions {
    /// Parses `synthetic` or `synthetic:option=value,...`. Missing options have default values.
    ///
    /// # Errors
    /// [`SpecError`] for an option that does not exist, is named twice, or is out of range.
    pub fn parse(spec: &str) -> Result<Self, SpecError> {
        let mut options = Self { name: spec.to_owned(), ..Self::default() };
        let list = match spec.strip_prefix(DEVICE) {
            Some("") => return Ok(options),
            Some(rest) => rest.strip_prefix(':'),
            None => None,
        };
        let Some(list) = list else {
            return Err(wrong_option(spec, "", "is not this device: write `synthetic` or `synthetic:flows=1000`"));
        };
        for item in read(DEVICE, list)? {
            options.set(item)?;
        }
        options.check()?;
        Ok(options)
    }

    fn set(&mut self, item: Item<'_>) -> Result<(), SpecError> {
        match item.option {
            "flows" => self.flows = number(item)?,
            "size" => self.size = number(item)?,
            "zipf" => self.zipf = number(item)?,
            "packets" => self.packets = Some(number(item)?),
            "rate" => self.rate = Some(number(item)?),
            "seed" => self.seed = number(item)?,
            "queues" => self.queues = number(item)?,
            "buffer" => self.buffer = Some(number(item)?),
            "mix" => self.mix = item.value.split('+').map(|kind| kind_named(kind, item)).collect::<Result<_, _>>()?,
            _ => return Err(item.unknown(&OPTIONS)),
        }
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), SpecError> {
        within("flows", self.flows.into())?;
        within("size", self.size as u64)?;
        within("packets", self.packets.unwrap_or(1))?;
        within("rate", self.rate.unwrap_or(1))?;
        within("queues", self.queues as u64)?;
        if let Some(buffer) = self.buffer {
            within("buffer", buffer as u64)?;
            if self.size.div_ceil(buffer) > SEGMENTS_MAX {
                let least = self.size.div_ceil(SEGMENTS_MAX);
                let wrong =
                    format!("is too short for so long frames: at least {least}, so that {SEGMENTS_MAX} take one");
                return Err(wrong_option("buffer", buffer, wrong));
            }
        }
        if !(0.0..=ZIPF_MAX).contains(&self.zipf) {
            return Err(wrong_option("zipf", self.zipf, range_wrong("zipf")));
        }
        if self.queues > self.flows as usize {
            let wrong = format!("leaves queues without a flow: use at most {}, the number of flows", self.flows);
            return Err(wrong_option("queues", self.queues, wrong));
        }
        match self.mix.len() {
            1..=MIX_MAX => Ok(()),
            n => Err(wrong_option("mix", "", format!("has {n} kinds: use 1 to {MIX_MAX}"))),
        }
    }
}

fn range(option: &str) -> (u64, u64) {
    match option {
        "flows" => (1, FLOWS_MAX.into()),
        "size" => (SIZE_MIN as u64, SIZE_MAX as u64),
        "zipf" => (0, ZIPF_MAX as u64),
        "packets" => (1, u64::MAX),
        "rate" => (1, RATE_MAX),
        "queues" => (1, QUEUES_MAX as u64),
        "buffer" => (BUFFER_MIN as u64, SIZE_MAX as u64),
        _ => (0, u64::MAX),
    }
}

fn range_wrong(option: &str) -> String {
    let (least, most) = range(option);
    format!("is not a number from {least} to {most}")
}

fn number<T: FromStr>(item: Item<'_>) -> Result<T, SpecError> {
    item.value.parse().map_err(|_| item.wrong(range_wrong(item.option)))
}

fn within(option: &str, value: u64) -> Result<(), SpecError> {
    let (least, most) = range(option);
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(wrong_option(option, value, range_wrong(option))),
    }
}

fn kind_named(name: &str, mix: Item<'_>) -> Result<Kind, SpecError> {
    Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        let known = Kind::ALL.map(Kind::name).join(", ");
        mix.wrong(format!("has a kind `{}` that there isn't: join some of {known} by +", shown(name)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(spec: &str) -> String {
        SyntheticOptions::parse(spec).unwrap_err().to_string()
    }

    #[test]
    fn reads_every_option() {
        assert_eq!(SyntheticOptions::parse("synthetic"), Ok(SyntheticOptions::default()));
        let spec =
            "synthetic:flows=10,size=1500,zipf=1.1,packets=7,rate=1000,seed=0,mix=udp4+tcp6+vlan,queues=2,buffer=256";
        let options = SyntheticOptions {
            name: spec.to_owned(),
            flows: 10,
            size: 1500,
            zipf: 1.1,
            packets: Some(7),
            rate: Some(1000),
            seed: 0,
            mix: vec![Kind::Udp4, Kind::Tcp6, Kind::Vlan],
            queues: 2,
            buffer: Some(256),
        };
        assert_eq!(SyntheticOptions::parse(spec), Ok(options));
    }

    #[test]
    fn says_what_is_wrong_and_what_is_right() {
        assert_eq!(wrong("synthetic:flows=0"), "synthetic: option `flows=0` is not a number from 1 to 16777216");
        assert_eq!(wrong("synthetic:flows=x"), "synthetic: option `flows=x` is not a number from 1 to 16777216");
        assert_eq!(wrong("synthetic:rate"), "synthetic: option `rate` is not a number from 1 to 1000000000");
        assert_eq!(wrong("synthetic:seed=1,seed=2"), "synthetic: option `seed=2` is named twice: name it once");
        assert_eq!(
            wrong("synthetic:flow=1"),
            "synthetic: option `flow=1` does not exist: there are flows, size, zipf, packets, rate, seed, mix, queues, buffer"
        );
        assert_eq!(
            wrong("synthetic:mix=udp4+sctp"),
            "synthetic: option `mix=udp4+sctp` has a kind `sctp` that there isn't: \
             join some of udp4, tcp4, udp6, tcp6, vlan by +"
        );
        assert_eq!(
            wrong("synthetic:queues=4,flows=3"),
            "synthetic: option `queues=4` leaves queues without a flow: use at most 3, the number of flows"
        );
    }

    #[test]
    fn a_frame_has_so_many_buffers_at_most() {
        assert!(SyntheticOptions::parse("synthetic:size=9000,buffer=500").is_ok());
        assert_eq!(
            wrong("synthetic:size=9001,buffer=500"),
            "synthetic: option `buffer=500` is too short for so long frames: at least 501, so that 18 take one"
        );
    }

    #[test]
    fn refuses_what_is_out_of_range() {
        for item in [
            "flows=16777217",
            "flows=-1",
            "size=63",
            "size=9019",
            "zipf=-0.1",
            "zipf=10.1",
            "zipf=NaN",
            "zipf=inf",
            "packets=0",
            "rate=0",
            "rate=1000000001",
            "seed=18446744073709551616",
            "mix=",
            "mix=udp4+",
            "queues=0",
            "queues=1025",
            "buffer=127",
            "buffer=9019",
        ] {
            let error = wrong(&format!("synthetic:{item}"));
            assert!(!error.contains('\n') && error.contains(item.split('=').next().unwrap()), "{error}");
        }
        assert!(SyntheticOptions::parse("synthetix").is_err() && SyntheticOptions::parse("synthetic,x").is_err());
    }

    #[test]
    fn options_made_by_hand_are_checked_too() {
        let none = SyntheticOptions::new().mix(Vec::new());
        assert!(none.open().is_err());
        let zipf = SyntheticOptions::new().zipf(f64::NAN);
        assert!(zipf.open().is_err());
    }
}
