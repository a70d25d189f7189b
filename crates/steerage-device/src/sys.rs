//! System calls of several kinds of devices, such as requests about an interface (netdevice(7)).

use std::ffi::{c_int, c_ulong};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

const SIOCETHTOOL: c_ulong = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GRSSH: u32 = 0x46;
pub(crate) const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
pub(crate) const ETHTOOL_GRXCLSRULE: u32 = 0x2f;
pub(crate) const ETHTOOL_GRXCLSRLALL: u32 = 0x30;
pub(crate) const ETHTOOL_SRXCLSRLDEL: u32 = 0x31;
pub(crate) const ETHTOOL_SRXCLSRLINS: u32 = 0x32;

/// `struct ethtool_drvinfo` in 32-bit words: the command, five texts of 32 bytes, and 32 more
/// bytes.
const DRIVER_WORDS: usize = 1 + 5 * TEXT_WORDS + 8;
const TEXT_WORDS: usize = 8;
/// `struct ethtool_rxfh` in 32-bit words: the command, the context, two sizes, and eight more
/// bytes.
const RSS_WORDS: usize = 6;
/// The longest hash key in bytes. The kernel's own key has 52 bytes (`NETDEV_RSS_KEY_LEN`).
const KEY_BYTES_MAX: usize = 256;

/// `struct ethtool_rxnfc` in 32-bit words, on machines that align 64-bit numbers to 8 bytes, and
/// the indices of the words with the number of locations and with the first location.
pub(crate) const RULE_WORDS: usize = 48;
pub(crate) const RULE_COUNT: usize = 46;
pub(crate) const RULE_LOCATIONS: usize = 47;

/// The maximum length of an interface's name in bytes, including the terminating zero.
pub(crate) const NAME_BYTES: usize = libc::IFNAMSIZ;

/// `struct ifreq` of linux/if.h: an interface's name, and a value that the kernel reads or writes.
#[repr(C, align(8))]
pub(crate) struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    /// The union in `struct ifreq`, which is as long as its longest member.
    pub(crate) answer: [u8; 24],
}

impl InterfaceRequest {
    /// `name` is empty if the kernel should return the interface's name.
    pub(crate) fn of(name: &str) -> io::Result<Self> {
        let mut request = Self { name: [0; NAME_BYTES], answer: [0; 24] };
        match request.name[..NAME_BYTES - 1].get_mut(..name.len()) {
            Some(to) => to.copy_from_slice(name.as_bytes()),
            None => return Err(io::ErrorKind::InvalidInput.into()),
        }
        Ok(request)
    }

    #[cfg_attr(not(feature = "tap"), allow(dead_code, reason = "for tap alone"))]
    pub(crate) fn with_short(mut self, value: u16) -> Self {
        self.answer[..2].copy_from_slice(&value.to_ne_bytes());
        self
    }

    #[cfg_attr(not(feature = "tap"), allow(dead_code, reason = "for tap alone"))]
    pub(crate) fn short(&self) -> u16 {
        u16::from_ne_bytes([self.answer[0], self.answer[1]])
    }

    #[cfg_attr(not(feature = "tap"), allow(dead_code, reason = "for tap alone"))]
    pub(crate) fn name(&self) -> String {
        let name = self.name.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }
}

#[cfg_attr(not(feature = "tap"), allow(dead_code, reason = "for tap alone"))]
pub(crate) fn ask(fd: BorrowedFd<'_>, operation: c_ulong, request: &mut InterfaceRequest) -> io::Result<()> {
    // SAFETY: `request` is as large as any `ifreq` and holds no pointer. The operations used here
    // read and write no more than that.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), operation as _, std::ptr::from_mut(request)) })
}

pub(crate) fn checked(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(crate) fn socket(family: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::socket(family, kind, protocol) };
    checked(fd)?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn bind<T: ?Sized>(socket: impl AsFd, address: &T) -> io::Result<()> {
    let (at, len) = (std::ptr::from_ref(address).cast(), size_of_val(address) as libc::socklen_t);
    // SAFETY: the kernel reads `len` bytes, which are those of `address`.
    checked(unsafe { libc::bind(socket.as_fd().as_raw_fd(), at, len) })
}

pub(crate) fn set<T: Copy>(socket: impl AsFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let (at, len) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the kernel reads `len` bytes, which are those of `value`.
    checked(unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, at, len) })
}

pub(crate) fn get<T: Copy + Default>(socket: impl AsFd, level: c_int, option: c_int) -> io::Result<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    let at = std::ptr::from_mut(&mut value).cast();
    // SAFETY: the kernel writes at most `len` bytes, which are those of `value`. `T` is always a type
    // of plain numbers, for which any bytes are valid.
    checked(unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), level, option, at, &raw mut len) })?;
    Ok(value)
}

/// Maps `bytes` bytes at an address of the kernel's choice. `offset` is an offset in `fd`.
pub(crate) fn map(bytes: usize, access: c_int, flags: c_int, fd: c_int, offset: i64) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags & !libc::MAP_FIXED, fd, offset) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap gave the null address"))
}

/// Sends an ethtool(8) command about an interface in this thread's network namespace. `words` is
/// the structure of the command, and begins with the command's number.
///
/// This function is for requests that `steerage_netlink::ethtool` cannot make on all kernels since
/// 5.10: netlink does not report drivers' names and cards' rules, and reports the hash key only
/// since 6.3.
///
/// # Safety
/// `words` must be at least as long as the structure of the command, because the kernel reads and writes that many bytes.
unsafe fn ethtool(name: &str, words: &mut [u32]) -> io::Result<()> {
    let socket = socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0)?;
    let mut request = InterfaceRequest::of(name)?;
    let at: *mut u32 = words.as_mut_ptr();
    request.answer[..size_of::<usize>()].copy_from_slice(&at.expose_provenance().to_ne_bytes());
    // SAFETY: the kernel follows the pointer to `words`. The `words` are alive, and long enough by
    // this function's contract.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) })?;
    // The compiler cannot know that the kernel has written to `words`.
    std::hint::black_box(words);
    Ok(())
}

/// Returns the name of the driver, and true if the interface is a device on a real or virtual bus.
pub(crate) fn driver(name: &str) -> io::Result<(String, bool)> {
    let mut words = [0; DRIVER_WORDS];
    words[0] = ETHTOOL_GDRVINFO;
    // SAFETY: `words` has the length of `struct ethtool_drvinfo`.
    unsafe { ethtool(name, &mut words) }?;
    let text = |nth: usize| {
        let words = &words[1 + nth * TEXT_WORDS..][..TEXT_WORDS];
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0);
        String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
    };
    // The first four texts of `struct ethtool_drvinfo` are driver, version, firmware and bus. Some
    // drivers without a device, such as the driver of bridges, report "N/A" as the bus.
    Ok((text(0), !matches!(text(3).as_str(), "" | "N/A")))
}

/// Returns the key of the network card's flow hash (`ethtool -x`).
pub(crate) fn rss_key(name: &str) -> io::Result<Vec<u8>> {
    let mut words = [0; RSS_WORDS + KEY_BYTES_MAX / 4];
    words[0] = ETHTOOL_GRSSH;
    // SAFETY: the request asks for sizes only, so the kernel writes the structure without the data after it.
    unsafe { ethtool(name, &mut words[..RSS_WORDS]) }?;
    let bytes = words[3] as usize;
    if bytes > KEY_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    words[..RSS_WORDS].copy_from_slice(&[ETHTOOL_GRSSH, 0, 0, bytes as u32, 0, 0]);
    // SAFETY: only the key follows the structure. The key has `bytes` bytes, and there is room for
    // them.
    unsafe { ethtool(name, &mut words) }?;
    Ok(words[RSS_WORDS..].iter().flat_map(|word| word.to_ne_bytes()).take(bytes).collect())
}

/// Sends an ethtool command about a card's steering rules. The word `RULE_COUNT` states how many
/// locations the kernel may write after `struct ethtool_rxnfc`.
pub(crate) fn rules(name: &str, words: &mut [u32]) -> io::Result<()> {
    let commands = ETHTOOL_GRXCLSRLCNT..=ETHTOOL_SRXCLSRLINS;
    let is_long_enough = words.len() >= RULE_WORDS && words.len() - RULE_LOCATIONS >= words[RULE_COUNT] as usize;
    if !is_long_enough || !commands.contains(&words[0]) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `words` has room for the structure and for the locations that its field announces.
    // The kernel writes no more locations than the field announces.
    unsafe { ethtool(name, words) }
}
