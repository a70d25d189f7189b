use steerage::LinkType;

use super::kinds::FrameKind;
use super::{Filter, FilterError, FrameFilter, numbers, tcpdump, written};

#[derive(Debug)]
pub(crate) enum FileFilters {
    /// A filter program that the user compiled for one link type: that of the first frame.
    Numbers { filter: FrameFilter, link: Option<LinkType> },
    /// For each kind of frames, the program that tcpdump compiled, or tcpdump's error.
    Compiled(Vec<(FrameKind, Result<FrameFilter, String>)>),
}

impl FileFilters {
    /// Compiles the filter for the frame kinds `kinds`, and, if `others` is true, for all usual
    /// frame kinds.
    pub(crate) fn compile(text: &str, kinds: &[FrameKind], others: bool) -> Result<Self, FilterError> {
        let text = written(text)?;
        if numbers::looks_like(&text) {
            return Ok(Self::Numbers { filter: text.parse::<Filter>()?.for_frames()?, link: None });
        }
        let usual = FrameKind::usual().filter(|_| others);
        let mut wanted: Vec<FrameKind> = Vec::new();
        for kind in kinds.iter().copied().chain(usual) {
            if !wanted.contains(&kind) {
                wanted.push(kind);
            }
        }
        let compiled = tcpdump::compile_for_files(&text, &wanted);
        let mut programs: Vec<(FrameKind, Result<FrameFilter, String>)> = Vec::new();
        let mut first_error = None;
        for (kind, filter) in wanted.into_iter().zip(compiled) {
            let filter = match filter.and_then(|filter| filter.for_frames()) {
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
