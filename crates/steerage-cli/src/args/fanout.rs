//! The options of `steerage fanout`.

use std::num::NonZero;

use clap::Args;
use steerage_capture::Rotate;

use super::RunArgs;
use super::values::{number, period};

#[derive(Debug, Args)]
pub(crate) struct FanoutArgs {
    /// Output, such as pcap:FILE; each flow goes to one of the outputs
    #[arg(long, value_name = "OUTPUT", required = true, action = clap::ArgAction::Append)]
    pub(crate) to: Vec<String>,

    /// Begin a new capture file every DURATION of packet time, or before it is longer than SIZE
    #[arg(hide_short_help = true, long, value_name = "DURATION|SIZE", value_parser = rotate)]
    pub(crate) rotate: Option<Rotate>,

    /// With --rotate, keep the newest N files of each output, and remove older ones
    #[arg(hide_short_help = true, long, value_name = "N", requires = "rotate", allow_negative_numbers = true,
        value_parser = keep)]
    pub(crate) keep: Option<NonZero<usize>>,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// The minimum size that `--rotate` accepts. Creating much smaller files would take more time than
/// writing their packets.
const FILE_BYTES_MIN: u64 = 1 << 20;

/// The maximum number of files that `--keep` accepts. People could not read a directory with more
/// files.
const KEEP_MAX: usize = 1_000_000;

fn rotate(text: &str) -> Result<Rotate, String> {
    let (number, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        Some(b'T') => (&text[..text.len() - 1], 40),
        _ => return period(text).map(Rotate::Every).map_err(|wrong| format!("{wrong}; or a size such as 100M or 1G")),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.filter(|bytes| *bytes >= FILE_BYTES_MIN).map(Rotate::Bytes).ok_or_else(|| "write 1M or more".to_owned())
}

fn keep(text: &str) -> Result<NonZero<usize>, String> {
    let number = number(text, KEEP_MAX)?;
    NonZero::new(number).ok_or_else(|| "write a number from 1 on".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn files_end_by_time_or_size() {
        assert_eq!(rotate("1h"), Ok(Rotate::Every(Duration::from_secs(3600))));
        assert_eq!(rotate("30"), Ok(Rotate::Every(Duration::from_secs(30))));
        assert_eq!([rotate("1G"), rotate("1024k")], [Ok(Rotate::Bytes(1 << 30)), Ok(Rotate::Bytes(1 << 20))]);
        for wrong in ["", "0.5", "1023k", "-1G", "G", "99999999999T", "é", "1Gé"] {
            assert!(rotate(wrong).is_err(), "{wrong}");
        }
    }
}
