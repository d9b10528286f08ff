//! Jobs: a question asked about each of many texts, which goes on after a restart.
//!
//! ```text
//! file, lines ─▶ texts, chats ─▶ conversations ─▶ rows in the store
//! running: 128 rows that wait ─▶ question_text ─▶ Engine::classify: what rows share is read once
//!              ▲                                          │
//!              └── all answers of a window, one transaction ◀┘ ─▶ Event::Job
//! running_jobs: which run or wait for their turn
//! commands: rows, corrections, calibration (decisions/calibration), CSV
//! ```
//! One job runs at a time; the engine runs it in slices beside chats. Log-probabilities are stored,
//! so that a calibration changes the probabilities of all rows without asking again.

mod answers;
pub(crate) mod commands;
mod conversations;
mod export;
mod question_text;
pub(crate) mod running;
pub(crate) mod running_jobs;
mod texts;
