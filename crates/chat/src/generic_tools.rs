//! Tools for models whose chat template takes none: the conversation's texts tell of them, in the form
//! that most models have learned from others. How well such a model calls them is up to the model.

use serde_json::Value as Json;

use crate::Role;
use crate::retold::{GAP, Retold, has_role, message};
use crate::turn::{CallArguments, MadeCall, Turn, TurnsPrompt};

/// Begins the list of tools. Where it is missing in a prompt, the template has left the list out.
pub(crate) const LIST_MARKER: &str = "<tools>";

/// The message with the list of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListedBy {
    System,
    /// The first message of the user, for templates without system messages.
    User,
}

/// Rewrites a conversation as messages that tell of the tools, the calls and their results. A result
/// never makes two messages of the user follow each other, which some templates refuse.
pub(crate) fn told_in_text(prompt: &TurnsPrompt, listed_by: ListedBy) -> TurnsPrompt {
    let mut told = Told::default();
    let (turns, list) = (&prompt.turns, list(&prompt.tools));
    let listing = match listed_by {
        ListedBy::System => turns.first().filter(|turn| has_role(turn, Role::System)).map(|_| 0),
        ListedBy::User => turns.iter().position(|turn| has_role(turn, Role::User)),
    };
    if listed_by == ListedBy::System && listing.is_none() {
        told.retold.add(message(Role::System, list.clone()));
    }
    for (index, turn) in turns.iter().enumerate() {
        let content = turn.content();
        if listing != Some(index) {
            told.add(turn);
        } else if listed_by == ListedBy::System {
            told.retold.push(message(Role::System, format!("{content}{GAP}{list}")), 0);
        } else {
            let before = format!("{list}{GAP}");
            told.retold.push(message(Role::User, format!("{before}{content}")), before.len());
        }
    }
    told.retold.into_prompt(prompt, Vec::new())
}

#[derive(Default)]
struct Told {
    retold: Retold,
    /// Whether the last turn has results, so that the user's next message joins it.
    has_results: bool,
}

impl Told {
    fn add(&mut self, turn: &Turn) {
        match turn {
            Turn::Answer { content, calls, .. } => {
                let parts = Some(content.clone()).filter(|content| !content.is_empty());
                let parts: Vec<String> =
                    parts.into_iter().chain(calls.iter().map(written)).collect();
                self.retold.push(message(Role::Assistant, parts.join("\n")), 0);
            }
            Turn::Result { content, .. } => {
                let (open, close) = ("<tool_response>\n", "\n</tool_response>");
                if !self.retold.join(&format!("\n{open}"), content, close) {
                    let told = format!("{open}{content}{close}");
                    self.retold.push(message(Role::User, told), open.len());
                }
            }
            turn => {
                let joins = self.has_results && has_role(turn, Role::User);
                if !(joins && self.retold.join(GAP, turn.content(), "")) {
                    self.retold.push(turn.clone(), 0);
                }
            }
        }
        self.has_results = matches!(turn, Turn::Result { .. });
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
