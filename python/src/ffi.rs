//! Arrow's C data interface and C stream interface. The specification (arrow.apache.org, "The Arrow
//! C data interface") lists the fields of the three structures.
//!
//! All `unsafe` code of the crate is in this module. An Arrow structure belongs to the code that
//! received the structure, until this code releases the structure or another consumer moves it. To
//! move a structure, a consumer copies its bytes and clears the field `release` of the original.
//! Dropping a moved original releases nothing.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use pyo3::ffi::PyErr_SetInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use steerage_meter::{Column, ColumnBatch, Values};

/// EIO (errno(3)): the stream cannot continue.
const CANNOT_READ: c_int = 5;

/// `ARROW_FLAG_NULLABLE`: rows of the column may have no value (null).
const NULLABLE: i64 = 2;

pub(crate) trait Batches: Send {
    /// Returns columns without rows, and the metadata of the schema.
    fn schema(&self) -> (ColumnBatch, Vec<(String, String)>);
    /// Returns `None` at the end of the source.
    fn next(&mut self) -> Result<Option<ColumnBatch>, String>;
}

/// A default structure is a released one.
#[derive(Default)]
#[repr(C)]
struct ArrowSchema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut ArrowSchema,
    dictionary: *mut ArrowSchema,
    release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    private_data: *mut c_void,
}

/// A released array, such as the default one, marks the end of a stream.
#[derive(Default)]
#[repr(C)]
struct ArrowArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut ArrowArray,
    dictionary: *mut ArrowArray,
    release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    private_data: *mut c_void,
}

#[repr(C)]
struct ArrowArrayStream {
    get_schema: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowSchema) -> c_int>,
    get_next: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowArray) -> c_int>,
    get_last_error: Option<unsafe extern "C" fn(*mut ArrowArrayStream) -> *const c_char>,
    release: Option<unsafe extern "C" fn(*mut ArrowArrayStream)>,
    private_data: *mut c_void,
}

/// Structures whose field `private_data` is a box of the parts to which their pointers lead.
macro_rules! owners {
    ($($structure:ty: $parts:ty),*) => {$(
        // SAFETY: the structure owns all that its pointers lead to, and nothing in it belongs to one thread.
        unsafe impl Send for $structure {}

        impl Drop for $structure {
            fn drop(&mut self) {
                if let Some(release) = self.release {
                    // SAFETY: the structure was not released, because `release` is set.
                    unsafe { release(self) }
                }
            }
        }

        impl $structure {
            unsafe extern "C" fn release(structure: *mut Self) {
                // SAFETY: the caller owns the structure, which `new` made and nobody has released.
                unsafe {
                    drop(Box::from_raw((*structure).private_data.cast::<$parts>()));
                    (*structure).release = None;
                }
            }
        }
    )*};
}

owners!(ArrowSchema: SchemaParts, ArrowArray: ArrayParts, ArrowArrayStream: StreamParts);

/// The structures that belong to another structure, which has pointers to them.
struct Children<T>(Vec<*mut T>);

impl<T> Children<T> {
    fn new(children: impl Iterator<Item = T>) -> Self {
        Self(children.map(|child| Box::into_raw(Box::new(child))).collect())
    }
}

impl<T> Drop for Children<T> {
    fn drop(&mut self) {
        for child in self.0.drain(..) {
            // SAFETY: `new` made the pointer from a box, and nobody else frees it.
            drop(unsafe { Box::from_raw(child) });
        }
    }
}

struct SchemaParts {
    format: &'static CStr,
    name: CString,
    metadata: Vec<u8>,
    children: Children<ArrowSchema>,
}

impl ArrowSchema {
    fn new(format: &'static CStr, name: &str, flags: i64, metadata: Vec<u8>, children: Children<Self>) -> Self {
        let name = CString::new(name).unwrap_or_default();
        let mut parts = Box::new(SchemaParts { format, name, metadata, children });
        Self {
            format: parts.format.as_ptr(),
            name: parts.name.as_ptr(),
            metadata: if parts.metadata.is_empty() { ptr::null() } else { parts.metadata.as_ptr().cast() },
            flags,
            n_children: parts.children.0.len() as i64,
            children: parts.children.0.as_mut_ptr(),
            dictionary: ptr::null_mut(),
            release: Some(Self::release),
            private_data: Box::into_raw(parts).cast(),
        }
    }

    fn of_column(column: &Column) -> Self {
        let flags = if column.present().is_some() { NULLABLE } else { 0 };
        let (format, _) = layout(column.values());
        Self::new(format, column.name(), flags, Vec::new(), Children(Vec::new()))
    }

    fn of_batch(batch: &ColumnBatch, metadata: &[(String, String)]) -> Self {
        let children = Children::new(batch.columns().iter().map(Self::of_column));
        Self::new(c"+s", "", 0, encoded(metadata), children)
    }
}

/// Returns the Arrow format of a column, and the buffers that have its values.
fn layout(values: &Values) -> (&'static CStr, Vec<*const c_void>) {
    match values {
        Values::Time(values) => (c"tsn:UTC", vec![values.as_ptr().cast()]),
        Values::U8(values) => (c"C", vec![values.as_ptr().cast()]),
        Values::U16(values) => (c"S", vec![values.as_ptr().cast()]),
        Values::U32(values) => (c"I", vec![values.as_ptr().cast()]),
        Values::U64(values) => (c"L", vec![values.as_ptr().cast()]),
        Values::F64(values) => (c"g", vec![values.as_ptr().cast()]),
        Values::Text(positions, bytes) => (c"u", vec![positions.as_ptr().cast(), bytes.as_ptr().cast()]),
        Values::Bytes(positions, bytes) => (c"z", vec![positions.as_ptr().cast(), bytes.as_ptr().cast()]),
        _ => (c"n", Vec::new()),
    }
}

/// Encodes metadata: the number of pairs, then the length and the bytes of each key and of each
/// value.
fn encoded(metadata: &[(String, String)]) -> Vec<u8> {
    if metadata.is_empty() {
        return Vec::new();
    }
    let mut bytes = (metadata.len() as i32).to_ne_bytes().to_vec();
    for text in metadata.iter().flat_map(|(key, value)| [key, value]) {
        bytes.extend_from_slice(&(text.len() as i32).to_ne_bytes());
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

struct ArrayParts {
    buffers: Vec<*const c_void>,
    children: Children<ArrowArray>,
    /// The column that owns the memory of the array's buffers.
    _column: Option<Column>,
}

impl ArrowArray {
    fn new((rows, absent): (usize, usize), parts: ArrayParts) -> Self {
        let mut parts = Box::new(parts);
        Self {
            length: rows as i64,
            null_count: absent as i64,
            offset: 0,
            n_buffers: parts.buffers.len() as i64,
            n_children: parts.children.0.len() as i64,
            buffers: parts.buffers.as_mut_ptr(),
            children: parts.children.0.as_mut_ptr(),
            dictionary: ptr::null_mut(),
            release: Some(Self::release),
            private_data: Box::into_raw(parts).cast(),
        }
    }

    fn of_column(column: Column) -> Self {
        let present = column.present().map_or(ptr::null(), |bits| bits.as_ptr().cast());
        // Moving the column does not move the memory of its vectors, so the pointers stay valid.
        let buffers = [present].into_iter().chain(layout(column.values()).1).collect();
        let rows = (column.rows(), column.absent());
        Self::new(rows, ArrayParts { buffers, children: Children(Vec::new()), _column: Some(column) })
    }

    fn of_batch(mut batch: ColumnBatch) -> Result<Self, String> {
        // The positions of a longer column are wrong.
        if let Some(long) = batch.columns().iter().find(|column| column.bytes() > i32::MAX as usize) {
            return Err(format!("the column `{}` has more than 2 GiB in one batch: please report it", long.name()));
        }
        let rows = batch.rows();
        let columns = batch.columns_mut().iter_mut().map(Column::take);
        let children = Children::new(columns.map(Self::of_column));
        Ok(Self::new((rows, 0), ArrayParts { buffers: vec![ptr::null()], children, _column: None }))
    }
}

struct StreamParts {
    batches: Box<dyn Batches>,
    error: CString,
}

impl ArrowArrayStream {
    fn new(batches: Box<dyn Batches>) -> Self {
        let parts = Box::new(StreamParts { batches, error: CString::default() });
        Self {
            get_schema: Some(Self::schema),
            get_next: Some(Self::next),
            get_last_error: Some(Self::last_error),
            release: Some(Self::release),
            private_data: Box::into_raw(parts).cast(),
        }
    }

    unsafe extern "C" fn schema(stream: *mut Self, to: *mut ArrowSchema) -> c_int {
        // SAFETY: the caller owns the stream, which `new` made, and `to` has room for a schema.
        unsafe {
            let parts = &mut *(*stream).private_data.cast::<StreamParts>();
            parts.call(to, |batches| {
                let (batch, metadata) = batches.schema();
                Ok(ArrowSchema::of_batch(&batch, &metadata))
            })
        }
    }

    unsafe extern "C" fn next(stream: *mut Self, to: *mut ArrowArray) -> c_int {
        // SAFETY: as for `schema`.
        unsafe {
            let parts = &mut *(*stream).private_data.cast::<StreamParts>();
            parts.call(to, |batches| batches.next()?.map_or_else(|| Ok(ArrowArray::default()), ArrowArray::of_batch))
        }
    }

    unsafe extern "C" fn last_error(stream: *mut Self) -> *const c_char {
        // SAFETY: the caller owns the stream, which `new` made.
        unsafe { (*(*stream).private_data.cast::<StreamParts>()).error.as_ptr() }
    }
}

impl StreamParts {
    /// Writes the result of `make` to `to`. An error or a panic of `make` is stored as the stream's
    /// error: a panic must not unwind into the consumer's code.
    ///
    /// # Safety
    /// The pointer `to` must point to memory for a `T`. The function does not drop the previous
    /// contents of this memory.
    unsafe fn call<T>(&mut self, to: *mut T, make: impl FnOnce(&mut dyn Batches) -> Result<T, String>) -> c_int {
        let made = catch_unwind(AssertUnwindSafe(|| make(&mut *self.batches)));
        match made.unwrap_or_else(|_| Err("steerage panicked: please report it".to_owned())) {
            Ok(value) => {
                // SAFETY: the caller of this function promises the room.
                unsafe { to.write(value) };
                0
            }
            Err(message) => {
                self.error = CString::new(message.replace('\0', "")).unwrap_or_default();
                CANNOT_READ
            }
        }
    }
}

pub(crate) fn stream<'py>(py: Python<'py>, batches: Box<dyn Batches>) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, ArrowArrayStream::new(batches), c"arrow_array_stream")
}

/// Returns the bytes of all rows of the column `name`, one after another. The column must have the
/// Arrow type binary, large binary or binary view.
pub(crate) fn binary_column(capsule: &Bound<'_, PyCapsule>, name: &str) -> Result<Vec<u8>, String> {
    let pointer = capsule.pointer_checked(Some(c"arrow_array_stream")).map_err(|error| error.to_string())?;
    // SAFETY: a capsule of this name points to a stream. Reading it out leaves a released stream behind,
    // as the interface asks for.
    let mut stream = unsafe {
        let original = pointer.cast::<ArrowArrayStream>().as_ptr();
        let moved = ptr::read(original);
        (*original).release = None;
        moved
    };
    if stream.release.is_none() {
        return Err("the stream was read already: give a new table".to_owned());
    }
    let schema = stream.taken(stream.get_schema)?;
    let columns = || 0..schema.n_children.max(0) as usize;
    // SAFETY: a schema has `n_children` children, whose texts end with a 0.
    let text =
        |nth: usize, of: fn(&ArrowSchema) -> *const c_char| unsafe { CStr::from_ptr(of(&**schema.children.add(nth))) };
    let nth = columns().find(|nth| text(*nth, |child| child.name).to_bytes() == name.as_bytes());
    let nth = nth.ok_or_else(|| format!("the table has no column `{name}`: give the table of edges as it was"))?;
    let format = text(nth, |child| child.format).to_owned();
    let mut bytes = Vec::new();
    loop {
        let array = stream.taken(stream.get_next)?;
        if array.release.is_none() {
            return Ok(bytes);
        }
        // SAFETY: the array has the children of its schema, and this child the layout of its format.
        unsafe { (**array.children.add(nth)).append_binary(&format, (array.offset, array.length), &mut bytes)? };
    }
}

impl ArrowArrayStream {
    fn taken<T: Default>(
        &mut self,
        function: Option<unsafe extern "C" fn(*mut Self, *mut T) -> c_int>,
    ) -> Result<T, String> {
        let mut taken = T::default();
        let function = function.ok_or("the stream has no functions")?;
        // SAFETY: the stream was not released, and `taken` has room for the structure.
        if unsafe { function(self, &mut taken) } == 0 {
            return Ok(taken);
        }
        // SAFETY: as above. The text, if there is one, lives until the next call.
        let message = unsafe { self.get_last_error.map_or(ptr::null(), |last| last(self)) };
        if message.is_null() {
            return Err("cannot read the table of edges".to_owned());
        }
        // SAFETY: the text is not null, and ends with a 0.
        Err(format!("cannot read the table of edges: {}", unsafe { CStr::from_ptr(message) }.to_string_lossy()))
    }
}

impl ArrowArray {
    /// Appends the bytes of `rows` rows to `to`, beginning with the row `from`.
    ///
    /// # Safety
    /// The array must have the memory layout of the Arrow format `format`.
    unsafe fn append_binary(&self, format: &CStr, (from, rows): (i64, i64), to: &mut Vec<u8>) -> Result<(), String> {
        let row = |nth: i64| (self.offset + from + nth) as usize;
        // SAFETY: the caller promises the layout, and each buffer is as long as the array.
        unsafe {
            let buffer = |nth: usize| *self.buffers.add(nth);
            for nth in (0..rows).map(row) {
                let (begin, end, bytes) = match format.to_bytes() {
                    b"z" => {
                        let ends = buffer(1).cast::<i32>();
                        (*ends.add(nth) as usize, *ends.add(nth + 1) as usize, buffer(2).cast::<u8>())
                    }
                    b"Z" => {
                        let ends = buffer(1).cast::<i64>();
                        (*ends.add(nth) as usize, *ends.add(nth + 1) as usize, buffer(2).cast::<u8>())
                    }
                    b"vz" => {
                        // A view has 16 bytes, beginning with the length of the value. After the
                        // length, the view has the whole value if the value has at most 12 bytes.
                        // After the length of a longer value, the view has the value's first four
                        // bytes, the number of its buffer and its position in this buffer.
                        let view = buffer(1).cast::<u8>().add(16 * nth);
                        let number = |at: usize| view.add(at).cast::<i32>().read_unaligned() as usize;
                        match number(0) {
                            length @ 0..=12 => (0, length, view.add(4)),
                            length => (number(12), number(12) + length, buffer(2 + number(8)).cast::<u8>()),
                        }
                    }
                    _ => return Err("the column `state` is not binary: give the table of edges as it was".to_owned()),
                };
                if end > begin {
                    to.extend_from_slice(std::slice::from_raw_parts(bytes.add(begin), end - begin));
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn schema<'py>(
    py: Python<'py>,
    batch: &ColumnBatch,
    metadata: &[(String, String)],
) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, ArrowSchema::of_batch(batch, metadata), c"arrow_schema")
}

/// Takes over a descriptor. The Python code must not use or close the descriptor afterwards.
pub(crate) fn take_descriptor(descriptor: i32) -> OwnedFd {
    // SAFETY: `_source.py` opens the descriptor for this call alone.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// Makes Python raise `KeyboardInterrupt` when the consumer of a stream returns to Python. Without
/// this call, Python would not raise the exception, because the wait for a batch has already
/// handled SIGINT.
pub(crate) fn interrupt() {
    // SAFETY: the function may be called in any state of the interpreter.
    unsafe { PyErr_SetInterrupt() }
}
