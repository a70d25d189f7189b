//! The log of what was read in one piece of a flow. The logs of all pieces give the names of the
//! flow.
//!
//! The packets of a flow are read until its names are known, and for at most [`LOOKS_MAX`] segments
//! per direction. After a cut of a recording, the meter does not know how much was read before the
//! cut, so it keeps the result of each *look* (each searched packet).

use std::sync::Arc;

use super::{FlowNames, LOOKS_MAX, dns};
use crate::code::{Coder, MalformedEdges};

const TEXT_BYTES_MAX: usize = 4096;

#[derive(Clone, Debug, Default)]
pub(in super::super) struct Log(Vec<Look>);

#[derive(Clone, Debug)]
struct Look {
    side: bool,
    found: Found,
}

#[derive(Clone, Debug)]
pub(super) enum Found {
    Nothing,
    Message(dns::Message),
    /// The names that were found. For each direction, the second field is true if no more packets
    /// need to be searched.
    Names(Arc<FlowNames>, [bool; 2]),
}

impl Log {
    pub(super) fn wants(&self, side: usize) -> bool {
        self.0.iter().filter(|look| usize::from(look.side) == side).count() < usize::from(LOOKS_MAX)
    }

    pub(super) fn push(&mut self, side: usize, found: Found) {
        self.0.push(Look { side: side > 0, found });
    }

    pub(in super::super) fn join(&mut self, later: &Self) {
        for look in &later.0 {
            if self.wants(usize::from(look.side)) {
                self.0.push(look.clone());
            }
        }
    }

    pub(super) fn looks(&self) -> impl Iterator<Item = (usize, &Found)> {
        self.0.iter().map(|look| (usize::from(look.side), &look.found))
    }

    pub(in super::super) fn code(&mut self, coder: &mut impl Coder) -> Result<(), MalformedEdges> {
        let mut count = self.0.len() as u64;
        coder.number(&mut count)?;
        if count > 2 * u64::from(LOOKS_MAX) {
            return Err(MalformedEdges);
        }
        self.0.resize(count as usize, Look { side: false, found: Found::Nothing });
        self.0.iter_mut().try_for_each(|look| {
            coder.flag(&mut look.side)?;
            look.found.code(coder)
        })
    }
}

impl Found {
    fn code(&mut self, coder: &mut impl Coder) -> Result<(), MalformedEdges> {
        let own: u8 = match self {
            Self::Nothing => 0,
            Self::Message(_) => 1,
            Self::Names(..) => 2,
        };
        let mut kind = own;
        coder.number(&mut kind)?;
        if kind != own {
            *self = match kind {
                0 => Self::Nothing,
                1 => Self::Message(dns::Message { id: 0, question: None, response: None }),
                2 => Self::Names(Arc::default(), [false; 2]),
                _ => return Err(MalformedEdges),
            };
        }
        match self {
            Self::Nothing => Ok(()),
            Self::Message(message) => code_message(coder, message),
            Self::Names(names, settled) => code_names(coder, Arc::make_mut(names), settled),
        }
    }
}

fn code_message(coder: &mut impl Coder, message: &mut dns::Message) -> Result<(), MalformedEdges> {
    let dns::Message { id, question, response } = message;
    coder.number(id)?;
    let (mut name, mut kind) = question.take().unzip();
    code_text(coder, &mut name)?;
    code_option(coder, &mut kind)?;
    *question = name.zip(kind);
    let (mut code, answer) = response.take().unzip();
    let mut answer = answer.flatten();
    code_option(coder, &mut code)?;
    code_text(coder, &mut answer)?;
    *response = code.map(|code| (code, answer));
    Ok(())
}

fn code_names(coder: &mut impl Coder, names: &mut FlowNames, settled: &mut [bool; 2]) -> Result<(), MalformedEdges> {
    let FlowNames { dns_query, dns_type, dns_rcode, dns_answer, tls_sni, tls_alpn, http_host } = names;
    for text in [dns_query, dns_answer, tls_sni, tls_alpn, http_host] {
        code_text(coder, text)?;
    }
    code_option(coder, dns_type)?;
    code_option(coder, dns_rcode)?;
    settled.iter_mut().try_for_each(|side| coder.flag(side))
}

fn code_option<N: Copy + Into<u64> + TryFrom<u64>>(
    coder: &mut impl Coder,
    number: &mut Option<N>,
) -> Result<(), MalformedEdges> {
    let mut word: u64 = number.map_or(0, |number| Into::<u64>::into(number) + 1);
    coder.number(&mut word)?;
    *number = match word.checked_sub(1) {
        Some(number) => Some(N::try_from(number).map_err(|_| MalformedEdges)?),
        None => None,
    };
    Ok(())
}

fn code_text(coder: &mut impl Coder, text: &mut Option<Box<str>>) -> Result<(), MalformedEdges> {
    let mut bytes = text.take().map(|text| text.into_string().into_bytes());
    let mut length: u64 = bytes.as_ref().map_or(0, |bytes| bytes.len() as u64 + 1);
    coder.number(&mut length)?;
    let Some(length) = length.checked_sub(1).map(|length| length as usize) else { return Ok(()) };
    if length > TEXT_BYTES_MAX {
        return Err(MalformedEdges);
    }
    let bytes = bytes.get_or_insert_default();
    bytes.resize(length, 0);
    coder.numbers(bytes)?;
    let read = String::from_utf8(std::mem::take(bytes)).map_err(|_| MalformedEdges)?;
    *text = Some(read.into_boxed_str());
    Ok(())
}
