//! The binary of the program. Its code is in the library of this crate.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    steerage_cli::main()
}
