use super::{Layer, MTU_MAX, MTU_MIN, QUEUES_MAX, TapOptions};
use crate::options::{self, SpecError};
use crate::sys::NAME_BYTES;

const OPTIONS: [&str; 3] = ["queues", "mtu", "offload"];

fn split(spec: &str) -> Option<(Layer, &str)> {
    let (layer, rest) = spec.split_once(':')?;
    match layer {
        "tap" => Some((Layer::Tap, rest)),
        "tun" => Some((Layer::Tun, rest)),
        _ => None,
    }
}

/// Returns true if `spec` names a TAP or TUN: if it begins with `tap:` or `tun:`.
///
/// ```
/// use steerage_device::tap::is_spec;
///
/// assert!(is_spec("tap:vm0") && !is_spec("vm0"));
/// ```
pub fn is_spec(spec: &str) -> bool {
    split(spec).is_some()
}

impl TapOptions {
    /// Parses `tap:NAME,option=value,...` or `tun:NAME,...`.
    ///
    /// # Errors
    /// [`SpecError`] for an invalid name, and for an unknown, repeated or out-of-range option.
    pub fn parse(spec: &str) -> Result<Self, SpecError> {
        let Some((layer, rest)) = split(spec) else {
            return Err(SpecError::of("tap", spec, "", "is not this device: write `tap:NAME` or `tun:NAME`"));
        };
        let device = layer.name();
        let (name, list) = rest.split_once(',').unwrap_or((rest, ""));
        if let Some(wrong) = wrong_name(name) {
            return Err(SpecError::of(device, "NAME", name, wrong));
        }
        let mut options = Self::new(layer, name);
        for item in options::read(device, list)? {
            match item.option {
                "queues" => options.queues = Some(item.within(1, QUEUES_MAX)?),
                "offload" => options.offloads = item.is_on()?,
                "mtu" => options.mtu = Some(item.within(MTU_MIN, MTU_MAX)?),
                _ => return Err(item.unknown(&OPTIONS)),
            }
        }
        Ok(options)
    }
}

/// Finds names that the kernel would refuse, or would treat as a pattern.
pub(super) fn wrong_name(name: &str) -> Option<&'static str> {
    let odd = |c: char| c == '/' || c == ':' || c == '%' || c.is_whitespace() || c.is_control();
    match name {
        "" => Some("is missing: write `tap:NAME` or `tun:NAME`"),
        "." | ".." => Some("cannot be an interface's name"),
        _ if name.len() >= NAME_BYTES => Some("is too long: an interface's name has 15 bytes at most"),
        _ if name.contains(odd) => Some("cannot be an interface's name: leave out / : % and blanks"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stand_behind_the_name() {
        let options = TapOptions::parse("tap:ids0,queues=4,mtu=9000").unwrap();
        assert_eq!((options.layer, options.name.as_str()), (Layer::Tap, "ids0"));
        assert_eq!((options.queues, options.mtu), (Some(4), Some(9000)));
        let options = TapOptions::parse("tun:vpn").unwrap();
        assert_eq!((options.layer, options.queues, options.mtu), (Layer::Tun, None, None));
        assert!(!is_spec("tap") && !is_spec("tap0") && !is_spec("pcap:tap:x") && is_spec("tap:"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for wrong in [
            "tap:",
            "tun:,queues=2",
            "tap:a/b",
            "tap:tap%d",
            "tap:a b",
            "tap:sixteen-bytes-16",
            "tap:x,queues",
            "tap:x,queues=0",
            "tap:x,queues=257",
            "tap:x,mtu=67",
            "tap:x,mtu=1500,mtu=1500",
            "tap:x,speed=9",
        ] {
            let error = TapOptions::parse(wrong).unwrap_err().to_string();
            assert!(error.contains(": option `"), "{error}");
        }
        assert!(TapOptions::parse("eth0").is_err());
    }
}
