use libc::c_int;
use syscalls::Sysno;

/// A group of system calls that a thread needs for the same purpose.
///
/// ```
/// use steerage_guard::sandbox::Group;
///
/// assert!(Group::Files.names().contains(&"openat"));
/// assert!(Group::ALL.iter().all(|group| !group.names().contains(&"execve")), "no group starts a program");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Group {
    /// Compute, wait, and read and write open files. Every seccomp filter of this crate allows this
    /// group.
    Run,
    /// Receive packets from the sockets of devices, and stop receiving.
    Receive,
    /// Send through open sockets to the addresses to which they are bound or connected.
    Send,
    /// Send through open sockets to any address. A seccomp filter cannot read a message's address.
    SendTo,
    /// Set options of open sockets that do not belong to devices, and shut these sockets down.
    OpenSockets,
    /// Start threads, let them communicate, and place them on CPUs.
    Threads,
    /// Open, create, rename and remove files. Landlock restricts the group to certain files.
    Files,
    /// Use the maps of loaded XDP programs, check the programs, and replace the program of a BPF
    /// link.
    XdpMaps,
    /// Bind open sockets to addresses, which a seccomp filter cannot read.
    BindSockets,
    /// Attach loaded flow dissectors to network namespaces, and detach them.
    FlowDissectors,
    /// Read and change settings of network cards that netlink does not offer, such as rules for
    /// receive queues.
    CardRules,
    /// Accept connections of clients.
    Clients,
    /// Query links, routes and neighbours from the kernel.
    Netlink,
    /// Connect to another process on this machine through the path of a Unix socket.
    UnixClient,
    /// Connect to other hosts.
    Internet,
    /// Wait for programs that were started earlier.
    Wait,
    /// Send signals to the process groups of programs that were started earlier.
    Signal,
    /// Set the modes of a terminal.
    Terminal,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: Sysno,
    pub(crate) only: Only,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Only {
    Any,
    /// `OneOf(n, values)`: argument `n`, counted from 0, must have one of the values.
    OneOf(u8, &'static [u64]),
    /// Arguments 1 and 2, counted from 0, must together be one of the pairs.
    Pairs(&'static [(u64, u64)]),
    /// `Null(n)`: argument `n` must be the null pointer.
    Null(u8),
    /// `Not(n, value)`: argument `n` must not have the value.
    Not(u8, u64),
    /// `With(n, bits)`: argument `n` must have all of the bits.
    With(u8, u64),
    /// `Without(n, bits)`: argument `n` must have none of the bits.
    Without(u8, u64),
    /// `Own(n)`: argument `n` must be the ID of this process.
    Own(u8),
}

const fn any(number: Sysno) -> Call {
    Call { number, only: Only::Any }
}

const fn only(number: Sysno, only: Only) -> Call {
    Call { number, only }
}

const fn flag(bits: c_int) -> u64 {
    bits as u64
}

/// The kernel reads an ioctl request as 32 bits, but its type is `int` in some C libraries.
#[allow(clippy::unnecessary_cast, reason = "the type depends on the C library")]
const fn request(number: libc::Ioctl) -> u64 {
    number as u32 as u64
}

/// The name of `newfstatat` depends on the architecture.
#[cfg(target_arch = "x86_64")]
const STAT_AT: Sysno = Sysno::newfstatat;
#[cfg(not(target_arch = "x86_64"))]
const STAT_AT: Sysno = Sysno::fstatat;

const NOT_EXECUTABLE: Only = Only::Without(2, flag(libc::PROT_EXEC));
const THREAD: Only = Only::With(0, flag(libc::CLONE_THREAD));
/// The handler of SIGSYS, which reports forbidden system calls, must stay installed.
const NOT_SIGSYS: Only = Only::Not(0, flag(libc::SIGSYS));
/// SIGSYS must never be blocked, so its handler emulates the system call that blocks signals. With
/// the C library musl, the emulation does not work: a thread of musl blocks signals twice when it
/// ends. If the seccomp filter is installed between the two calls, SIGSYS is already blocked at the
/// second call, and the kernel ends the process.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(target_env = "musl")))]
const NOT_BLOCK: Only = Only::Not(0, flag(libc::SIG_BLOCK));
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(target_env = "musl"))))]
const NOT_BLOCK: Only = Only::Any;
const THREAD_NAMES: Only = Only::OneOf(0, &[flag(libc::PR_SET_NAME), flag(libc::PR_GET_NAME)]);

/// The allowed `fcntl` commands, for the flags of a descriptor and the size of a pipe. No allowed
/// command duplicates a descriptor, or makes the kernel send a signal, as F_SETOWN, F_SETSIG,
/// F_SETLEASE and F_NOTIFY can. Threads that open files may also use F_SETSIG and F_SETLEASE with
/// certain arguments: see `LEASES`.
const FLAGS: Only = Only::OneOf(
    1,
    &[
        flag(libc::F_GETFD),
        flag(libc::F_SETFD),
        flag(libc::F_GETFL),
        flag(libc::F_SETFL),
        flag(libc::F_GETPIPE_SZ),
        flag(libc::F_SETPIPE_SZ),
    ],
);
/// The `fcntl` commands for file leases. When another process opens the file, the kernel sends
/// SIGURG, which the thread cannot direct to another process, because F_SETOWN is forbidden.
const LEASES: Only = Only::Pairs(&[
    (F_SETSIG, flag(libc::SIGURG)),
    (flag(libc::F_SETLEASE), flag(libc::F_RDLCK)),
    (flag(libc::F_SETLEASE), flag(libc::F_UNLCK)),
    (flag(libc::F_GETLEASE), 0),
]);
/// From asm-generic/fcntl.h.
const F_SETSIG: u64 = 10;
const DUPLICATE: Only = Only::OneOf(1, &[flag(libc::F_DUPFD), flag(libc::F_DUPFD_CLOEXEC)]);

/// Socket options that devices read while they receive packets: counts of dropped packets, and
/// errors.
const OPTIONS_READ: Only = Only::Pairs(&[
    (flag(libc::SOL_SOCKET), flag(libc::SO_ERROR)),
    (flag(libc::SOL_SOCKET), SO_MEMINFO),
    (flag(libc::SOL_SOCKET), flag(libc::SO_INCOMING_NAPI_ID)),
    (flag(libc::SOL_PACKET), PACKET_STATISTICS),
    (SOL_XDP, XDP_STATISTICS),
    (SOL_XDP, XDP_OPTIONS),
]);
/// Socket options that devices set to stop receiving, and that can only reduce what a socket
/// receives.
const OPTIONS_SET: Only = Only::Pairs(&[
    (flag(libc::SOL_SOCKET), flag(libc::SO_ATTACH_FILTER)),
    (flag(libc::SOL_PACKET), PACKET_DROP_MEMBERSHIP),
]);
/// From asm-generic/socket.h, linux/if_packet.h and linux/if_xdp.h.
const SO_MEMINFO: u64 = 55;
const PACKET_DROP_MEMBERSHIP: u64 = 2;
const PACKET_STATISTICS: u64 = 6;
const SOL_XDP: u64 = 283;
const XDP_STATISTICS: u64 = 7;
const XDP_OPTIONS: u64 = 8;

/// The ioctl requests for terminals and pipes, except those that insert input (TIOCSTI).
const ASK: Only = Only::OneOf(
    1,
    &[request(libc::TCGETS), request(libc::TIOCGWINSZ), request(libc::FIONREAD), request(libc::FIONBIO)],
);
const SET_TERMINAL: Only = Only::OneOf(
    1,
    &[
        request(libc::TCSETS),
        request(libc::TCSETSW),
        request(libc::TCSETSF),
        request(libc::TCGETS2),
        request(libc::TCSETS2),
        request(libc::TCSETSW2),
        request(libc::TCSETSF2),
    ],
);

const RUN: &[Call] = &[
    // System calls for memory.
    any(Sysno::brk),
    any(Sysno::madvise),
    any(Sysno::mbind),
    any(Sysno::membarrier),
    any(Sysno::mincore),
    only(Sysno::mmap, NOT_EXECUTABLE),
    only(Sysno::mprotect, NOT_EXECUTABLE),
    any(Sysno::mremap),
    any(Sysno::munmap),
    // System calls for time and random numbers.
    any(Sysno::clock_getres),
    any(Sysno::clock_gettime),
    any(Sysno::clock_nanosleep),
    any(Sysno::getrandom),
    any(Sysno::gettimeofday),
    any(Sysno::nanosleep),
    // System calls for locks, signals and exit.
    any(Sysno::exit),
    any(Sysno::exit_group),
    any(Sysno::futex),
    any(Sysno::restart_syscall),
    any(Sysno::rseq),
    only(Sysno::rt_sigaction, NOT_SIGSYS),
    only(Sysno::rt_sigprocmask, NOT_BLOCK),
    any(Sysno::rt_sigreturn),
    any(Sysno::sched_yield),
    any(Sysno::set_robust_list),
    any(Sysno::sigaltstack),
    only(Sysno::tgkill, Only::Own(0)),
    // System calls that return information about this process.
    any(Sysno::getcpu),
    any(Sysno::getegid),
    any(Sysno::geteuid),
    any(Sysno::getgid),
    any(Sysno::getpid),
    any(Sysno::getrusage),
    any(Sysno::gettid),
    any(Sysno::getuid),
    only(Sysno::prctl, THREAD_NAMES),
    any(Sysno::sched_getaffinity),
    any(Sysno::sysinfo),
    any(Sysno::uname),
    // System calls on open files.
    any(Sysno::close),
    any(Sysno::epoll_create1),
    any(Sysno::epoll_ctl),
    any(Sysno::epoll_pwait),
    any(Sysno::epoll_pwait2),
    any(Sysno::eventfd2),
    only(Sysno::fcntl, FLAGS),
    any(Sysno::fdatasync),
    any(Sysno::fstat),
    any(Sysno::fsync),
    any(Sysno::ftruncate),
    only(Sysno::ioctl, ASK),
    any(Sysno::lseek),
    any(Sysno::ppoll),
    any(Sysno::pread64),
    any(Sysno::pwrite64),
    any(Sysno::read),
    any(Sysno::readv),
    any(Sysno::timerfd_create),
    any(Sysno::timerfd_gettime),
    any(Sysno::timerfd_settime),
    any(Sysno::write),
    any(Sysno::writev),
];

#[cfg(target_arch = "x86_64")]
const RUN_OLD: &[Call] = &[any(Sysno::epoll_wait), any(Sysno::pause), any(Sysno::poll), any(Sysno::time)];
#[cfg(not(target_arch = "x86_64"))]
const RUN_OLD: &[Call] = &[];

const RECEIVE: &[Call] = &[
    only(Sysno::getsockopt, OPTIONS_READ),
    any(Sysno::recvfrom),
    any(Sysno::recvmmsg),
    any(Sysno::recvmsg),
    only(Sysno::setsockopt, OPTIONS_SET),
];

const SEND: &[Call] = &[only(Sysno::sendto, Only::Null(4))];

const SEND_TO: &[Call] = &[any(Sysno::sendmmsg), any(Sysno::sendmsg), any(Sysno::sendto)];

const OPEN_SOCKETS: &[Call] = &[
    any(Sysno::getpeername),
    any(Sysno::getsockname),
    any(Sysno::getsockopt),
    any(Sysno::setsockopt),
    any(Sysno::shutdown),
];

const THREADS: &[Call] = &[
    only(Sysno::clone, THREAD),
    // A seccomp filter cannot read the flags of `clone3`. Therefore a second filter makes `clone3`
    // fail, and the C library uses `clone` instead.
    any(Sysno::clone3),
    only(Sysno::prctl, Only::OneOf(0, &[flag(libc::PR_SET_NO_NEW_PRIVS)])),
    any(Sysno::pipe2),
    any(Sysno::sched_setaffinity),
    any(Sysno::seccomp),
    only(Sysno::socketpair, Only::OneOf(0, &[flag(libc::AF_UNIX)])),
];

const FILES: &[Call] = &[
    any(Sysno::copy_file_range),
    any(Sysno::dup),
    any(Sysno::faccessat),
    any(Sysno::faccessat2),
    any(Sysno::fallocate),
    only(Sysno::fcntl, DUPLICATE),
    only(Sysno::fcntl, LEASES),
    any(Sysno::flock),
    any(Sysno::fstatfs),
    any(Sysno::getcwd),
    any(Sysno::getdents64),
    any(Sysno::getxattr),
    any(Sysno::mkdirat),
    any(STAT_AT),
    any(Sysno::openat),
    any(Sysno::readlinkat),
    any(Sysno::renameat),
    any(Sysno::renameat2),
    any(Sysno::sendfile),
    any(Sysno::splice),
    any(Sysno::statx),
    any(Sysno::umask),
    any(Sysno::unlinkat),
];

#[cfg(target_arch = "x86_64")]
const FILES_OLD: &[Call] = &[
    any(Sysno::access),
    any(Sysno::lstat),
    any(Sysno::mkdir),
    any(Sysno::open),
    any(Sysno::readlink),
    any(Sysno::rename),
    any(Sysno::rmdir),
    any(Sysno::stat),
    any(Sysno::unlink),
];
#[cfg(not(target_arch = "x86_64"))]
const FILES_OLD: &[Call] = &[];

const XDP_MAPS: &[Call] = &[only(
    Sysno::bpf,
    Only::OneOf(0, &[BPF_MAP_LOOKUP, BPF_MAP_UPDATE, BPF_MAP_DELETE, BPF_INFO_BY_FD, BPF_LINK_UPDATE]),
)];
const BIND_SOCKETS: &[Call] = &[any(Sysno::bind)];
const FLOW_DISSECTORS: &[Call] =
    &[only(Sysno::bpf, Only::OneOf(0, &[BPF_PROG_ATTACH, BPF_PROG_DETACH, BPF_PROG_QUERY]))];
/// From linux/bpf.h.
const BPF_MAP_LOOKUP: u64 = 1;
const BPF_MAP_UPDATE: u64 = 2;
const BPF_MAP_DELETE: u64 = 3;
const BPF_PROG_ATTACH: u64 = 8;
const BPF_PROG_DETACH: u64 = 9;
const BPF_INFO_BY_FD: u64 = 15;
const BPF_PROG_QUERY: u64 = 16;
const BPF_LINK_UPDATE: u64 = 29;

const CARD_RULES: &[Call] = &[only(Sysno::ioctl, Only::OneOf(1, &[SIOCETHTOOL]))];
/// From linux/sockios.h.
const SIOCETHTOOL: u64 = 0x8946;

const CLIENTS: &[Call] = &[any(Sysno::accept), any(Sysno::accept4)];

const NETLINK: &[Call] =
    &[any(Sysno::bind), only(Sysno::socket, Only::OneOf(0, &[flag(libc::AF_NETLINK)])), any(Sysno::connect)];

const UNIX_CLIENT: &[Call] = &[any(Sysno::connect), only(Sysno::socket, Only::OneOf(0, &[flag(libc::AF_UNIX)]))];

const INTERNET: &[Call] =
    &[any(Sysno::connect), only(Sysno::socket, Only::OneOf(0, &[flag(libc::AF_INET), flag(libc::AF_INET6)]))];

const WAIT: &[Call] = &[any(Sysno::wait4), any(Sysno::waitid)];

const SIGNAL: &[Call] = &[any(Sysno::kill)];

const TERMINAL: &[Call] = &[only(Sysno::ioctl, SET_TERMINAL)];

impl Group {
    /// All groups of system calls.
    pub const ALL: [Self; 18] = [
        Self::Run,
        Self::Receive,
        Self::Send,
        Self::SendTo,
        Self::OpenSockets,
        Self::Threads,
        Self::Files,
        Self::XdpMaps,
        Self::BindSockets,
        Self::FlowDissectors,
        Self::CardRules,
        Self::Clients,
        Self::Netlink,
        Self::UnixClient,
        Self::Internet,
        Self::Wait,
        Self::Signal,
        Self::Terminal,
    ];

    /// Returns the group's name, its system calls, and further system calls that only x86-64 has.
    fn row(self) -> (&'static str, &'static [Call], &'static [Call]) {
        match self {
            Self::Run => ("run", RUN, RUN_OLD),
            Self::Receive => ("receive", RECEIVE, &[]),
            Self::Send => ("send", SEND, &[]),
            Self::SendTo => ("send to addresses", SEND_TO, &[]),
            Self::OpenSockets => ("open sockets", OPEN_SOCKETS, &[]),
            Self::Threads => ("threads", THREADS, &[]),
            Self::Files => ("files", FILES, FILES_OLD),
            Self::XdpMaps => ("xdp maps", XDP_MAPS, &[]),
            Self::BindSockets => ("bind sockets", BIND_SOCKETS, &[]),
            Self::FlowDissectors => ("flow dissectors", FLOW_DISSECTORS, &[]),
            Self::CardRules => ("card rules", CARD_RULES, &[]),
            Self::Clients => ("clients", CLIENTS, &[]),
            Self::Netlink => ("netlink", NETLINK, &[]),
            Self::UnixClient => ("unix client", UNIX_CLIENT, &[]),
            Self::Internet => ("internet", INTERNET, &[]),
            Self::Wait => ("wait", WAIT, &[]),
            Self::Signal => ("signal", SIGNAL, &[]),
            Self::Terminal => ("terminal", TERMINAL, &[]),
        }
    }

    /// Returns the name that the documentation uses for the group.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    pub(crate) fn calls(self) -> impl Iterator<Item = Call> {
        let (_, calls, old) = self.row();
        calls.iter().chain(old).copied()
    }

    /// Returns the names of the group's system calls, sorted.
    pub fn names(self) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = self.calls().map(|call| call.number.name()).collect();
        names.sort_unstable();
        names
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    First = 0,
    Second = 1,
    Third = 2,
}

/// Returns which argument of the system call `number` is a path, if any.
pub(crate) fn path_of(number: usize) -> Option<Argument> {
    match call_name(number) {
        "open" | "execve" | "stat" | "lstat" | "access" | "readlink" | "unlink" | "mkdir" | "rmdir" | "rename"
        | "chmod" => Some(Argument::First),
        "openat" | "openat2" | "execveat" | "newfstatat" | "fstatat" | "statx" | "faccessat" | "faccessat2"
        | "readlinkat" | "unlinkat" | "mkdirat" | "renameat" | "renameat2" | "fchmodat" => Some(Argument::Second),
        _ => None,
    }
}

pub(crate) fn blocks_signals(number: usize) -> bool {
    number == Sysno::rt_sigprocmask as usize
}

pub(crate) fn opens(number: usize) -> bool {
    matches!(call_name(number), "open" | "openat")
}

/// Returns the name of the system call with the number `number`, or `unknown`.
///
/// ```
/// assert_eq!(steerage_guard::sandbox::call_name(100_000), "unknown");
/// ```
pub fn call_name(number: usize) -> &'static str {
    Sysno::new(number).map_or("unknown", |call| call.name())
}

/// The standard library calls `getcwd` when it begins a backtrace. A backtrace reads the program's
/// executable file, which packet threads may not open. Packet threads call `getcwd` only for
/// backtraces.
pub(crate) fn begins_backtrace(number: usize) -> bool {
    number == Sysno::getcwd as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list of forbidden system calls is from guides on privileges and signal safety.
    #[test]
    fn no_group_has_what_takes_a_machine_over() {
        let never = [
            "execve",
            "execveat",
            "fork",
            "vfork",
            "ptrace",
            "process_vm_readv",
            "process_vm_writev",
            "pidfd_open",
            "pidfd_send_signal",
            "tkill",
            "rt_sigqueueinfo",
            "rt_tgsigqueueinfo",
            "io_uring_enter",
            "io_uring_register",
            "mount",
            "umount2",
            "setns",
            "unshare",
            "pivot_root",
            "chroot",
            "init_module",
            "finit_module",
            "kexec_load",
            "io_uring_setup",
            "userfaultfd",
            "perf_event_open",
            "keyctl",
            "setuid",
            "setgid",
            "setresuid",
            "pidfd_getfd",
            "open_by_handle_at",
            "chmod",
            "fchmod",
            "fchmodat",
            "chown",
            "fchownat",
            "linkat",
            "symlinkat",
            "mknodat",
            "memfd_create",
            "personality",
            "modify_ldt",
            "reboot",
        ];
        for group in Group::ALL {
            for name in group.names() {
                assert!(!never.contains(&name), "{name} in {}", group.name());
            }
        }
    }

    #[test]
    fn what_a_packet_thread_does_opens_nothing() {
        let never = [
            "openat",
            "open",
            "openat2",
            "socket",
            "connect",
            "bind",
            "clone",
            "kill",
            "wait4",
            "waitid",
            "dup",
            "dup2",
            "dup3",
            "stat",
            "statx",
            "newfstatat",
            "sendfile",
            "splice",
            "accept4",
        ];
        for group in [Group::Run, Group::Receive, Group::Send, Group::SendTo, Group::XdpMaps] {
            for name in group.names() {
                assert!(!never.contains(&name), "{name} in {}", group.name());
            }
        }
    }

    #[test]
    fn numbers_have_names() {
        assert_eq!(call_name(libc::SYS_openat as usize), "openat");
        assert_eq!(call_name(libc::SYS_execve as usize), "execve");
        assert_eq!(call_name(100_000), "unknown");
    }
}
