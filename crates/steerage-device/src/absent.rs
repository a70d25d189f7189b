use std::io;

use steerage::DeviceError;

/// For each device: the first characters of its text form, the advice if its cargo feature is off,
/// and whether the feature is on.
const FEATURES: [(&str, &str, bool); 3] = [
    ("af_xdp:", "build steerage-device with its feature `af_xdp`", cfg!(feature = "af_xdp")),
    ("tap:", TAP, cfg!(feature = "tap")),
    ("tun:", TAP, cfg!(feature = "tap")),
];
const TAP: &str = "build steerage-device with its feature `tap`";

/// Returns true if `spec` names a device of an optional feature, except for capture files, whose
/// paths have no fixed first characters.
pub(crate) fn has_feature(spec: &str) -> bool {
    FEATURES.iter().any(|(begins, ..)| spec.starts_with(begins))
}

pub(crate) fn check(spec: &str) -> Result<(), DeviceError> {
    let absent = FEATURES.iter().find(|(begins, _, is_on)| !is_on && spec.starts_with(begins));
    absent.map_or(Ok(()), |(_, advice, _)| Err(error(spec, advice)))
}

#[cfg(not(feature = "capture"))]
pub(crate) fn no_captures(spec: &str) -> DeviceError {
    error(spec, "build steerage-device with its feature `capture`")
}

fn error(spec: &str, advice: &'static str) -> DeviceError {
    let cause = io::Error::new(io::ErrorKind::Unsupported, "this program was built without such devices");
    DeviceError::new(spec, "open it", cause).advise(advice)
}

#[cfg(test)]
mod tests {
    /// The script .ci/full runs this test both with and without the cargo features.
    #[test]
    fn a_device_whose_feature_is_off_is_named() {
        let said = |spec: &str| crate::check(spec).err().map(|error| error.to_string()).unwrap_or_default();
        for (spec, feature, is_on) in [
            ("af_xdp:no-such-interface", "af_xdp", cfg!(feature = "af_xdp")),
            ("tap:vm0", "tap", cfg!(feature = "tap")),
            ("tun:vm0,mtu=1400", "tap", cfg!(feature = "tap")),
        ] {
            assert_eq!(said(spec).ends_with(&format!("with its feature `{feature}`")), !is_on, "{}", said(spec));
            assert!(!crate::takes_filter(spec), "{spec}");
        }
        assert_eq!(said("synthetic:packets=1"), "");
        let error = crate::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap_err().to_string();
        assert_eq!(error.ends_with("with its feature `capture`"), !cfg!(feature = "capture"), "{error}");
    }
}
