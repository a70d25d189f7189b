//! The protocol: requests and replies.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::audience::Audience;
use crate::error::{AttributeError, ErrorCode};
use crate::tree::{Entry, Tree};

/// The version of the protocol, which is raised when the meaning of a request or a reply changes.
const PROTOCOL: u32 = 1;

/// The requests of a client. The keys of the JSON object determine the type of the request.
#[derive(Debug, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Asked {
    Get {
        get: String,
    },
    Set {
        set: String,
        value: String,
    },
    List {
        list: String,
    },
    Events {
        events: u64,
    },
    Snapshot {
        #[serde(rename = "snapshot")]
        _is: True,
    },
    Hello {
        #[serde(rename = "hello")]
        _is: True,
    },
}

/// A field that must be `true`.
#[derive(Debug, Deserialize)]
#[serde(try_from = "bool")]
struct True;

impl TryFrom<bool> for True {
    type Error = &'static str;

    fn try_from(value: bool) -> Result<Self, &'static str> {
        if value { Ok(Self) } else { Err("it can only be true") }
    }
}

pub(super) type Report = Box<dyn Fn(Audience) -> String + Send + Sync>;

/// The reply to a line from a client of user `uid`, without a newline.
pub(super) fn answer(line: &[u8], uid: u32, tree: &Tree, report: &Report) -> String {
    let asked = serde_json::from_slice::<Asked>(line).map_err(|_| {
        let what = "this is no request: one is get, set with value, list, events, snapshot or hello, in one object";
        AttributeError::new(ErrorCode::Invalid, what)
    });
    let answer = match asked {
        Ok(Asked::Snapshot { .. }) => {
            return format!("{{\"snapshot\":{}}}", report(Audience::of(uid, tree.uid())));
        }
        Ok(asked) => answer_of(&asked, uid, tree),
        Err(error) => Err(error),
    };
    let answer = answer.unwrap_or_else(|error| json!({"error": error.code().name(), "message": error.to_string()}));
    answer.to_string()
}

fn answer_of(asked: &Asked, uid: u32, tree: &Tree) -> Result<Value, AttributeError> {
    Ok(match asked {
        Asked::Get { get } => json!({"value": tree.read(tree.find(get)?)?}),
        Asked::Set { set, value } => {
            let id = tree.find(set)?;
            tree.write(id, value.as_bytes(), uid)?;
            json!({"value": tree.read(id)?})
        }
        Asked::List { list } => {
            let entries: Vec<Value> = tree.list(tree.find(list)?).iter().map(entry).collect();
            json!({"entries": entries})
        }
        Asked::Events { events } => json!({"events": tree.events_since(*events)}),
        Asked::Hello { .. } => {
            let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
            json!({"hello": {"protocol": PROTOCOL, "version": version, "pid": pid, "uid": tree.uid()}})
        }
        Asked::Snapshot { .. } => Value::Null,
    })
}

fn entry(entry: &Entry) -> Value {
    let kind = if entry.is_directory { "directory" } else { "file" };
    json!({"name": entry.name, "type": kind, "mode": format!("{:04o}", entry.mode)})
}
