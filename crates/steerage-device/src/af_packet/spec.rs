//! Parses the text that names an interface, such as `eth1` or `af_packet:eth1,queues=2`.

use std::time::Duration;

use super::{
    AfPacketOptions, BLOCK_TIMEOUT_MAX, BUFFER_MAX, BUFFER_MIN, Direction, QUEUES_MAX, SNAPLEN_MAX, is_interface,
};
use crate::device_hash::DEVICE_HASHES;
use crate::options::{Item, SpecError, read};

const DEVICE: &str = "af_packet";

const ANY: &str = "any";

/// The prefix is required if the interface's name could also be the name of a file.
const PREFIX: &str = "af_packet:";

/// The options in the order in which an error message lists them.
const OPTIONS: [&str; 9] =
    ["queues", "buffer", "timeout", "promiscuous", "direction", "snaplen", "hash", "offload", "time"];

/// A text in which a user names an interface and its options.
///
/// ```
/// use steerage_device::af_packet::{AfPacketOptions, Named};
///
/// let named = Named::read("af_packet:eth0,queues=2").expect("it begins as one does");
/// let options = named.apply(AfPacketOptions::new(named.interface))?;
/// assert_eq!((options.interface.as_str(), options.queues), ("eth0", 2));
/// # Ok::<(), steerage_device::synthetic::SpecError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    /// The interface's name.
    pub interface: &'a str,
    pub(crate) options: &'a str,
}

impl<'a> Named<'a> {
    /// Parses `af_packet:IFACE,option=value,...`, or the name of an interface alone. Returns `None`
    /// if `spec` has neither form.
    pub fn read(spec: &'a str) -> Option<Self> {
        match spec.strip_prefix(PREFIX) {
            Some(rest) => {
                let (interface, options) = rest.split_once(',').unwrap_or((rest, ""));
                Some(Self { interface, options })
            }
            None => is_interface(spec).then_some(Self { interface: spec, options: "" }),
        }
    }

    /// Returns the options of `any` or `af_packet:any,option=value,...`: all interfaces.
    pub(crate) fn read_any(spec: &str) -> Option<&str> {
        let rest = spec.strip_prefix(PREFIX).unwrap_or(spec);
        let (name, options) = rest.split_once(',').unwrap_or((rest, ""));
        let is_any = name == ANY && (rest == name || spec.starts_with(PREFIX)) && !is_interface(ANY);
        is_any.then_some(options)
    }

    /// Returns `options` with the changes that the text requests.
    ///
    /// # Errors
    /// [`SpecError`] for an unknown option, and for a value that is out of range.
    pub fn apply(&self, mut options: AfPacketOptions) -> Result<AfPacketOptions, SpecError> {
        for item in read(DEVICE, self.options)? {
            set(&mut options, item)?;
        }
        Ok(options)
    }
}

fn set(options: &mut AfPacketOptions, item: Item<'_>) -> Result<(), SpecError> {
    match item.option {
        "queues" => options.queues = item.within(1, QUEUES_MAX)?,
        "buffer" => options.buffer = item.within(BUFFER_MIN, BUFFER_MAX)?,
        "timeout" => {
            let millis = item.within(1, BLOCK_TIMEOUT_MAX.as_millis() as u64)?;
            options.block_timeout = Duration::from_millis(millis);
        }
        "promiscuous" => options.promiscuous = item.one_of(&[("yes", true), ("no", false)])?,
        "direction" => {
            let directions = [("in", Direction::In), ("out", Direction::Out), ("inout", Direction::InOut)];
            options.direction = item.one_of(&directions)?;
        }
        "snaplen" => options.snaplen = Some(item.within(1, SNAPLEN_MAX)?),
        "offload" => options.offloads = item.is_on()?,
        "time" => options.card_time = item.one_of(&[("card", true), ("system", false)])?,
        "hash" => options.device_hash = item.one_of(&DEVICE_HASHES)?,
        _ => return Err(item.unknown(&OPTIONS)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceHash;

    fn parsed(spec: &str) -> Result<AfPacketOptions, String> {
        let named = Named::read(spec).ok_or("neither")?;
        named.apply(AfPacketOptions::new(named.interface)).map_err(|error| error.to_string())
    }

    #[test]
    fn options_stand_behind_the_name() {
        let options = parsed(
            "af_packet:eth1,queues=2,buffer=1048576,timeout=1,promiscuous=no,direction=in,hash=device,time=card",
        );
        let options = options.unwrap();
        assert_eq!((options.interface.as_str(), options.queues, options.buffer), ("eth1", 2, 1 << 20));
        assert_eq!((options.block_timeout, options.promiscuous), (Duration::from_millis(1), false));
        assert_eq!((options.direction, options.device_hash), (Direction::In, DeviceHash::Always));
        assert!(options.card_time);
        let plain = parsed("af_packet:eth1").unwrap();
        assert_eq!((plain.queues, plain.offloads), (1, false));
        assert!(parsed("af_packet:eth1,offload=on").unwrap().offloads);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for wrong in [
            "queue=2",
            "queues=0",
            "queues",
            "buffer=1",
            "timeout=0",
            "direction=up",
            "hash=md5",
            "offload=yes",
            "snaplen=0",
            "queues=1,queues=2",
        ] {
            let error = parsed(&format!("af_packet:eth1,{wrong}")).unwrap_err();
            assert!(error.starts_with("af_packet: option `"), "{error}");
        }
        assert_eq!(parsed("no-such-interface").unwrap_err(), "neither");
    }

    #[test]
    fn any_stands_for_all_interfaces() {
        assert_eq!(Named::read_any("any"), Some(""));
        assert_eq!(Named::read_any("af_packet:any,queues=2"), Some("queues=2"));
        assert!(["any.pcap", "any,queues=2", "lo", "./any"].iter().all(|spec| Named::read_any(spec).is_none()));
    }

    #[test]
    fn a_bare_name_is_an_interface_if_there_is_one() {
        assert_eq!(parsed("lo").unwrap().interface, "lo");
        assert!(Named::read("./lo").is_none());
    }
}
