//! All limits of the control tree, each with its reason.

use std::time::Duration;

/// The maximum number of bytes in one write to an attribute. The maximum size of a write is that of
/// a memory page, as in the kernel's sysfs.
pub const WRITE_BYTES_MAX: usize = 4096;

/// The maximum time that a write to an attribute waits until the new value takes effect. steerage
/// declares a CPU that makes no progress dead after a second
/// ([`DEAD_AFTER`](steerage::limits::DEAD_AFTER)). Therefore a write takes longer than a few
/// seconds only if the data path is stuck.
pub const SETTLE_MAX: Duration = Duration::from_secs(10);

/// The time between the first two checks whether a written value has taken effect. Moving a slice
/// (a set of moving buckets) takes a few rounds of the CPUs' loops, and a round takes microseconds.
pub const SETTLE_LOOK: Duration = Duration::from_micros(20);

/// After the first check, each interval between two checks is the time since the write began,
/// divided by this number. Therefore the checks delay the end of a write by at most an eighth of
/// the time that the write takes.
pub const SETTLE_LOOK_PART: u32 = 8;

/// The longest interval between two checks whether a change has taken effect. Users do not notice a
/// delay of one millisecond.
pub const SETTLE_LOOK_MAX: Duration = Duration::from_millis(1);

/// The maximum number of changes in the history. As text, the history with `EVENTS_MAX` changes
/// fills several screens.
pub const EVENTS_MAX: usize = 256;

/// The maximum length of a client's request in bytes. The longest value and its path fit into a
/// request, even if the value contains many JSON escapes.
pub const REQUEST_BYTES_MAX: usize = 8 * WRITE_BYTES_MAX;

/// The maximum length of a reply that a client accepts, in bytes. The report of an instance
/// with [`QUEUES_MAX`](steerage::limits::QUEUES_MAX) queues and as many CPUs has about 2 MiB.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The maximum number of simultaneous clients of the control socket. Usually, only a person, an
/// exporter and a few scripts are connected to the control socket.
pub const CLIENTS_MAX: usize = 64;

/// The number of connections to the control socket that are reserved for root. In addition, the
/// same number of connections is reserved for root and the instance's user together.
pub const CLIENTS_RESERVED: usize = 8;

/// The maximum number of connections of a user who is neither root nor the instance's user.
pub const CLIENTS_PER_USER_MAX: usize = 16;

/// The maximum time that a client of the control socket may send nothing.
pub const CLIENT_IDLE_MAX: Duration = Duration::from_secs(300);

/// The time after which the instance disconnects a silent client if a new client needs a
/// connection. `steerage top` sends a request every second. A script that sends nothing for a
/// longer time may be disconnected, and then has to connect again.
pub const CLIENT_IDLE_SCARCE: Duration = Duration::from_secs(5);

/// The maximum time within which a client must read a reply.
pub const CLIENT_READS_WITHIN: Duration = Duration::from_secs(5);

/// The maximum time that a client waits for the reply after it has set a value. The client's
/// waiting time is longer than the instance's time limit for a write ([`SETTLE_MAX`]).
pub const SET_WITHIN: Duration = Duration::from_secs(15);

/// The maximum time that a client waits for the reply to a request that sets no value. A reply
/// takes more than a few milliseconds only if the instance is stopped or the machine is overloaded.
pub const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// The maximum number of open files in the mounted tree. For each open file, the instance stores
/// the text of the attribute, which the reader may read in pieces.
pub const OPEN_FILES_MAX: usize = 1024;

/// The number of open files that are reserved for root. In addition, the same number of open files
/// is reserved for root and the instance's user together.
pub const OPEN_FILES_RESERVED: usize = 128;

/// The maximum number of open files of a user who is neither root nor the instance's user. `cat`
/// opens only one file at a time.
pub const OPEN_FILES_PER_USER_MAX: usize = 256;

/// While one write to a file is in progress, at most this many writes may wait.
pub const WAITING_WRITES_MAX: usize = 64;

/// When a run ends, it waits at most this long until the control tree is unmounted. Unmounting
/// takes milliseconds, unless another program holds the kernel's mount lock.
pub const UNMOUNT_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(SET_WITHIN.as_secs() > SETTLE_MAX.as_secs());
const _: () = assert!(CLIENTS_PER_USER_MAX + 2 * CLIENTS_RESERVED < CLIENTS_MAX);
const _: () = assert!(OPEN_FILES_PER_USER_MAX + 2 * OPEN_FILES_RESERVED < OPEN_FILES_MAX);
