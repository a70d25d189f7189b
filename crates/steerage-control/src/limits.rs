//! Every limit of the control tree, each with its reason.

use std::time::Duration;

/// The number of bytes that one write may have. sysfs also accepts one page at a time.
pub const WRITE_BYTES_MAX: usize = 4096;

/// How long a write waits until its change takes effect. A CPU is declared dead after a second
/// ([`DEAD_AFTER`](steerage::limits::DEAD_AFTER)), so only a stuck data path takes longer than a
/// few seconds.
pub const SETTLE_MAX: Duration = Duration::from_secs(10);

/// The first interval at which a write checks whether its change has taken effect. A move of a
/// slice of buckets takes a few rounds of the data path, and a round takes microseconds.
pub const SETTLE_LOOK: Duration = Duration::from_micros(20);

/// Later intervals are this fraction of the time since the write began, so that the checks delay no
/// write by more than an eighth.
pub const SETTLE_LOOK_PART: u32 = 8;

/// The longest interval between two checks. Users do not notice a delay of this length.
pub const SETTLE_LOOK_MAX: Duration = Duration::from_millis(1);

/// The number of changes in the history: several screens full.
pub const EVENTS_MAX: usize = 256;

/// The longest request of a client in bytes, with room for a path and for the longest value with
/// escapes.
pub const REQUEST_BYTES_MAX: usize = 8 * WRITE_BYTES_MAX;

/// The longest reply that a client accepts, in bytes. The report of an instance with
/// [`QUEUES_MAX`](steerage::limits::QUEUES_MAX) queues and as many CPUs has about 2 MiB.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The maximum number of simultaneous clients. Usually there are a person, an exporter and a few
/// scripts, so the limit leaves room for many more.
pub const CLIENTS_MAX: usize = 64;

/// The number of connections that only root can use. The same number of further connections is for
/// root and the instance's user only.
pub const CLIENTS_RESERVED: usize = 8;

/// The number of connections that any other user may have.
pub const CLIENTS_PER_USER_MAX: usize = 16;

/// How long a client may be silent.
pub const CLIENT_IDLE_MAX: Duration = Duration::from_secs(300);

/// How long a client may be silent if a new client needs its connection. `steerage top` sends a
/// request every second. A script that is disconnected while it sleeps only has to connect again.
pub const CLIENT_IDLE_SCARCE: Duration = Duration::from_secs(5);

/// How long a client may leave a reply unread.
pub const CLIENT_READS_WITHIN: Duration = Duration::from_secs(5);

/// How long a client waits until the value that it set has taken effect. The timeout exceeds the
/// time that a write may take.
pub const SET_WITHIN: Duration = Duration::from_secs(15);

/// How long a client waits for the reply to any other request. Reads wait for nothing, so only a
/// stopped instance or an overloaded machine takes longer than milliseconds.
pub const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// The maximum number of open files in the mounted tree. Each open file keeps the text that was
/// read.
pub const OPEN_FILES_MAX: usize = 1024;

/// The number of open files that only root can have. The same number of further open files is for
/// root and the instance's user only.
pub const OPEN_FILES_RESERVED: usize = 128;

/// The number of open files that any other user may have. `cat` of all files opens only one file at
/// a time.
pub const OPEN_FILES_PER_USER_MAX: usize = 256;

/// The maximum number of writes to files that may wait for an earlier write.
pub const WAITING_WRITES_MAX: usize = 64;

/// How long the end of a run waits for the unmount of the tree. An unmount takes milliseconds,
/// unless another program holds the kernel's mount lock.
pub const UNMOUNT_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(SET_WITHIN.as_secs() > SETTLE_MAX.as_secs());
const _: () = assert!(CLIENTS_PER_USER_MAX + 2 * CLIENTS_RESERVED < CLIENTS_MAX);
const _: () = assert!(OPEN_FILES_PER_USER_MAX + 2 * OPEN_FILES_RESERVED < OPEN_FILES_MAX);
