//! ggml's numbers for kinds of tokens.

pub(super) const NORMAL: i64 = 1;
pub(super) const UNKNOWN: i64 = 2;
/// Text never produces these.
pub(super) const CONTROL: i64 = 3;
/// These are matched in text before BPE.
pub(super) const USER_DEFINED: i64 = 4;
pub(super) const BYTE: i64 = 6;
