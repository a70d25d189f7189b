//! Super-frames: frames of up to 64 KiB that represent many packets of a flow.
//!
//! | file | what it holds |
//! |---|---|
//! | `lent` | receives super-frames, into memory that is lent to their handlers |
//! | `merged` | sends them, merges the packets of a batch, and cuts what the kernel refuses |
//! | `whole` | the longest super-frames that a kernel takes |
//! | `vnet` | finishes packets for devices that have no super-frames |

pub(crate) mod lent;
pub(crate) mod merged;
pub(crate) mod vnet;
pub(crate) mod whole;
