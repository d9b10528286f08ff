//! A crash never repeats by itself: the work of a run that died is counted and named once, and
//! after a second time it is left alone until a person wants it again.
//!
//! ```text
//! a risky step begins, ends ─▶ Crashes::begin, RunningStep ─▶ running.json     removed by a close
//! the next start finds one  ─▶ consequences ─▶ counts (store: unclean_ends)
//!                                           ├▶ a model or job with two is set aside
//!                                           ├▶ after three quick ones: a quiet start
//!                                           └▶ notice: one sentence for the window
//! a person, or a run that went well ─▶ Crashes::forgive
//!
//! state         all that is known, for the app to hold; the rules by which counts grow and go
//! record        the file, and the steps that it names
//! consequences  what follows from a record that was left (pure)
//! notice        how that is said
//! commands      what a person says to it; this file alone stands above the app
//! ```
//!
//! Why not a minidump, or a process of its own for the engine: `docs/decisions/0035-crashes.md`.

pub(crate) mod commands;
mod consequences;
mod notice;
pub(crate) mod record;
pub(crate) mod state;
