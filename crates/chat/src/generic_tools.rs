//! Tools for models whose chat template takes none: the conversation's texts tell of them, in the form
//! that most models have learned from others. How well such a model calls them is up to the model.

use serde_json::Value as Json;

use crate::prompt::TextPlace;
use crate::turn::{CallArguments, MadeCall, Turn, TurnsPrompt};
use crate::{Message, Role};

/// Separates what one message says from what is joined to it.
const GAP: &str = "\n\n";
/// Begins the list of tools. Where it is missing in a prompt, the template has left the list out.
pub(crate) const LIST_MARKER: &str = "<tools>";

/// Which message lists the tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListedBy {
    System,
    /// The first message of the user, for templates without system messages.
    User,
}

/// Rewrites a conversation as messages that tell of the tools, the calls and their results. No two
/// messages of the user follow each other, which some templates refuse. Breakpoints stay at their texts.
pub(crate) fn told_in_text(prompt: &TurnsPrompt, listed_by: ListedBy) -> TurnsPrompt {
    let mut told = Told::default();
    let list = list(&prompt.tools);
    let has_system = is_of(prompt.turns.first(), Role::System);
    if listed_by == ListedBy::System && !has_system {
        told.turns.push(message(Role::System, list.clone()));
    }
    let mut is_listed = listed_by == ListedBy::System;
    for (index, turn) in prompt.turns.iter().enumerate() {
        if index == 0 && has_system && listed_by == ListedBy::System {
            told.places.push((0, 0));
            let content = format!("{}{GAP}{list}", turn.content());
            told.turns.push(message(Role::System, content));
        } else if !is_listed && is_of(Some(turn), Role::User) {
            is_listed = true;
            told.places.push((told.turns.len(), list.len() + GAP.len()));
            let content = format!("{list}{GAP}{}", turn.content());
            told.turns.push(message(Role::User, content));
        } else {
            told.add(turn);
        }
    }
    let place = |at: &TextPlace| {
        let (turn, num_before) = *told.places.get(at.turn)?;
        Some(TextPlace { turn, num_bytes: num_before + at.num_bytes })
    };
    let breakpoints = prompt.breakpoints.iter().filter_map(place).collect();
    TurnsPrompt { turns: told.turns, tools: Vec::new(), end: prompt.end, breakpoints }
}

#[derive(Default)]
struct Told {
    turns: Vec<Turn>,
    /// For each given turn, the turn that has its text now, and how many bytes come before it there.
    places: Vec<(usize, usize)>,
    /// Whether the last turn has results, so that the user's next message joins it.
    has_results: bool,
}

impl Told {
    fn add(&mut self, turn: &Turn) {
        match turn {
            Turn::Answer { content, calls, .. } => {
                self.places.push((self.turns.len(), 0));
                let mut content = content.clone();
                for call in calls {
                    if !content.is_empty() {
                        content.push('\n');
                    }
                    content += &written(call);
                }
                self.turns.push(message(Role::Assistant, content));
                self.has_results = false;
            }
            Turn::Result { content, .. } => {
                const OPEN: &str = "<tool_response>\n";
                self.join(OPEN, content, "\n</tool_response>", true);
            }
            turn if is_of(Some(turn), Role::User) => self.join("", turn.content(), "", false),
            turn => {
                self.places.push((self.turns.len(), 0));
                self.turns.push(turn.clone());
                self.has_results = false;
            }
        }
    }

    /// Adds a text of the user's side, to the last message if there is one that it continues.
    fn join(&mut self, before: &str, text: &str, after: &str, is_result: bool) {
        if (self.has_results || is_result)
            && let Some(Turn::Message(last)) = self.turns.last_mut()
            && last.role == Role::User
        {
            last.content += if is_result { "\n" } else { GAP };
            last.content += before;
            let num_before = last.content.len();
            last.content += text;
            last.content += after;
            // The stored tokens are those of the text before.
            last.token_ids = None;
            self.places.push((self.turns.len() - 1, num_before));
        } else {
            self.places.push((self.turns.len(), before.len()));
            self.turns.push(message(Role::User, format!("{before}{text}{after}")));
        }
        self.has_results = is_result;
    }
}

/// Lists tools, and says how to call one.
fn list(tools: &[Json]) -> String {
    let lines: Vec<String> = tools.iter().map(Json::to_string).collect();
    format!(
        "You can call functions. These are there, each with a schema of its arguments:\n\
         {LIST_MARKER}\n{}\n</tools>\n\
         To call one, write nothing but its name and its arguments, as JSON between these tags:\n\
         <tool_call>\n{{\"name\": \"NAME\", \"arguments\": {{}}}}\n</tool_call>\n\
         Its result comes with the next message. If you need none, answer in words.",
        lines.join("\n")
    )
}

/// A call as the model is told to write one.
fn written(call: &MadeCall) -> String {
    let name = Json::from(call.name.as_str());
    let arguments = match &call.arguments {
        CallArguments::Object(arguments) => Json::Object(arguments.clone()).to_string(),
        CallArguments::Text(text) => text.clone(),
    };
    format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>")
}

fn is_of(turn: Option<&Turn>, role: Role) -> bool {
    matches!(turn, Some(Turn::Message(message)) if message.role == role)
}

fn message(role: Role, content: String) -> Turn {
    Turn::Message(Message { role, content, token_ids: None })
}
