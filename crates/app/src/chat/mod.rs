//! Turns: starting one, running its answer, saving its text.
//!
//! ```text
//! creation          makes new conversations, with the system prompt that is set
//! turns             begins questions and answers
//! turn              where an answer is written, and who writes it
//! model             which model answers
//! compare           two answers to one question beside each other
//! branches          shows other branches, copies and deletes them
//! answering         one task for each running answer
//! branch_to_answer  the request for it
//! beside            loads the model of the second of two that are compared
//! answer_events     what interfaces are sent of it
//! saving            saves it now and then, at its end, and again if that failed
//! holding           what happens when it repeats itself
//! loops             which parts of it are looked at for loops
//! running           which conversations are being answered, and how to stop them
//! outlook           what the next turn would read again
//! titles            titles that the model writes while nothing else is to do
//! title_queue       the conversations that wait for them
//! probabilities     reads an answer again, for those who ask how likely its tokens were
//! running_reads     which answers are read so, and how to stop that
//! listed            conversations as the list of interfaces has them
//! list              deletes, archives and moves them, one or many
//! deletion          purges deleted conversations when that can no longer be undone
//! progress          when an answer's events and saved text are due
//! segments          what is shown of an answer: text, reasoning, tool calls
//! savings           how much reading an answer saved, and what was before a change
//! prompt            a conversation's messages as the engine's input
//! beginning         what prompts begin with, and which part of the messages is read behind it
//! context           how much of the model's context that takes
//! overflow          what happens when it takes too much
//! ```

mod answer_events;
pub(crate) mod answering;
pub(crate) mod beginning;
mod beside;
mod branch_to_answer;
pub(crate) mod branches;
pub(crate) mod compare;
pub(crate) mod context;
pub(crate) mod creation;
pub(crate) mod deletion;
pub(crate) mod holding;
pub(crate) mod list;
pub(crate) mod listed;
pub(crate) mod loops;
pub(crate) mod model;
pub(crate) mod outlook;
pub(crate) mod overflow;
pub(crate) mod probabilities;
pub(crate) mod progress;
pub(crate) mod prompt;
pub(crate) mod running;
pub(crate) mod running_reads;
pub(crate) mod saving;
pub(crate) mod savings;
pub(crate) mod segments;
pub(crate) mod title_queue;
pub(crate) mod titles;
mod turn;
pub(crate) mod turns;
