//! The options for memory.

use clap::Args;
use steerage::limits::{FRAME_BYTES_MAX, LPC_PAGES_MAX};

use super::values::up_to;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Steering")]
pub(crate) struct MemoryArgs {
    /// Most memory for packets and rings, with K, M or G [default: 1G]
    #[arg(hide_short_help = true, long = "memory", value_name = "SIZE", value_parser = size)]
    pub(crate) memory_max: Option<usize>,

    /// Pages in the cache of each queue; 0 for none [default: 2048, divided among the queues of a CPU]
    #[arg(hide_short_help = true, long, value_name = "N", allow_negative_numbers = true, 
        value_parser = |text: &str| up_to(text, LPC_PAGES_MAX))]
    pub(crate) lpc_pages: Option<usize>,

    /// Copy packets of up to N bytes out of the ring in which AF_XDP receives [default: 0, copy none]
    #[arg(hide_short_help = true, long, value_name = "N", allow_negative_numbers = true, 
        value_parser = |text: &str| up_to(text, FRAME_BYTES_MAX))]
    pub(crate) copybreak: Option<usize>,
}

/// Parses the size of a buffer. A bare number is in KiB, as for tcpdump's `-B`.
pub(super) fn buffer(text: &str) -> Result<usize, String> {
    let is_bare = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    if is_bare { size(&format!("{text}K")) } else { size(text) }
}

/// Parses `512M` or `1GiB`. Units are powers of 1024, as usual for memory.
pub(super) fn size(text: &str) -> Result<usize, String> {
    let wrong = || "write a number of bytes with K, M or G, such as 512M".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().trim_end_matches("ib") {
        "" | "b" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return Err(wrong()),
    };
    let number: usize = number.parse().map_err(|_| wrong())?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "write a smaller size: this one is too large for any machine".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_may_be_of_no_pages() {
        let lpc = |text| up_to(text, LPC_PAGES_MAX);
        assert_eq!((lpc("0"), lpc("32768")), (Ok(0), Ok(32768)));
        for wrong in ["", "32769", "-1", "2.5", "2M"] {
            assert_eq!(lpc(wrong), Err("write a number from 0 to 32768".to_owned()), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_in_powers_of_1024() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("64k"), Ok(64 << 10));
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!(size("2GiB"), Ok(2 << 30));
        assert_eq!((buffer("4096"), buffer("4M")), (Ok(4 << 20), Ok(4 << 20)));
        assert!(buffer("").is_err() && buffer("4T").is_err());
        for wrong in ["", "M", "1T", "1.5G", "-1", "1 G", "99999999999G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
