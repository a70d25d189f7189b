//! The binary of the program. The code of the program is in the library of this crate.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    steerage_cli::main()
}
