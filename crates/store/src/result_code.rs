//! SQLite's result codes (<https://www.sqlite.org/rescode.html>), as far as the store acts on them.

/// The extended result code of an error; none for an error that is not SQLite's.
pub(crate) fn result_code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

/// The primary result code that an extended one belongs to.
pub(crate) fn primary(code: i32) -> i32 {
    code & 0xff
}

// Primary codes.
pub(crate) const ERROR: i32 = 1;
pub(crate) const PERM: i32 = 3;
pub(crate) const BUSY: i32 = 5;
pub(crate) const READONLY: i32 = 8;
pub(crate) const CORRUPT: i32 = 11;
pub(crate) const FULL: i32 = 13;
pub(crate) const CANTOPEN: i32 = 14;
pub(crate) const TOOBIG: i32 = 18;
pub(crate) const CONSTRAINT: i32 = 19;
pub(crate) const MISMATCH: i32 = 20;
pub(crate) const NOTADB: i32 = 26;

// Extended codes.
pub(crate) const IOERR_READ: i32 = 266;
pub(crate) const IOERR_SHORT_READ: i32 = 522;
/// The index of the write-ahead log could not grow, which SQLite does not report as [`FULL`].
pub(crate) const IOERR_SHMSIZE: i32 = 4874;
pub(crate) const IOERR_CORRUPTFS: i32 = 8458;
