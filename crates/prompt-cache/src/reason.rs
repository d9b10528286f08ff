//! Why something is not stored any more, and why a prompt was not found. Whoever shows a reason to a
//! person makes the sentence.

use std::fmt;

use crate::KvFormat;

/// Why a reference lost chunks.
///
/// As text, in rows: the sentence part that [`fmt::Display`] writes; [`LossReason::from_text`]
/// reads it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LossReason {
    /// Evicted to stay within the disk budget.
    DiskBudget,
    /// Evicted to stay within the memory budget while it was not on disk.
    MemoryBudget,
    /// A person deleted what a conversation or a starting point had.
    Deleted,
    /// A person deleted everything that was not pinned.
    Cleared,
    /// The file is gone.
    FileMissing,
    /// The file is not what was written, or cannot be used for another lasting reason.
    FileDamaged,
    /// The record contradicted itself, its parent or its file.
    RecordDamaged,
    /// Another process removed the file and its row.
    RemovedByAnotherProgram,
    /// The chunk could not be written, for this reason, and ended with the process.
    NotWritten(String),
    /// The chunk was only in memory, and ended with the process.
    OnlyInMemory,
    /// Saved by a version whose files this one does not read.
    EarlierVersion,
    /// A text that this version does not write.
    Other(String),
}

const NOT_WRITTEN: &str = "it was not saved, because ";

/// The reasons without contents, with their texts.
const TEXTS: [(LossReason, &str); 10] = [
    (LossReason::DiskBudget, "evicted to stay within the disk limit"),
    (
        LossReason::MemoryBudget,
        "evicted from memory to stay within the memory limit, and it was not on disk",
    ),
    (LossReason::Deleted, "deleted by hand"),
    (LossReason::Cleared, "the saved context was deleted"),
    (LossReason::FileMissing, "its file is missing"),
    (LossReason::FileDamaged, "its file is damaged"),
    (LossReason::RecordDamaged, "its record was damaged"),
    (LossReason::RemovedByAnotherProgram, "removed by another program"),
    (LossReason::OnlyInMemory, "it was not saved on disk, only in memory"),
    (LossReason::EarlierVersion, "saved by an earlier version"),
];

impl LossReason {
    /// The reason that a row names.
    pub fn from_text(text: &str) -> LossReason {
        if let Some((reason, _)) = TEXTS.iter().find(|(_, known)| *known == text) {
            return reason.clone();
        }
        match text.strip_prefix(NOT_WRITTEN) {
            Some(problem) => LossReason::NotWritten(problem.to_owned()),
            None => LossReason::Other(text.to_owned()),
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossReason::NotWritten(problem) => write!(formatter, "{NOT_WRITTEN}{problem}"),
            LossReason::Other(text) => formatter.write_str(text),
            reason => {
                let text = TEXTS.iter().find(|(known, _)| known == reason).map(|(_, text)| *text);
                formatter.write_str(text.unwrap_or_default())
            }
        }
    }
}

/// Tokens that had to be computed again although an earlier turn had computed them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Miss {
    /// How many: all that the prompt has after those that were found.
    pub num_tokens: usize,
    /// Why.
    pub reason: MissReason,
}

/// Why a prompt, or a part of it, was not found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MissReason {
    /// The system prompt differs from the one that was saved.
    SystemPromptChanged {
        /// The first token that differs.
        at_token: usize,
    },
    /// An earlier message differs from the one that was saved.
    MessageChanged {
        /// The first token that differs.
        at_token: usize,
    },
    /// Another model computed what is saved.
    OtherModel {
        /// The name under which it was loaded.
        name: String,
    },
    /// The files of the same model have changed since.
    OtherRevision,
    /// Keys and values are stored in another format than before.
    OtherKvFormat {
        /// The format of what is saved.
        before: KvFormat,
        /// The format that was asked for.
        now: KvFormat,
    },
    /// The starting point that the conversation continues was imported again.
    ImportedAgain,
    /// It was stored, and was given up.
    Lost {
        /// Why.
        reason: LossReason,
        /// When, in milliseconds since the Unix epoch.
        at_ms: i64,
    },
    /// A stored chunk could not be used.
    Unusable(ChunkProblem),
    /// Recent chunks could not be written, for this reason.
    NotWritten(String),
    /// Nothing says that it was ever stored.
    NotStored,
}

/// What is wrong with a stored chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChunkProblem {
    /// Its file is gone.
    Missing,
    /// Its file cannot be read, for this reason of the operating system.
    Unreadable(String),
    /// Its file is not what was written, for this reason where one is known.
    Damaged(Option<String>),
    /// Its contents could not be brought back into memory.
    NotRestorable(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_a_loss_survive_the_way_through_text() {
        for (reason, text) in TEXTS {
            assert_eq!((reason.to_string().as_str(), LossReason::from_text(text)), (text, reason));
        }
        for reason in [
            LossReason::NotWritten("the disk could not be written: no space".to_owned()),
            LossReason::Other("saved on a Tuesday".to_owned()),
        ] {
            assert_eq!(LossReason::from_text(&reason.to_string()), reason);
        }
    }
}
