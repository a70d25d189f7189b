//! The options of `steerage run`, `check`, `completions` and `man`.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use clap_complete::Shell;

pub(super) const RUN_HELP: &str = "\
The keys of FILE, in TOML, are the long options of a command, and take the same values:

  command = \"meter\"
  devices = [\"capture.pcap\"]
  cpus = \"0-3\"
  flows = \"flows-%F-%H%M.csv\"
  rotate = \"5m\"
  json = true

All else is told in docs/run-files.md. An option behind FILE takes the place of the same one in it,
and devices behind FILE that of its devices.

Examples:
  steerage run traffic.toml
  steerage run traffic.toml --json --seconds 10      the same, but so
  steerage check traffic.toml                        is it right, and what would it do?";

pub(super) const CHECK_HELP: &str = "\
Devices are not opened, nothing is written, and no privilege is needed. The exit status is 0 if all
is well, else 1.

Examples:
  steerage check traffic.toml
  steerage check traffic.toml --json --seconds 10    with these behind it on the command line";

pub(super) const COMPLETIONS_HELP: &str = "\
Examples:
  source <(steerage completions bash)                for this shell
  steerage completions bash > /etc/bash_completion.d/steerage
  steerage completions zsh > \"${fpath[1]}/_steerage\"
  steerage completions fish > ~/.config/fish/completions/steerage.fish";

pub(super) const MAN_HELP: &str = "\
Without DIR the page of the whole program is printed; the commands have pages of their own.

Examples:
  steerage man | man -l -                            read it here and now
  steerage man /usr/local/share/man/man1             steerage.1, steerage-count.1 and so on";

#[derive(Debug, Args)]
pub(crate) struct RunFileArgs {
    /// What to run, in TOML
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,

    /// Options and devices in place of those in FILE
    #[arg(value_name = "OPTION|DEVICE", trailing_var_arg = true, allow_hyphen_values = true, num_args = 0..)]
    pub(crate) more: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// bash, elvish, fish, powershell or zsh
    #[arg(value_name = "SHELL", value_enum, hide_possible_values = true)]
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write a page for each command there
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) directory: Option<PathBuf>,
}
