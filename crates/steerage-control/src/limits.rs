//! Every limit of the control tree, each with its reason.

use std::time::Duration;

/// How many bytes of one write are read. sysfs also takes one page at a time.
pub const WRITE_BYTES_MAX: usize = 4096;

/// How long a write waits until its change is in force. A CPU is declared dead after a second
/// ([`DEAD_AFTER`](steerage::limits::DEAD_AFTER)), so only a stuck data path takes longer than a
/// few seconds.
pub const SETTLE_MAX: Duration = Duration::from_secs(10);

/// The first interval at which a write checks whether its change is in force. One slice of a move
/// takes a few rounds of microseconds.
pub const SETTLE_LOOK: Duration = Duration::from_micros(20);

/// Later intervals are this fraction of the time that the write has taken so far, so the checks
/// delay no write by more than an eighth.
pub const SETTLE_LOOK_PART: u32 = 8;

/// The longest interval between two checks. A person does not notice a delay of this length.
pub const SETTLE_LOOK_MAX: Duration = Duration::from_millis(1);

/// How many changes are remembered: several screens full.
pub const EVENTS_MAX: usize = 256;

/// The longest request of a client, in bytes. It holds the longest value, escaped, and a path.
pub const REQUEST_BYTES_MAX: usize = 8 * WRITE_BYTES_MAX;

/// The longest answer that a client accepts, in bytes. The report of an instance with
/// [`QUEUES_MAX`](steerage::limits::QUEUES_MAX) queues and as many CPUs has about 2 MiB.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;

/// How many clients are served at a time. A person, an exporter and a script or two are usual, so
/// there is room for many more.
pub const CLIENTS_MAX: usize = 64;

/// How many of those places are reserved for root. As many again are reserved for root and the
/// instance's user.
pub const CLIENTS_RESERVED: usize = 8;

/// How many clients any other user may have at a time.
pub const CLIENTS_PER_USER_MAX: usize = 16;

/// How long a client may be silent.
pub const CLIENT_IDLE_MAX: Duration = Duration::from_secs(300);

/// How long a client may be silent if a new client needs its place. `steerage top` asks every
/// second. A script that is disconnected while it sleeps only has to connect again.
pub const CLIENT_IDLE_SCARCE: Duration = Duration::from_secs(5);

/// How long a client may leave an answer unread.
pub const CLIENT_READS_WITHIN: Duration = Duration::from_secs(5);

/// How long a client waits until the value that it set is in force. This is longer than a write may
/// take.
pub const SET_WITHIN: Duration = Duration::from_secs(15);

/// How long a client waits for any other answer. Reads wait for nothing, so only a stopped instance
/// or an overloaded machine takes longer than milliseconds.
pub const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// How many files of the mounted tree may be open at a time. Each keeps the text that it read.
pub const OPEN_FILES_MAX: usize = 1024;

/// How many of those are reserved for root. As many again are reserved for root and the instance's
/// user.
pub const OPEN_FILES_RESERVED: usize = 128;

/// How many files any other user may have open at a time. `cat` of every file in a tree opens only
/// one file at a time.
pub const OPEN_FILES_PER_USER_MAX: usize = 256;

/// How many writes to files may wait for the write before them.
pub const WAITING_WRITES_MAX: usize = 64;

/// How long the end of a run waits until the tree is unmounted. This takes milliseconds, unless
/// another program holds the lock of the kernel's mounts.
pub const UNMOUNT_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(SET_WITHIN.as_secs() > SETTLE_MAX.as_secs());
const _: () = assert!(CLIENTS_PER_USER_MAX + 2 * CLIENTS_RESERVED < CLIENTS_MAX);
const _: () = assert!(OPEN_FILES_PER_USER_MAX + 2 * OPEN_FILES_RESERVED < OPEN_FILES_MAX);
