//! The filter of capture files, with a program for each kind of frames in the files.

use steerage::LinkType;

use super::kinds::FrameKind;
use super::{Filter, FilterError, FrameFilter, numbers, tcpdump, written};

/// The filter programs for all kinds of frames in the files.
#[derive(Debug)]
pub(crate) enum FileFilters {
    /// A filter program that the user compiled in advance. The filter program is valid for one link
    /// type, the type of the first frame.
    Numbers { filter: FrameFilter, link: Option<LinkType> },
    /// For each kind of frames, the program that tcpdump compiled, or tcpdump's error.
    Compiled(Vec<(FrameKind, Result<FrameFilter, String>)>),
}

impl FileFilters {
    /// Compiles the filter `text` for frames of these kinds. If frames of other kinds may come later
    /// in the file, also compiles the filter for the usual kinds.
    pub(crate) fn compile(text: &str, kinds: &[FrameKind], others: bool) -> Result<Self, FilterError> {
        let text = written(text)?;
        if numbers::looks_like(&text) {
            return Ok(Self::Numbers { filter: text.parse::<Filter>()?.for_frames()?, link: None });
        }
        let mut all = kinds.to_vec();
        if others {
            all.extend(FrameKind::usual());
        }
        let mut wanted: Vec<FrameKind> = Vec::new();
        for kind in all {
            if !wanted.contains(&kind) {
                wanted.push(kind);
            }
        }
        let compiled = tcpdump::compile_for_files(&text, &wanted);
        let mut programs: Vec<(FrameKind, Result<FrameFilter, String>)> = Vec::new();
        let mut first_error = None;
        for (kind, filter) in wanted.into_iter().zip(compiled) {
            let filter = match filter.and_then(|filter| filter.for_frames()) {
                // Each kind of frames that the files contain must have a filter program. If no kind
                // of frames has a filter program, the expression is invalid.
                Err(error) if kinds.contains(&kind) => return Err(error),
                Err(error) => {
                    let text = error.to_string();
                    first_error.get_or_insert(error);
                    Err(text)
                }
                Ok(filter) => Ok(filter),
            };
            programs.push((kind, filter));
        }
        match first_error {
            Some(error) if programs.iter().all(|(_, filter)| filter.is_err()) => Err(error),
            _ => Ok(Self::Compiled(programs)),
        }
    }

    /// Returns the program for frames of this kind, or the reason why there is no program for them.
    pub(crate) fn program(&mut self, kind: FrameKind) -> Result<&FrameFilter, String> {
        match self {
            Self::Numbers { filter, link } => match *link.get_or_insert(kind.link) {
                link if link == kind.link => Ok(filter),
                link => Err(format!(
                    "the filter is a program for frames of link type {}, and here is one of link type {}",
                    link.0, kind.link.0
                )),
            },
            Self::Compiled(programs) => match programs.iter().find(|(of, _)| *of == kind) {
                Some((_, Ok(filter))) => Ok(filter),
                Some((_, Err(why))) => Err(why.clone()),
                None => Err(format!("the filter was not compiled for frames of link type {}", kind.link.0)),
            },
        }
    }
}
