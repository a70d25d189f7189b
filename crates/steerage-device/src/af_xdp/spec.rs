//! Parses the text that names an interface for AF_XDP, such as `af_xdp:eth1,queues=0-3`.

use std::time::Duration;

use super::{AfXdpOptions, BUSY_POLL_MAX, COALESCE_MAX, COALESCE_MIN, Mode, PORTS_MAX, RING_MAX, RING_MIN};
use crate::device_hash::DEVICE_HASHES;
use crate::options::{self, Item, SpecError};

pub(super) const DEVICE: &str = "af_xdp";

const PREFIX: &str = "af_xdp:";

/// The options in the order in which an error message lists them.
const OPTIONS: [&str; 7] = ["queues", "mode", "ring", "busy_poll", "coalesce", "hash", "ports"];

/// A text in which a user names an interface and its options.
///
/// ```
/// use steerage_device::af_xdp::Named;
///
/// let named = Named::read("af_xdp:eth0,mode=skb").expect("it begins as one does");
/// assert_eq!(named.interface, "eth0");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    /// The interface's name.
    pub interface: &'a str,
    pub(super) options: &'a str,
}

impl<'a> Named<'a> {
    /// Parses `af_xdp:IFACE,option=value,...`. Returns `None` for a text without the prefix
    /// `af_xdp:`.
    pub fn read(spec: &'a str) -> Option<Self> {
        let rest = spec.strip_prefix(PREFIX)?;
        let (interface, options) = rest.split_once(',').unwrap_or((rest, ""));
        Some(Self { interface, options })
    }

    /// Returns `options` with the changes that the text specifies.
    ///
    /// # Errors
    /// [`SpecError`] for an unknown option, and for a value that is out of range.
    pub fn apply(&self, mut options: AfXdpOptions) -> Result<AfXdpOptions, SpecError> {
        let list = options::read(DEVICE, self.options)?;
        for item in &list {
            set(&mut options, *item)?;
        }
        let named = |name: &str| list.iter().find(|item| item.option == name);
        match named("coalesce") {
            Some(item) if options.coalesce.is_some() && options.busy_poll.is_some() => {
                Err(item.wrong("and `busy_poll` exclude each other: name one of them"))
            }
            // A text that sets `busy_poll` turns off the program's default for `coalesce`.
            None if named("busy_poll").is_some() => Ok(AfXdpOptions { coalesce: None, ..options }),
            _ => Ok(options),
        }
    }
}

fn set(options: &mut AfXdpOptions, item: Item<'_>) -> Result<(), SpecError> {
    match item.option {
        "queues" => {
            let (first, last) = item.value.split_once('-').unwrap_or((item.value, item.value));
            let numbers = first.parse().ok().zip(last.parse().ok()).filter(|(first, last)| first <= last);
            let (first, last) = numbers.ok_or_else(|| item.wrong("is not such as 0, or 0-3"))?;
            options.queues = Some(first..=last);
        }
        "mode" => {
            let modes = [("auto", Mode::Auto), ("native", Mode::Native), ("copy", Mode::Copy), ("skb", Mode::Skb)];
            options.mode = item.one_of(&modes)?;
        }
        "ring" => options.ring = ring(item)?,
        "busy_poll" => {
            let most = BUSY_POLL_MAX.as_micros() as u64;
            let micros = item.value.parse().ok().filter(|micros| (1..=most).contains(micros));
            let wrong = || item.wrong(format!("is not a number of microseconds from 1 to {most}"));
            options.busy_poll = Some(Duration::from_micros(micros.ok_or_else(wrong)?));
        }
        "coalesce" => {
            let range = COALESCE_MIN..=COALESCE_MAX;
            options.coalesce = match item.value {
                "off" => None,
                value => {
                    let wrong = || item.wrong("is neither off nor a time from 1us to 10ms, with its unit");
                    Some(options::time(value).filter(|time| range.contains(time)).ok_or_else(wrong)?)
                }
            };
        }
        "hash" => options.device_hash = item.one_of(&DEVICE_HASHES)?,
        "ports" => options.ports = Some(item.within(1, PORTS_MAX)?),
        _ => return Err(item.unknown(&OPTIONS)),
    }
    Ok(())
}

pub(super) fn ring(item: Item<'_>) -> Result<u32, SpecError> {
    let sound = |ring: &u32| ring.is_power_of_two() && (RING_MIN..=RING_MAX).contains(ring);
    let wrong = || item.wrong(format!("is not a power of two from {RING_MIN} to {RING_MAX}"));
    item.value.parse().ok().filter(sound).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceHash;

    fn read(spec: &str) -> Result<AfXdpOptions, String> {
        let named = Named::read(spec).ok_or("something else")?;
        named.apply(AfXdpOptions::new(named.interface)).map_err(|error| error.to_string())
    }

    #[test]
    fn options_stand_behind_the_name() {
        let options = read("af_xdp:eth1,queues=1-3,mode=skb,ring=512,busy_poll=20,hash=device").unwrap();
        assert_eq!((options.interface.as_str(), options.queues, options.mode), ("eth1", Some(1..=3), Mode::Skb));
        assert_eq!((options.ring, options.busy_poll), (512, Some(Duration::from_micros(20))));
        assert!(options.device_hash == DeviceHash::Always && options.take.is_none());
        assert_eq!(read("af_xdp:eth1,hash=auto").unwrap().device_hash, DeviceHash::IfSafe);
        assert_eq!(read("af_xdp:eth1,queues=2").unwrap().queues, Some(2..=2));
        assert_eq!(read("af_xdp:bond0,ports=3").unwrap().ports, Some(3));
        assert_eq!(read("eth1").unwrap_err(), "something else");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for wrong in [
            "queue=2",
            "queues=3-1",
            "queues",
            "mode=fast",
            "ring=100",
            "ring=64",
            "busy_poll=0",
            "hash=md5",
            "ports=0",
        ] {
            let error = read(&format!("af_xdp:eth1,{wrong}")).unwrap_err();
            assert!(error.starts_with("af_xdp: option `"), "{error}");
        }
    }

    #[test]
    fn coalescing_has_a_unit_and_a_range() {
        let micros = |value: &str| Some(read(&format!("af_xdp:eth1,coalesce={value}")).ok()?.coalesce?.as_micros());
        assert_eq!(["1us", "50us", "2ms", "10ms"].map(micros), [Some(1), Some(50), Some(2_000), Some(10_000)]);
        assert_eq!(read("af_xdp:eth1,coalesce=off").unwrap().coalesce, None);
        for wrong in
            ["", "50", "0us", "11ms", "10001us", "us", "1s", "-1us", "+1us", "1.5us", "on", "99999999999999999ms"]
        {
            let error = read(&format!("af_xdp:eth1,coalesce={wrong}")).unwrap_err();
            assert!(error.ends_with("is neither off nor a time from 1us to 10ms, with its unit"), "{error}");
        }
    }

    #[test]
    fn a_busy_poll_does_not_coalesce() {
        let listener = |spec: &str| {
            let options = AfXdpOptions::new("eth1").coalesce(Duration::from_micros(50));
            Named::read(spec).unwrap().apply(options).map_err(|error| error.to_string())
        };
        assert_eq!(listener("af_xdp:eth1,ring=512").unwrap().coalesce, Some(Duration::from_micros(50)));
        assert_eq!(listener("af_xdp:eth1,busy_poll=20").unwrap().coalesce, None);
        assert_eq!(listener("af_xdp:eth1,busy_poll=20,coalesce=off").unwrap().coalesce, None);
        for both in ["busy_poll=20,coalesce=50us", "coalesce=50us,busy_poll=20"] {
            let error = listener(&format!("af_xdp:eth1,{both}")).unwrap_err();
            assert_eq!(error, "af_xdp: option `coalesce=50us` and `busy_poll` exclude each other: name one of them");
        }
    }
}
