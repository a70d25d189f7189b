//! Every limit of the control tree, each with its reason.

use std::time::Duration;

/// How much of one write is read: sysfs takes a page at a time.
pub const WRITE_BYTES_MAX: usize = 4096;

/// How long a write waits until what it changed is in force. A CPU is declared dead after a second
/// ([`DEAD_AFTER`](steerage::limits::DEAD_AFTER)), so only a data path that is stuck takes longer than a few.
pub const SETTLE_MAX: Duration = Duration::from_secs(10);

/// How often it is looked meanwhile, at first: a slice of a move takes some rounds of microseconds.
pub const SETTLE_LOOK: Duration = Duration::from_micros(20);

/// Later, in parts of the time that it has taken so far: no write takes an eighth longer for it.
pub const SETTLE_LOOK_PART: u32 = 8;

/// And at least so often: a person does not notice it.
pub const SETTLE_LOOK_MAX: Duration = Duration::from_millis(1);

/// How many changes are remembered: a screenful of them several times over.
pub const EVENTS_MAX: usize = 256;

/// The longest request of a client, in bytes: the longest value, escaped, and a path.
pub const REQUEST_BYTES_MAX: usize = 8 * WRITE_BYTES_MAX;

/// The longest answer that a client takes, in bytes: the report of an instance with [`QUEUES_MAX`](steerage::limits::QUEUES_MAX)
/// queues and as many CPUs is some 2 MiB.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;

/// How many clients are served at a time: a person, an exporter and a script or two, and room for many more.
pub const CLIENTS_MAX: usize = 64;

/// How many of those places are kept for root, and as many again for root and the instance's user.
pub const CLIENTS_RESERVED: usize = 8;

/// How many clients any other user may have at a time.
pub const CLIENTS_PER_USER_MAX: usize = 16;

/// How long a client may be silent.
pub const CLIENT_IDLE_MAX: Duration = Duration::from_secs(300);

/// How long a client may be silent if another one needs its place. `steerage top` asks every second, and a script that is
/// cut off while it rests only has to connect again.
pub const CLIENT_IDLE_SCARCE: Duration = Duration::from_secs(5);

/// How long a client may leave an answer unread.
pub const CLIENT_READS_WITHIN: Duration = Duration::from_secs(5);

/// How long a client waits until what it set is in force: longer than a write may take.
pub const SET_WITHIN: Duration = Duration::from_secs(15);

/// How long a client waits for anything else. Reading waits for nobody, so only an instance that is stopped, or a machine
/// that is overloaded, takes longer than milliseconds.
pub const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// How many files of the mounted tree may be open at a time, each with what it read.
pub const OPEN_FILES_MAX: usize = 1024;

/// How many of those are kept for root, and as many again for root and the instance's user.
pub const OPEN_FILES_RESERVED: usize = 128;

/// How many files any other user may have open at a time: a shell's `cat` of every file in a tree opens one by one.
pub const OPEN_FILES_PER_USER_MAX: usize = 256;

/// How many writes to files may wait for the one before them.
pub const WAITING_WRITES_MAX: usize = 64;

const _: () = assert!(SET_WITHIN.as_secs() > SETTLE_MAX.as_secs());
const _: () = assert!(CLIENTS_PER_USER_MAX + 2 * CLIENTS_RESERVED < CLIENTS_MAX);
const _: () = assert!(OPEN_FILES_PER_USER_MAX + 2 * OPEN_FILES_RESERVED < OPEN_FILES_MAX);
