/// The result of reading the beginning of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read<T> {
    /// It is a complete message.
    Whole(T),
    /// It may be the beginning of a message.
    Part,
    /// It is something else.
    Other,
}
