//! The options of `steerage run`, `check`, `completions`, `man` and `help`.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use clap_complete::Shell;

use super::SandboxArgs;

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
pub(crate) struct CompleteArgs {
    /// The words before the word that is completed
    #[arg(value_name = "WORD", trailing_var_arg = true, allow_hyphen_values = true, num_args = 0..)]
    pub(crate) words: Vec<String>,

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

#[derive(Debug, Args)]
pub(crate) struct HelpArgs {
    /// Page of the guide, or command
    #[arg(value_name = "TOPIC")]
    pub(crate) topic: Vec<String>,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}
