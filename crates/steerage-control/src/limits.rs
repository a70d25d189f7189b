//! All limits of the control tree, each with its reason.

use std::time::Duration;

/// The maximum number of bytes in a write to an attribute: a memory page, as in the kernel's sysfs.
pub const WRITE_BYTES_MAX: usize = 4096;

/// How long a write waits until the new value takes effect. Unless the data path is stuck, a value
/// takes effect within [`DEAD_AFTER`](steerage::limits::DEAD_AFTER), after which a CPU without
/// progress counts as dead.
pub const SETTLE_MAX: Duration = Duration::from_secs(10);

/// The time between the first two checks whether a written value has taken effect. Moving a slice
/// (a set of buckets) takes a few rounds of the packet CPUs, and a round takes microseconds.
pub const SETTLE_LOOK: Duration = Duration::from_micros(20);

/// The later intervals between checks are the time since the write began, divided by this number.
/// The checks lengthen a write by at most an eighth.
pub const SETTLE_LOOK_PART: u32 = 8;

/// The longest interval between two checks whether a written value has taken effect. Users do not
/// notice a delay of a millisecond.
pub const SETTLE_LOOK_MAX: Duration = Duration::from_millis(1);

/// The maximum number of changes in the history of attributes. The text of 256 changes fills
/// several screens.
pub const EVENTS_MAX: usize = 256;

/// The maximum number of bytes in a request: the longest value and its path, with many JSON
/// escapes.
pub const REQUEST_BYTES_MAX: usize = 8 * WRITE_BYTES_MAX;

/// The maximum number of bytes in a reply that a client accepts. The largest report
/// ([`QUEUES_MAX`](steerage::limits::QUEUES_MAX) queues and as many CPUs) has about 2 MiB.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The maximum number of clients of the control socket. Usually, the clients are a person and a few
/// scripts.
pub const CLIENTS_MAX: usize = 64;

/// The number of connections that are reserved for root. Another `CLIENTS_RESERVED` connections are
/// reserved for root and the instance's user together.
pub const CLIENTS_RESERVED: usize = 8;

/// The maximum number of connections of a user who is neither root nor the instance's user.
pub const CLIENTS_PER_USER_MAX: usize = 16;

/// The maximum time for which a client of the control socket may send nothing.
pub const CLIENT_IDLE_MAX: Duration = Duration::from_secs(300);

/// The time after which a new client may replace a silent client, if all connections are in use.
/// `steerage top` sends a request every second. A script that sends requests less often than every
/// 5 s may have to connect again.
pub const CLIENT_IDLE_SCARCE: Duration = Duration::from_secs(5);

/// The time within which a client must read a reply.
pub const CLIENT_READS_WITHIN: Duration = Duration::from_secs(5);

/// How long a client waits for the reply after it has set a value. [`SETTLE_MAX`], the instance's
/// time limit for a change, is shorter.
pub const SET_WITHIN: Duration = Duration::from_secs(15);

/// How long a client waits for the reply to a request that sets no value. The instance replies
/// within milliseconds unless it is stopped or the machine is overloaded.
pub const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// The maximum number of open files in the mounted tree. The instance stores the text of each open
/// file.
pub const OPEN_FILES_MAX: usize = 1024;

/// The number of open files that only root may open. Another `OPEN_FILES_RESERVED` files are
/// reserved for root and the instance's user together.
pub const OPEN_FILES_RESERVED: usize = 128;

/// The maximum number of open files of a user who is neither root nor the instance's user. `cat`
/// needs one open file.
pub const OPEN_FILES_PER_USER_MAX: usize = 256;

/// The maximum number of writes to files that wait while another write is in progress.
pub const WAITING_WRITES_MAX: usize = 64;

/// How long the end of a run waits for the unmount, which takes milliseconds unless another program
/// holds the kernel's mount lock.
pub const UNMOUNT_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(SET_WITHIN.as_secs() > SETTLE_MAX.as_secs());
const _: () = assert!(CLIENTS_PER_USER_MAX + 2 * CLIENTS_RESERVED < CLIENTS_MAX);
const _: () = assert!(OPEN_FILES_PER_USER_MAX + 2 * OPEN_FILES_RESERVED < OPEN_FILES_MAX);
