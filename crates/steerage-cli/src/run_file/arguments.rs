//! Converts the keys of a run file to command line arguments, according to clap's definition of the
//! options.

use clap::{Arg, ArgAction, Command, Id};
use steerage_device::af_packet::is_interface;
use toml::de::DeValue;

use super::read::{Key, Keys, as_text};
use super::{COMMAND, DEVICES, JOB, has_jobs};
use crate::error::RunFileError;
use crate::usage::nearest;

const SYNTHETIC: &str = "synthetic";
const AF_PACKET: &str = "af_packet:";
const LIVE: [&str; 5] = [AF_PACKET, "af_xdp:", "tap:", "tun:", "udp:"];

#[derive(Debug)]
pub(super) struct FileArguments {
    pub(super) options: Vec<GivenOption>,
    pub(super) devices: Vec<GivenDevice>,
    pub(super) job: Vec<String>,
}

#[derive(Debug)]
pub(super) struct GivenOption {
    pub(super) id: Id,
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) arguments: Vec<String>,
    pub(super) is_bare: bool,
}

#[derive(Debug)]
pub(super) struct GivenDevice {
    pub(super) spec: String,
    pub(super) line: usize,
}

pub(super) fn of(command: &Command, file: &Keys<'_>) -> Result<FileArguments, RunFileError> {
    let mut given = FileArguments { options: Vec::new(), devices: Vec::new(), job: Vec::new() };
    for key in &file.keys {
        match key.name.as_str() {
            COMMAND => {}
            DEVICES => given.devices = devices(file, key)?,
            JOB if has_jobs(command) => given.job = job(file, key)?,
            name => match options(command).find(|arg| arg.get_long() == Some(name)) {
                Some(arg) => given.options.extend(option(file, key, arg)?),
                None => return Err(unknown(command, file, key)),
            },
        }
    }
    Ok(given)
}

fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    let is_help = |arg: &Arg| {
        matches!(arg.get_action(), ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version)
    };
    command.get_arguments().filter(move |arg| arg.get_long().is_some() && !is_help(arg))
}

fn unknown(command: &Command, file: &Keys<'_>, key: &Key<'_>) -> RunFileError {
    let known = options(command).filter_map(Arg::get_long).chain([COMMAND, DEVICES]);
    let known = known.chain(has_jobs(command).then_some(JOB));
    // Keys in TOML files often contain underscores in place of hyphens.
    let near = nearest(&key.name.replace('_', "-"), known);
    let near = near.map_or(String::new(), |near| format!("; a similar key exists: `{near}`"));
    let message = format!("{}: `{}` has no such option{near}; see --help", key.name, command.get_name());
    file.error(Some(key.line), message)
}

fn option(file: &Keys<'_>, key: &Key<'_>, arg: &Arg) -> Result<Option<GivenOption>, RunFileError> {
    let wrong = |what: &str| Err(file.error(Some(key.line), format!("{}: {what}", key.name)));
    let given = |arguments: Vec<String>, is_bare| {
        Ok(Some(GivenOption { id: arg.get_id().clone(), key: key.name.clone(), line: key.line, arguments, is_bare }))
    };
    let takes_values = arg.get_action().takes_values();
    let needs_value = takes_values && arg.get_num_args().is_none_or(|range| range.min_values() > 0);
    match &key.value {
        DeValue::Boolean(false) if !needs_value => Ok(None),
        DeValue::Boolean(true) if !needs_value => given(vec![format!("--{}", key.name)], takes_values),
        DeValue::Boolean(_) => wrong("write a value: it is no option to switch on or off"),
        DeValue::Integer(times) if matches!(arg.get_action(), ArgAction::Count) => {
            match as_text(&key.value).and_then(|times| times.parse::<u8>().ok()) {
                Some(times) => given(vec![format!("--{}", key.name); times.into()], false),
                None => wrong(&format!("{} is not how often it can be given", times.as_str())),
            }
        }
        _ if !takes_values => wrong("write true or false"),
        DeValue::Array(values) if matches!(arg.get_action(), ArgAction::Append) => {
            let texts: Option<Vec<String>> = values.iter().map(|value| as_text(value.get_ref())).collect();
            match texts {
                Some(texts) => given(texts.iter().map(|text| format!("--{}={text}", key.name)).collect(), false),
                None => wrong("write a list of strings or numbers"),
            }
        }
        value => match as_text(value) {
            Some(text) => given(vec![format!("--{}={text}", key.name)], false),
            None => wrong(&format!("write a string or a number, not {}", kind(value))),
        },
    }
}

fn job(file: &Keys<'_>, key: &Key<'_>) -> Result<Vec<String>, RunFileError> {
    let words = match &key.value {
        DeValue::Array(values) => values.iter().map(|value| as_text(value.get_ref())).collect(),
        _ => None,
    };
    words.filter(|words: &Vec<String>| !words.is_empty()).ok_or_else(|| {
        let message = format!("{JOB}: write a list of words, such as [\"tshark\", \"-n\", \"-r\", \"-\"]");
        file.error(Some(key.line), message)
    })
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
        DeValue::Datetime(_) => "a date or time",
        _ => "that",
    }
}

/// Parses `devices = "a"`, `devices = ["a", { name = "synthetic", rate = 1000 }]` and
/// `[[devices]]`.
fn devices(file: &Keys<'_>, key: &Key<'_>) -> Result<Vec<GivenDevice>, RunFileError> {
    match &key.value {
        DeValue::Array(values) if !values.is_empty() => {
            let of_value =
                |value: &toml::Spanned<DeValue<'_>>| device(file, file.line_at(value.span().start), value.get_ref());
            values.iter().map(of_value).collect()
        }
        value => Ok(vec![device(file, key.line, value)?]),
    }
}

fn device(file: &Keys<'_>, line: usize, value: &DeValue<'_>) -> Result<GivenDevice, RunFileError> {
    let spec = match value {
        DeValue::String(name) => name.to_string(),
        DeValue::Table(table) => with_options(file, line, &file.within(table))?,
        _ => {
            let message = format!("{DEVICES}: write a name, a list of names, or a table with a `name`");
            return Err(file.error(Some(line), message));
        }
    };
    if spec.is_empty() || spec.starts_with('-') && spec != "-" {
        let message = format!("{DEVICES}: `{spec}` would be read as an option: write ./{spec} for a file of that name");
        return Err(file.error(Some(line), message));
    }
    steerage_device::check(&spec).map_err(|error| file.error(Some(line), format!("{DEVICES}: {error}")))?;
    Ok(GivenDevice { spec, line })
}

fn with_options(file: &Keys<'_>, line: usize, table: &Keys<'_>) -> Result<String, RunFileError> {
    let Some(name) = table.get("name").and_then(|key| key.value.as_str()) else {
        return Err(
            file.error(Some(line), format!("{DEVICES}: a device needs a name: write such as name = \"synthetic\""))
        );
    };
    let Some(base) = with_room_for_options(name) else {
        let message =
            "only synthetic traffic and interfaces have options of their own: write others as keys of the file";
        return match table.keys.iter().find(|key| key.name != "name") {
            Some(key) => Err(file.error(Some(key.line), format!("{DEVICES}: {name}: {}: {message}", key.name))),
            None => Ok(name.to_owned()),
        };
    };
    let mut spec = base.clone();
    for key in table.keys.iter().filter(|key| key.name != "name") {
        let text = as_text(&key.value).filter(|text| !text.contains(','));
        let text = text.ok_or_else(|| {
            let message = format!("{DEVICES}: {name}: {}: write a number, or a string without a comma", key.name);
            file.error(Some(key.line), message)
        })?;
        let option = format!("{}={text}", key.name);
        let with = |spec: &str| format!("{spec}{}{option}", if spec == SYNTHETIC { ':' } else { ',' });
        steerage_device::check(&with(&base))
            .map_err(|error| file.error(Some(key.line), format!("{DEVICES}: {error}")))?;
        spec = with(&spec);
    }
    Ok(spec)
}

/// Returns a device's name with its kind, so that options can be appended. Returns `None` if
/// devices of this kind have no options.
fn with_room_for_options(name: &str) -> Option<String> {
    let is_whole = !name.contains(',') && (name == SYNTHETIC || LIVE.iter().any(|prefix| name.starts_with(prefix)));
    is_whole.then(|| name.to_owned()).or_else(|| is_interface(name).then(|| format!("{AF_PACKET}{name}")))
}
