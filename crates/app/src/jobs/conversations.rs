//! The texts of a job from conversations: of each its current branch, or what was asked in it last.

use cairn_chat::Role;
use cairn_store::Message;

use crate::answer_segment::AnswerSegment;
use crate::app::App;
use crate::wire::{ConversationPart, Failure};

/// The texts of conversations, in their order. One that is gone meanwhile fails.
pub(super) async fn texts(
    app: &App,
    ids: &[String],
    part: ConversationPart,
) -> Result<Vec<String>, Failure> {
    let mut texts = Vec::with_capacity(ids.len());
    for id in ids {
        app.store.listed_conversation(id).await?;
        texts.push(text(&app.store.branch(id).await?, part));
    }
    texts.retain(|text| !text.is_empty());
    Ok(texts)
}

fn text(branch: &[Message], part: ConversationPart) -> String {
    match part {
        ConversationPart::Whole => {
            let lines: Vec<String> = branch.iter().filter_map(line).collect();
            lines.join("\n\n")
        }
        ConversationPart::LastQuestion => {
            let mut questions = branch.iter().rev().filter(|message| message.role == Role::User);
            questions.find_map(said).unwrap_or_default()
        }
    }
}

/// A message behind who wrote it, in words that models know.
fn line(message: &Message) -> Option<String> {
    let author = match message.role {
        Role::System => "System",
        Role::User => "User",
        Role::Assistant => "Assistant",
    };
    Some(format!("{author}: {}", said(message)?))
}

/// The text of a message, of an answer without its reasoning; none if it has none.
fn said(message: &Message) -> Option<String> {
    let text = AnswerSegment::said(message.segments.as_deref(), &message.text);
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
