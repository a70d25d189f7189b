//! Merges the arguments of a run file with those of the command line, and lets clap parse the
//! result.

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, FromArgMatches};

use super::DEVICES;
use super::arguments::{FileArguments, GivenDevice, GivenOption};
use super::read::Keys;
use crate::args::Cli;
use crate::error::{Error, RunFileError};
use crate::usage;

#[derive(Debug)]
pub(crate) struct LoadedRun {
    pub(crate) cli: Cli,
    pub(crate) arguments: Vec<String>,
    pub(crate) origins: Vec<Origin>,
    path: String,
}

#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) what: String,
    is_device: bool,
    pub(crate) line: usize,
}

impl LoadedRun {
    /// Adds the line number of the option or device in the run file that caused the error.
    pub(crate) fn blame(&self, error: Error) -> Error {
        let origin = match &error {
            Error::Open(open) => {
                let message = open.to_string();
                let devices = || self.origins.iter().filter(|origin| origin.is_device);
                devices().find(|device| message.contains(&device.what)).or_else(|| devices().next())
            }
            other => {
                let options = other.options();
                let is_about = |origin: &&Origin| options.contains(&format!("--{}", origin.what).as_str());
                self.origins.iter().filter(|origin| !origin.is_device).find(is_about)
            }
        };
        match origin {
            Some(origin) => {
                RunFileError { path: self.path.clone(), line: Some(origin.line), message: error.to_string() }.into()
            }
            None => error,
        }
    }
}

pub(super) fn merge(
    cli: &Command,
    command: &Command,
    file: &Keys<'_>,
    given: FileArguments,
    more: &[String],
) -> Result<LoadedRun, Error> {
    let overridden = Overridden::by(cli, command, more).map_err(Error::Usage)?;
    let options: Vec<GivenOption> = given.options.into_iter().filter(|option| !overridden.has(option)).collect();
    let devices = if overridden.devices { Vec::new() } else { given.devices };
    let arguments = arguments(command, (&options, &devices, &given.job), more);

    let parsed =
        cli.clone().try_get_matches_from(std::iter::once("steerage").chain(arguments.iter().map(String::as_str)));
    let parsed = parsed.and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = parsed.map_err(|error| match blamed(&error, &options) {
        Some(option) => file.error(Some(option.line), message(&error, &option.key)).into(),
        None => Error::Usage(error),
    })?;
    let of_option = |option: GivenOption| Origin { what: option.key, is_device: false, line: option.line };
    let of_device = |device: GivenDevice| Origin { what: device.spec, is_device: true, line: device.line };
    let options = options.into_iter().map(of_option);
    let mut origins: Vec<Origin> = options.chain(devices.into_iter().map(of_device)).collect();
    origins.sort_by_key(|origin| origin.line);
    Ok(LoadedRun { cli, arguments, origins, path: file.path().to_owned() })
}

struct Overridden {
    matches: Option<ArgMatches>,
    conflicts: Vec<(String, String)>,
    devices: bool,
}

impl Overridden {
    /// Mistakes are ignored here, because parsing the merged arguments reports them. Returns an
    /// error if the command line requests help.
    fn by(cli: &Command, command: &Command, more: &[String]) -> Result<Self, clap::Error> {
        let start = ["steerage", command.get_name()].into_iter();
        let arguments = start.chain(more.iter().map(String::as_str));
        let mut matches = cli.clone().ignore_errors(true).try_get_matches_from(arguments)?;
        let matches = matches.remove_subcommand().map(|(_, matches)| matches);
        let conflicts = command.get_arguments().flat_map(|arg| {
            let others = command.get_arg_conflicts_with(arg).into_iter();
            others.map(|other| (arg.get_id().to_string(), other.get_id().to_string()))
        });
        let mut overridden = Self { matches, conflicts: conflicts.collect(), devices: false };
        overridden.devices = overridden.is_given(DEVICES);
        Ok(overridden)
    }

    fn is_given(&self, id: &str) -> bool {
        let source = self.matches.as_ref().and_then(|matches| matches.value_source(id));
        source == Some(ValueSource::CommandLine)
    }

    fn has(&self, option: &GivenOption) -> bool {
        let id = option.id.as_str();
        let excluded =
            |(one, other): &(String, String)| one == id && self.is_given(other) || other == id && self.is_given(one);
        self.is_given(id) || self.conflicts.iter().any(excluded)
    }
}

fn message(error: &clap::Error, key: &str) -> String {
    let source = std::error::Error::source(error);
    match (error.get(ContextKind::InvalidValue), source) {
        (Some(ContextValue::String(value)), Some(source)) => format!("{key}: invalid value '{value}': {source}"),
        _ => format!("{key}: {}", usage::message(error)),
    }
}

fn blamed<'a>(error: &clap::Error, options: &'a [GivenOption]) -> Option<&'a GivenOption> {
    let named = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    };
    let named: Vec<String> = [ContextKind::InvalidArg, ContextKind::PriorArg].into_iter().flat_map(named).collect();
    let is_named = |option: &&GivenOption| {
        let long = format!("--{}", option.key);
        named.iter().any(|text| text.split([' ', '=', '[']).next() == Some(&long))
    };
    options.iter().find(is_named)
}

/// Options without a value come last, because clap could use the next word as their value. Words
/// after `--` replace the jobs' command in the run file.
fn arguments(
    command: &Command,
    (options, devices, job): (&[GivenOption], &[GivenDevice], &[String]),
    more: &[String],
) -> Vec<String> {
    let of = |is_bare| {
        let options = options.iter().filter(move |option| option.is_bare == is_bare);
        options.flat_map(|option| option.arguments.iter().cloned())
    };
    let end = more.iter().position(|argument| argument == "--").unwrap_or(more.len());
    let mut arguments = vec![command.get_name().to_owned()];
    arguments.extend(devices.iter().map(|device| device.spec.clone()));
    arguments.extend(of(false));
    arguments.extend(more[..end].iter().cloned());
    arguments.extend(of(true));
    arguments.extend(more[end..].iter().cloned());
    if end == more.len() && !job.is_empty() {
        arguments.push("--".to_owned());
        arguments.extend(job.iter().cloned());
    }
    arguments
}
