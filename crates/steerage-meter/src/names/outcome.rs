#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read<T> {
    /// The bytes that were read contain a complete message.
    Whole(T),
    /// The bytes may be the beginning of a message.
    Part,
    /// The bytes are not a message of this protocol.
    Other,
}
