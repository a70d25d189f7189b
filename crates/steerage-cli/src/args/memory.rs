//! How much memory, and how it is divided.

use clap::Args;
use steerage::LPC_SIZE_MAX;

use super::size;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Steering")]
pub(crate) struct MemoryArgs {
    /// Most memory for packets and rings, with K, M or G [default: 1G]
    #[arg(long = "memory", value_name = "SIZE", value_parser = size)]
    pub(crate) memory_max: Option<usize>,

    /// Pages that each queue keeps to itself, in units of 1024;
    /// 0: none [default: 2; 0 where memory is small]
    #[arg(long, value_name = "UNITS", verbatim_doc_comment, allow_negative_numbers = true, value_parser = lpc_size)]
    pub(crate) lpc_size: Option<usize>,
}

/// The size of a local page cache: here 0 is one too.
fn lpc_size(text: &str) -> Result<usize, String> {
    let size = text.parse().ok().filter(|size| *size <= LPC_SIZE_MAX);
    size.ok_or_else(|| format!("write a number from 0 to {LPC_SIZE_MAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_may_be_of_no_pages() {
        assert_eq!((lpc_size("0"), lpc_size("32")), (Ok(0), Ok(32)));
        for wrong in ["", "33", "-1", "2.5", "2M"] {
            assert_eq!(lpc_size(wrong), Err("write a number from 0 to 32".to_owned()), "{wrong}");
        }
    }
}
