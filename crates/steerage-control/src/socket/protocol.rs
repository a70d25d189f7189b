use std::os::unix::net::UnixStream;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::audience::Audience;
use crate::error::{AttributeError, ErrorCode};
use crate::tree::{Entry, Tree};

/// The version of the protocol, which increases if the meaning of a request or a reply changes.
const PROTOCOL: u32 = 1;

/// A request. A request is a JSON object, and its keys determine the kind of request.
#[derive(Debug, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub(super) enum Asked {
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
    Packets {
        packets: Value,
    },
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "bool")]
pub(super) struct True;

impl TryFrom<bool> for True {
    type Error = &'static str;

    fn try_from(value: bool) -> Result<Self, &'static str> {
        if value { Ok(Self) } else { Err("it can only be true") }
    }
}

pub(super) type Report = Box<dyn Fn(Audience) -> String + Send + Sync>;

/// A function that sends copies of packets over a client's connection until the client disconnects
/// or the run ends.
pub type PacketSender = Box<dyn FnOnce(&UnixStream)>;

/// A function that starts to copy the packets that a request describes, or returns why it cannot.
pub(super) type Packets = Box<dyn Fn(&Value) -> Result<PacketSender, String> + Send + Sync>;

pub(super) fn asked(line: &[u8]) -> Result<Asked, AttributeError> {
    serde_json::from_slice(line).map_err(|_| {
        let what = "this is no request: one is get, set with value, list, events, snapshot, packets or hello, in one \
                    object";
        AttributeError::new(ErrorCode::Invalid, what)
    })
}

/// Packets are private: user `uid` must be root or the user of the run. Returns the reply, and the
/// function that sends the packets after the reply.
pub(super) fn packets(request: &Value, uid: u32, tree: &Tree, packets: &Packets) -> (String, Option<PacketSender>) {
    let begun = match Audience::of(uid, tree.uid()) {
        Audience::Private => packets(request).map_err(AttributeError::invalid),
        Audience::Public => {
            let why = format!("only root and user {} may see the packets of this run", tree.uid());
            Err(AttributeError::new(ErrorCode::NotPermitted, why))
        }
    };
    match begun {
        Ok(sender) => (json!({"packets": true}).to_string(), Some(sender)),
        Err(error) => (refusal(&error), None),
    }
}

fn refusal(error: &AttributeError) -> String {
    json!({"error": error.code().name(), "message": error.to_string()}).to_string()
}

pub(super) fn answer(asked: Result<Asked, AttributeError>, uid: u32, tree: &Tree, report: &Report) -> String {
    let answer = match asked {
        Ok(Asked::Snapshot { .. }) => {
            return format!("{{\"snapshot\":{}}}", report(Audience::of(uid, tree.uid())));
        }
        Ok(asked) => answer_of(&asked, uid, tree),
        Err(error) => Err(error),
    };
    answer.map_or_else(|error| refusal(&error), |answer| answer.to_string())
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
        // `answer` and `packets` create the replies to the requests `snapshot` and `packets`.
        Asked::Snapshot { .. } | Asked::Packets { .. } => Value::Null,
    })
}

fn entry(entry: &Entry) -> Value {
    let kind = if entry.is_directory { "directory" } else { "file" };
    json!({"name": entry.name, "type": kind, "mode": format!("{:04o}", entry.mode)})
}
