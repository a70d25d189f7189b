//! All limits of the control tree, each with its reason.

use std::time::Duration;

/// The maximum number of bytes in one write. sysfs also accepts one page at a time.
pub const WRITE_BYTES_MAX: usize = 4096;

/// The maximum time that a write waits for its change to take effect. A CPU is declared dead after
/// a second ([`DEAD_AFTER`](steerage::limits::DEAD_AFTER)). Therefore a write takes longer than a
/// few seconds only if the data path is stuck.
pub const SETTLE_MAX: Duration = Duration::from_secs(10);

/// The first interval between two checks whether a change has taken effect. Moving a slice of
/// buckets takes a few rounds of the data path, and a round takes microseconds.
pub const SETTLE_LOOK: Duration = Duration::from_micros(20);

/// Each later interval is this fraction of the time since the write began. Therefore the checks
/// delay a write by at most an eighth.
pub const SETTLE_LOOK_PART: u32 = 8;

/// The longest interval between two checks. Users do not notice a delay of one millisecond.
pub const SETTLE_LOOK_MAX: Duration = Duration::from_millis(1);

/// The maximum number of changes in the history, which is enough for several screens.
pub const EVENTS_MAX: usize = 256;

/// The maximum length of a client's request in bytes. The limit leaves room for a path and for the
/// longest value with escapes.
pub const REQUEST_BYTES_MAX: usize = 8 * WRITE_BYTES_MAX;

/// The maximum length of a reply that a client accepts, in bytes. The report of an instance with
/// [`QUEUES_MAX`](steerage::limits::QUEUES_MAX) queues and as many CPUs has about 2 MiB.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The maximum number of simultaneous clients. Usually a person, an exporter and a few scripts are
/// connected. The limit leaves room for many more clients.
pub const CLIENTS_MAX: usize = 64;

/// The number of connections that only root can use. The same number of further connections is
/// reserved for root and the instance's user.
pub const CLIENTS_RESERVED: usize = 8;

/// The maximum number of connections of any other user.
pub const CLIENTS_PER_USER_MAX: usize = 16;

/// The maximum time that a client may be silent.
pub const CLIENT_IDLE_MAX: Duration = Duration::from_secs(300);

/// The time after which a silent client is disconnected if a new client needs its connection.
/// `steerage top` sends a request every second. If a script sleeps for longer and is disconnected,
/// it only has to connect again.
pub const CLIENT_IDLE_SCARCE: Duration = Duration::from_secs(5);

/// The maximum time that a client may leave a reply unread.
pub const CLIENT_READS_WITHIN: Duration = Duration::from_secs(5);

/// The maximum time that a client waits for a value to take effect after the client has set it. The
/// timeout is longer than the maximum time of a write.
pub const SET_WITHIN: Duration = Duration::from_secs(15);

/// The maximum time that a client waits for the reply to any other request. A read waits for
/// nothing. Reading takes longer than milliseconds only if the instance is stopped or the machine
/// is overloaded.
pub const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// The maximum number of open files in the mounted tree. For each open file, the program keeps the
/// text that was read.
pub const OPEN_FILES_MAX: usize = 1024;

/// The number of open files that are reserved for root. The same number of further open files is
/// reserved for root and the instance's user.
pub const OPEN_FILES_RESERVED: usize = 128;

/// The maximum number of open files of any other user. `cat` of all files opens only one file at a
/// time.
pub const OPEN_FILES_PER_USER_MAX: usize = 256;

/// The maximum number of file writes that may wait for an earlier write to finish.
pub const WAITING_WRITES_MAX: usize = 64;

/// How long a run waits at its end for the tree to be unmounted. Unmounting takes milliseconds,
/// unless another program holds the kernel's mount lock.
pub const UNMOUNT_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(SET_WITHIN.as_secs() > SETTLE_MAX.as_secs());
const _: () = assert!(CLIENTS_PER_USER_MAX + 2 * CLIENTS_RESERVED < CLIENTS_MAX);
const _: () = assert!(OPEN_FILES_PER_USER_MAX + 2 * OPEN_FILES_RESERVED < OPEN_FILES_MAX);
