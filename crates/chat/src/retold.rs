//! Conversations that are told in other turns than they were given in, for templates that refuse those.

use serde_json::Value as Json;

use crate::prompt::TextPlace;
use crate::turn::{Turn, TurnsPrompt};
use crate::{Message, Role};

/// Separates the text of a turn from what is joined to it.
pub(crate) const GAP: &str = "\n\n";

/// Turns that tell a conversation, and where the text of each given turn is in them.
#[derive(Default)]
pub(crate) struct Retold {
    turns: Vec<Turn>,
    /// For each given turn, the turn that has its text now, and how many bytes come before it there.
    places: Vec<(usize, usize)>,
}

impl Retold {
    /// Adds a turn that was not given.
    pub(crate) fn add(&mut self, turn: Turn) {
        self.turns.push(turn);
    }

    /// Adds the next given turn as `turn`, whose text has `num_before` bytes before the given one.
    pub(crate) fn push(&mut self, turn: Turn, num_before: usize) {
        self.places.push((self.turns.len(), num_before));
        self.turns.push(turn);
    }

    /// Adds the text of the next given turn to the last turn, if that is a message of the user.
    pub(crate) fn join(&mut self, before: &str, text: &str, after: &str) -> bool {
        let Some((Turn::Message(last), others)) = self.turns.split_last_mut() else { return false };
        if last.role != Role::User {
            return false;
        }
        last.content += before;
        self.places.push((others.len(), last.content.len()));
        last.content += text;
        last.content += after;
        // The stored tokens are those of the text before.
        last.token_ids = None;
        true
    }

    /// Ends as the given prompt does. Breakpoints stay at their texts.
    pub(crate) fn into_prompt(self, given: &TurnsPrompt, tools: Vec<Json>) -> TurnsPrompt {
        let place = |at: &TextPlace| {
            let (turn, num_before) = *self.places.get(at.turn)?;
            Some(TextPlace { turn, num_bytes: num_before + at.num_bytes })
        };
        let breakpoints = given.breakpoints.iter().filter_map(place).collect();
        TurnsPrompt { turns: self.turns, tools, end: given.end, breakpoints }
    }
}

/// Whether a turn is a message with this role.
pub(crate) fn has_role(turn: &Turn, role: Role) -> bool {
    matches!(turn, Turn::Message(message) if message.role == role)
}

pub(crate) fn message(role: Role, content: String) -> Turn {
    Turn::Message(Message { role, content, token_ids: None })
}
