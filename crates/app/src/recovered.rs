//! The notice that the user sees after a damaged database was replaced.

use std::path::Path;

use cairn_store::Recovery;

use crate::wire::{Event, NoticeKind, NoticeLevel};

/// Says what was recovered, what was not, and where the damaged file is.
pub(crate) fn sentences(recovery: &Recovery) -> String {
    let Recovery { damaged, backup, num_conversations, total_conversations, .. } = recovery;
    let conversations = match total_conversations {
        Some(total) => format!("{num_conversations} of {}", counted(*total, "conversation")),
        None => counted(*num_conversations, "conversation"),
    };
    let verb = match total_conversations.unwrap_or(*num_conversations) {
        1 => "was",
        _ => "were",
    };
    let source = match backup {
        Some(backup) => format!(" from the backup {}", backup.display()),
        None => String::new(),
    };
    let unreadable = match num_unreadable(recovery) {
        0 => String::new(),
        count => format!(" {} could not be read.", counted(count, "message")),
    };
    format!(
        "The database was damaged. {conversations} {verb} recovered{source}.{unreadable} The damaged file is {}.",
        damaged.display()
    )
}

/// More messages than were counted can have been read out of a damaged file.
fn num_unreadable(recovery: &Recovery) -> i64 {
    recovery.total_messages.map_or(0, |total| (total - recovery.num_messages).max(0))
}

/// The notice of it, also for a window in another language.
pub(crate) fn notice(recovery: &Recovery) -> Event {
    let shown = |path: &Path| path.display().to_string();
    let kind = NoticeKind::Recovered {
        conversations: stored_count(recovery.num_conversations),
        total_conversations: recovery.total_conversations.map(stored_count),
        unreadable_messages: stored_count(num_unreadable(recovery)),
        backup: recovery.backup.as_deref().map(shown),
        damaged: shown(&recovery.damaged),
    };
    let text = sentences(recovery);
    Event::Notice { level: NoticeLevel::Error, text, kind: Some(Box::new(kind)) }
}

fn stored_count(count: i64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn counted(count: i64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notice_says_what_was_saved_and_where_the_old_file_is() {
        fn check(
            conversations: (i64, Option<i64>),
            messages: (i64, Option<i64>),
            backup: Option<&str>,
            expected: &str,
        ) {
            let recovery = Recovery {
                damaged: "/home/cairn.damaged-1.db".into(),
                backup: backup.map(Into::into),
                num_conversations: conversations.0,
                total_conversations: conversations.1,
                num_messages: messages.0,
                total_messages: messages.1,
            };
            let Event::Notice { level: NoticeLevel::Error, text, .. } = notice(&recovery) else {
                panic!("no notice")
            };
            let expected = format!(
                "The database was damaged. {expected} The damaged file is /home/cairn.damaged-1.db."
            );
            assert_eq!(text, expected);
        }
        check((12, Some(13)), (30, Some(30)), None, "12 of 13 conversations were recovered.");
        check(
            (1, Some(1)),
            (3, Some(4)),
            None,
            "1 of 1 conversation was recovered. 1 message could not be read.",
        );
        check((2, None), (3, None), None, "2 conversations were recovered.");
        check((0, None), (0, None), None, "0 conversations were recovered.");
        check(
            (3, Some(3)),
            (5, Some(5)),
            Some("/home/b.db"),
            "3 of 3 conversations were recovered from the backup /home/b.db.",
        );
    }
}
