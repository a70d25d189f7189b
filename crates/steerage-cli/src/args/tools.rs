//! The options of `steerage run`, `check`, `completions`, `man` and `help`.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use clap_complete::Shell;

use super::SandboxArgs;

pub(super) const RUN_HELP: &str = "\
The keys of FILE are the long options of a command, and take the same values:

  command = \"meter\"
  devices = [\"capture.pcap\"]
  cpus = \"0-3\"
  flows = \"flows-%F-%H%M.csv\"
  rotate = \"5m\"
  json = true

An option after FILE overrides the same option in FILE, and devices after FILE override its devices. `steerage help run-files` says \
more.

Examples:
  steerage run traffic.toml
  steerage run traffic.toml --json --seconds 10   with other options
  steerage check traffic.toml                     is it correct?";

pub(super) const CHECK_HELP: &str = "\
No device is opened, nothing is written, and no privilege is needed. The exit status is 0 if the file is correct, else 1. \
Options after FILE are those of the run; --no-sandbox before FILE is that of the check.

Examples:
  steerage check traffic.toml
  steerage check traffic.toml --json --seconds 10   with these options added";

pub(super) const COMPLETIONS_HELP: &str = "\
Examples:
  source <(steerage completions bash)             for this shell
  steerage completions bash > /etc/bash_completion.d/steerage
  steerage completions zsh > \"${fpath[1]}/_steerage\"
  steerage completions fish > ~/.config/fish/completions/steerage.fish";

pub(super) const MAN_HELP: &str = "\
Examples:
  steerage man                                    the page of the program
  steerage man meter | man -l -                   read a page here and now
  steerage man --out /usr/local/share/man/man1    steerage.1, steerage-count.1 ...";

#[derive(Debug, Args)]
pub(crate) struct RunFileArgs {
    /// Run file, in TOML
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,

    /// Options and devices that override those in FILE
    #[arg(value_name = "OPTION|DEVICE", trailing_var_arg = true, allow_hyphen_values = true, num_args = 0..)]
    pub(crate) more: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) checked: RunFileArgs,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Shell: bash, elvish, fish, powershell or zsh
    #[arg(value_name = "SHELL", value_enum, hide_possible_values = true)]
    pub(crate) shell: Shell,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Command whose page is printed, such as meter [default: the page of the program]
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    pub(crate) command: Vec<String>,

    /// Write the pages of all commands to this directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) out: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

pub(super) const HELP_HELP: &str = "\
Examples:
  steerage help             the commands and the pages
  steerage help meter       the page about metering
  steerage help forward     the options of a command
  steerage help report | less";

#[derive(Debug, Args)]
pub(crate) struct HelpArgs {
    /// Page of the guide, or command
    #[arg(value_name = "TOPIC")]
    pub(crate) topic: Vec<String>,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}
