//! Why less of a prompt was read from the prompt cache than could be expected: the causes on the wire,
//! and as sentences.

use cairn_chat::CacheMiss;
use cairn_prompt_cache::{ChunkProblem, KvFormat, LossReason, Miss, MissReason};

use super::numbers::tokens;
use crate::wire;

/// The parts of a miss, for the interface's own sentence and for what prevents it the next time.
/// Stored with the answer.
pub(crate) fn cache_miss(miss: &Miss) -> CacheMiss {
    let (cause, detail, at_ms) = miss_cause(&miss.reason);
    let cause = cause.name().to_owned();
    CacheMiss { num_tokens: miss.num_tokens, cause, detail, at_ms }
}

/// The cause of a miss, what it names, and when it happened.
fn miss_cause(reason: &MissReason) -> (wire::MissCause, Option<String>, Option<i64>) {
    use wire::MissCause as Cause;
    match reason {
        // Which one it was, the answer's conversation knows.
        MissReason::SystemPromptChanged { .. } => (Cause::SystemPromptChanged, None, None),
        MissReason::MessageChanged { .. } => (Cause::MessageChanged, None, None),
        MissReason::OtherModel { name } => (Cause::OtherModel, Some(name.clone()), None),
        MissReason::OtherRevision => (Cause::OtherRevision, None, None),
        MissReason::OtherKvFormat { before, .. } => {
            (Cause::OtherKvFormat, kv_bits(*before).map(str::to_owned), None)
        }
        MissReason::ImportedAgain => (Cause::ImportedAgain, None, None),
        MissReason::Lost { reason, at_ms } => {
            let (cause, detail) = loss_cause(reason);
            (cause, detail, Some(*at_ms))
        }
        MissReason::Unusable(ChunkProblem::Missing) => (Cause::FileMissing, None, None),
        MissReason::Unusable(ChunkProblem::Unreadable(why)) => {
            (Cause::Unreadable, Some(why.clone()), None)
        }
        MissReason::Unusable(ChunkProblem::Damaged(_)) => (Cause::Damaged, None, None),
        MissReason::Unusable(ChunkProblem::NotRestorable(why)) => {
            (Cause::NotRestorable, Some(why.clone()), None)
        }
        MissReason::NotWritten(why) => (Cause::NotWritten, Some(why.clone()), None),
        MissReason::NotStored => (Cause::NotStored, None, None),
    }
}

fn loss_cause(reason: &LossReason) -> (wire::MissCause, Option<String>) {
    use wire::MissCause as Cause;
    match reason {
        LossReason::DiskBudget => (Cause::DiskLimit, None),
        LossReason::MemoryBudget => (Cause::MemoryLimit, None),
        LossReason::Deleted => (Cause::Deleted, None),
        LossReason::Cleared => (Cause::Cleared, None),
        LossReason::FileMissing => (Cause::FileMissing, None),
        LossReason::FileDamaged | LossReason::RecordDamaged => (Cause::Damaged, None),
        LossReason::RemovedByAnotherProgram => (Cause::RemovedByAnotherProgram, None),
        LossReason::NotWritten(why) => (Cause::NotWritten, Some(why.clone())),
        LossReason::OnlyInMemory => (Cause::OnlyInMemory, None),
        LossReason::EarlierVersion => (Cause::EarlierVersion, None),
        LossReason::Other(text) => (Cause::Other, Some(text.clone())),
    }
}

/// The value of the setting with which keys and values are stored like this; none where none does.
fn kv_bits(format: KvFormat) -> Option<&'static str> {
    match format {
        KvFormat::Plain => Some("plain"),
        KvFormat::Quantized { bits: 8, .. } => Some("eight_bits"),
        KvFormat::Quantized { bits: 4, .. } => Some("four_bits"),
        KvFormat::Quantized { .. } | KvFormat::Compressed { .. } => None,
    }
}

/// A stored miss; one of a cause that this version does not know has only its text.
pub(crate) fn stored_miss(miss: CacheMiss) -> Option<wire::CacheMiss> {
    let CacheMiss { num_tokens, cause, detail, at_ms } = miss;
    let cause = wire::MissCause::named(&cause)?;
    Some(wire::CacheMiss { tokens: tokens(num_tokens), cause, detail, at_ms })
}

/// Why less of a prompt was read from the prompt cache than could be expected. Stored with the
/// answer; the interface shows it in its own words.
pub(crate) fn cache_note(miss: &Miss, now_ms: i64) -> String {
    format!("re-read {} tokens: {}", group(miss.num_tokens), miss_reason(&miss.reason, now_ms))
}

/// The same of an answer before which the oldest turns were cut off: everything but what the prompt was
/// found to begin with.
pub(crate) fn cut_note(num_read: usize) -> String {
    format!("re-read {} tokens: the oldest messages are no longer part of it", group(num_read))
}

/// The parts of that.
pub(crate) fn cut_miss(num_read: usize) -> CacheMiss {
    let cause = wire::MissCause::OldestForgotten.name().to_owned();
    CacheMiss { num_tokens: num_read, cause, detail: None, at_ms: None }
}

fn miss_reason(reason: &MissReason, now_ms: i64) -> String {
    match reason {
        MissReason::SystemPromptChanged { at_token } => {
            format!("the system prompt changed at token {}", group(*at_token))
        }
        MissReason::MessageChanged { at_token } => {
            format!("an earlier message changed at token {}", group(*at_token))
        }
        MissReason::OtherModel { name } => format!("another model read it before: {name}"),
        MissReason::OtherRevision => "the model's files have changed since it was read".to_owned(),
        MissReason::OtherKvFormat { before, now } => {
            let (before, now) = (stored_as(*before), stored_as(*now));
            format!("it was saved {before} before, and is saved {now} now")
        }
        MissReason::ImportedAgain => {
            "the starting point it continues was imported again".to_owned()
        }
        MissReason::Lost { reason, at_ms } => {
            format!("{}, {}", loss_reason(reason), ago(now_ms.saturating_sub(*at_ms)))
        }
        MissReason::Unusable(problem) => chunk_problem(problem),
        MissReason::NotWritten(problem) => problem.clone(),
        MissReason::NotStored => {
            "this part of the conversation was not saved, or has been evicted".to_owned()
        }
    }
}

/// How keys and values are stored, as part of a sentence.
fn stored_as(format: KvFormat) -> String {
    match format {
        KvFormat::Plain => "as computed".to_owned(),
        KvFormat::Quantized { bits, .. } => format!("in {bits} bits"),
        KvFormat::Compressed { keep_tokens } => {
            format!("with the {} most important tokens", group(keep_tokens as usize))
        }
    }
}

/// What is wrong with a stored chunk, as part of a sentence.
fn chunk_problem(problem: &ChunkProblem) -> String {
    match problem {
        ChunkProblem::Missing => "the file of a saved part is missing".to_owned(),
        ChunkProblem::Unreadable(reason) => format!("a saved part cannot be read ({reason})"),
        ChunkProblem::Damaged(None) => {
            "a saved part is damaged (its contents have changed since it was written)".to_owned()
        }
        ChunkProblem::Damaged(Some(reason)) => format!("a saved part is damaged ({reason})"),
        ChunkProblem::NotRestorable(reason) => {
            format!("a saved part could not be brought back into memory ({reason})")
        }
    }
}

/// Why saved context was lost, as part of a sentence.
pub(crate) fn loss_reason(reason: &LossReason) -> String {
    match reason {
        LossReason::DiskBudget => "evicted to stay within the disk limit".to_owned(),
        LossReason::MemoryBudget => {
            "evicted from memory to stay within the memory limit, and it was not on disk".to_owned()
        }
        LossReason::Deleted => "deleted by hand".to_owned(),
        LossReason::Cleared => "the saved context was deleted".to_owned(),
        LossReason::FileMissing => "its file is missing".to_owned(),
        LossReason::FileDamaged => "its file is damaged".to_owned(),
        LossReason::RecordDamaged => "the database's entry of it was damaged".to_owned(),
        LossReason::RemovedByAnotherProgram => "removed by another program".to_owned(),
        LossReason::NotWritten(problem) => format!("it was not saved, because {problem}"),
        LossReason::OnlyInMemory => "it was not saved on disk, only in memory".to_owned(),
        LossReason::EarlierVersion => "saved by an earlier version".to_owned(),
        LossReason::Other(text) => text.clone(),
    }
}

/// A duration before now, such as "2 hours ago".
fn ago(milliseconds: i64) -> String {
    let minutes = milliseconds / 60_000;
    let (count, unit) = match minutes {
        ..1 => return "a moment ago".to_owned(),
        1..60 => (minutes, "minute"),
        60..1440 => (minutes / 60, "hour"),
        _ => (minutes / 1440, "day"),
    };
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural} ago")
}

/// 3100 as "3,100".
fn group(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    const DAY_MS: i64 = 86_400_000;

    #[test]
    fn each_miss_is_a_sentence_with_its_reason() {
        fn check(num_tokens: usize, reason: MissReason, expected: &str) {
            assert_eq!(cache_note(&Miss { num_tokens, reason }, 10 * DAY_MS), expected);
        }
        check(
            3_188,
            MissReason::SystemPromptChanged { at_token: 12 },
            "re-read 3,188 tokens: the system prompt changed at token 12",
        );
        check(
            1_700,
            MissReason::MessageChanged { at_token: 1_500 },
            "re-read 1,700 tokens: an earlier message changed at token 1,500",
        );
        check(
            5,
            MissReason::OtherModel { name: "n".to_owned() },
            "re-read 5 tokens: another model read it before: n",
        );
        let before = KvFormat::Quantized { bits: 8, group_size: 64 };
        check(
            5,
            MissReason::OtherKvFormat { before, now: KvFormat::Plain },
            "re-read 5 tokens: it was saved in 8 bits before, and is saved as computed now",
        );
        check(
            1_002_944,
            MissReason::Lost { reason: LossReason::DiskBudget, at_ms: 8 * DAY_MS },
            "re-read 1,002,944 tokens: evicted to stay within the disk limit, 2 days ago",
        );
        check(
            5,
            MissReason::Unusable(ChunkProblem::Damaged(None)),
            "re-read 5 tokens: a saved part is damaged (its contents have changed since it was written)",
        );
    }

    #[test]
    fn each_miss_has_a_cause_that_survives_being_stored() {
        use wire::MissCause as Cause;
        let mut seen = Vec::new();
        let mut check = |reason: MissReason, cause: Cause, detail: Option<&str>| {
            let miss = cache_miss(&Miss { num_tokens: 7, reason });
            // As a row of an answer has it.
            let stored = serde_json::to_string(&miss).unwrap();
            let found = stored_miss(serde_json::from_str(&stored).unwrap()).unwrap();
            let found_detail = found.detail.as_deref();
            assert_eq!((found.tokens, found.cause, found_detail), (7, cause, detail));
            assert_eq!(serde_json::to_value(cause).unwrap(), miss.cause, "the wire has this name");
            seen.push(cause);
        };
        let text = || "why".to_owned();
        check(MissReason::SystemPromptChanged { at_token: 1 }, Cause::SystemPromptChanged, None);
        check(MissReason::MessageChanged { at_token: 1 }, Cause::MessageChanged, None);
        check(MissReason::OtherModel { name: text() }, Cause::OtherModel, Some("why"));
        check(MissReason::OtherRevision, Cause::OtherRevision, None);
        for (before, expected) in [
            (KvFormat::Plain, Some("plain")),
            (KvFormat::Quantized { bits: 8, group_size: 64 }, Some("eight_bits")),
            (KvFormat::Quantized { bits: 4, group_size: 32 }, Some("four_bits")),
            (KvFormat::Quantized { bits: 3, group_size: 64 }, None),
        ] {
            let reason = MissReason::OtherKvFormat { before, now: KvFormat::Plain };
            check(reason, Cause::OtherKvFormat, expected);
        }
        check(MissReason::ImportedAgain, Cause::ImportedAgain, None);
        check(MissReason::NotWritten(text()), Cause::NotWritten, Some("why"));
        check(MissReason::NotStored, Cause::NotStored, None);
        for (problem, cause, detail) in [
            (ChunkProblem::Missing, Cause::FileMissing, None),
            (ChunkProblem::Unreadable(text()), Cause::Unreadable, Some("why")),
            (ChunkProblem::Damaged(None), Cause::Damaged, None),
            (ChunkProblem::Damaged(Some(text())), Cause::Damaged, None),
            (ChunkProblem::NotRestorable(text()), Cause::NotRestorable, Some("why")),
        ] {
            check(MissReason::Unusable(problem), cause, detail);
        }
        for (reason, cause, detail) in [
            (LossReason::DiskBudget, Cause::DiskLimit, None),
            (LossReason::MemoryBudget, Cause::MemoryLimit, None),
            (LossReason::Deleted, Cause::Deleted, None),
            (LossReason::Cleared, Cause::Cleared, None),
            (LossReason::FileMissing, Cause::FileMissing, None),
            (LossReason::FileDamaged, Cause::Damaged, None),
            (LossReason::RecordDamaged, Cause::Damaged, None),
            (LossReason::RemovedByAnotherProgram, Cause::RemovedByAnotherProgram, None),
            (LossReason::NotWritten(text()), Cause::NotWritten, Some("why")),
            (LossReason::OnlyInMemory, Cause::OnlyInMemory, None),
            (LossReason::EarlierVersion, Cause::EarlierVersion, None),
            (LossReason::Other(text()), Cause::Other, Some("why")),
        ] {
            check(MissReason::Lost { reason, at_ms: 5 }, cause, detail);
        }
        let cut = stored_miss(cut_miss(9)).unwrap();
        assert_eq!((cut.tokens, cut.cause), (9, Cause::OldestForgotten));
        seen.push(cut.cause);
        // Of this one the conversation knows: see `savings::name_change`.
        seen.push(Cause::TemplateChanged);
        for cause in Cause::ALL {
            assert!(seen.contains(cause), "nothing leads to {cause:?}");
        }
        let unknown = CacheMiss {
            num_tokens: 1,
            cause: "of a later version".to_owned(),
            detail: None,
            at_ms: None,
        };
        assert_eq!(stored_miss(unknown), None, "its text is shown then");
    }

    #[test]
    fn durations_are_rounded_to_one_unit() {
        for (milliseconds, expected) in [
            (-5, "a moment ago"),
            (59_999, "a moment ago"),
            (60_000, "1 minute ago"),
            (3_599_999, "59 minutes ago"),
            (2 * 3_600_000, "2 hours ago"),
            (DAY_MS, "1 day ago"),
            (9 * DAY_MS, "9 days ago"),
        ] {
            assert_eq!(ago(milliseconds), expected);
        }
    }
}
