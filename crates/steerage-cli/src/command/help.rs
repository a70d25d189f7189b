//! `steerage help` prints a page of the guide, or the help of a command.

use clap::Command;

use crate::args::{self, HelpArgs};
use crate::error::{CommandLineError, Error};
use crate::sandbox::{self, Needs, SandboxProfile};
use crate::{guide, stdout};

pub(crate) fn run(args: &HelpArgs) -> Result<(), Error> {
    sandbox::enter(Needs::of(SandboxProfile::Help), &args.sandbox)?;
    let text = match args.topic.as_slice() {
        [] => overview(),
        [topic] => match guide::page(topic) {
            Some(page) => page.to_owned(),
            None => of_command(&args.topic)?,
        },
        words => of_command(words)?,
    };
    stdout::print(text)
}

fn overview() -> String {
    let mut text = args::program().render_help().to_string();
    text += "\n\nPages of the guide (steerage help PAGE):\n";
    for (name, title) in guide::titles() {
        text += &format!("  {name:<16} {title}\n");
    }
    text
}

fn of_command(words: &[String]) -> Result<String, Error> {
    let mut program = args::program();
    program.build();
    let mut command: &Command = &program;
    for word in words {
        let below = command.find_subcommand(word).filter(|below| !below.is_hide_set());
        command = below
            .ok_or_else(|| CommandLineError::NoTopic { topic: words.join(" "), nearest: guide::nearest(words) })?;
    }
    Ok(command.clone().render_long_help().to_string())
}
