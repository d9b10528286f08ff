//! The texts of a job from conversations: of each its current branch, or what was asked in it last.

use cairn_chat::Role;
use cairn_store::Message;

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
    let said = |message: &&Message| !message.text.trim().is_empty();
    match part {
        ConversationPart::Whole => {
            let messages: Vec<String> = branch.iter().filter(said).map(line).collect();
            messages.join("\n\n")
        }
        ConversationPart::LastQuestion => {
            let mut questions = branch.iter().rev().filter(|message| message.role == Role::User);
            questions.find(said).map(|message| message.text.trim().to_owned()).unwrap_or_default()
        }
    }
}

/// A message behind who wrote it, in words that models know.
fn line(message: &Message) -> String {
    let author = match message.role {
        Role::System => "System",
        Role::User => "User",
        Role::Assistant => "Assistant",
    };
    format!("{author}: {}", message.text.trim())
}
