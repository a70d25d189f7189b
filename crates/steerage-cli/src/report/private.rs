//! The private parts of a report, which are the traffic itself. A report has a form with the
//! private parts, and a form without them.
//!
//! A private part of the schema has the type [`Private`]. Only a [`Form`] creates such a part, so
//! the audience is checked in one place.

use std::cell::RefCell;

use serde::Serialize;
use steerage_control::Audience;

/// A part of a report that only [`Audience::Private`] sees. For every other audience, the part is
/// `null`.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Private<T>(Option<T>);

/// The form of a report for one audience.
#[derive(Debug)]
pub(super) struct Form {
    audience: Audience,
    withheld: RefCell<Vec<&'static str>>,
}

impl Form {
    pub(super) fn of(audience: Audience) -> Self {
        Self { audience, withheld: RefCell::default() }
    }

    /// The part at `path` of the report.
    pub(super) fn private<T>(&self, path: &'static str, part: T) -> Private<T> {
        match self.audience {
            Audience::Private => Private(Some(part)),
            Audience::Public => {
                self.withheld.borrow_mut().push(path);
                Private(None)
            }
        }
    }

    /// The paths of the parts that were left out, each once.
    pub(super) fn withheld(&self) -> Vec<&'static str> {
        let mut paths = self.withheld.borrow().clone();
        paths.sort_unstable();
        paths.dedup();
        paths
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_public_form_says_what_it_leaves_out() {
        let form = |audience| {
            let form = Form::of(audience);
            let parts = [form.private("flows.top", Some(1)), form.private("flows.top", None)];
            (serde_json::to_value(parts).unwrap(), form.withheld())
        };
        assert_eq!(form(Audience::Private), (json!([1, null]), vec![]));
        assert_eq!(form(Audience::Public), (json!([null, Value::Null]), vec!["flows.top"]));
    }
}
