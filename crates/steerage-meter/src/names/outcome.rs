#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read<T> {
    Whole(T),
    /// The bytes may be the beginning of a message.
    Part,
    Other,
}
