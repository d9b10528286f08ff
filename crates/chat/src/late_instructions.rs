//! System messages after the first question. Agents send them when something has changed: another folder,
//! another set of helpers. Many templates take a system message at the beginning only; for those the
//! user's side tells it.

use crate::prompt::TextPlace;
use crate::turn::{Turn, TurnsPrompt};
use crate::{Message, Role};

/// Separates what one turn says from what is joined to it.
const GAP: &str = "\n\n";

/// Returns the texts of system messages after the first turn of another kind.
pub(crate) fn late_instructions(turns: &[Turn]) -> impl Iterator<Item = &str> {
    turns[num_at_beginning(turns)..].iter().filter(|turn| is_instruction(turn)).map(Turn::content)
}

/// How many system messages a conversation begins with.
fn num_at_beginning(turns: &[Turn]) -> usize {
    turns.iter().take_while(|turn| is_instruction(turn)).count()
}

fn is_instruction(turn: &Turn) -> bool {
    has_role(turn, Role::System)
}

fn has_role(turn: &Turn, role: Role) -> bool {
    matches!(turn, Turn::Message(message) if message.role == role)
}

/// Rewrites late system messages as parts of the user's turns. They never make two turns of the user in a
/// row, which some templates refuse. Breakpoints stay at their texts.
pub(crate) fn told_by_user(prompt: &TurnsPrompt) -> TurnsPrompt {
    let mut told = Told::default();
    let beginning = num_at_beginning(&prompt.turns);
    for (index, turn) in prompt.turns.iter().enumerate() {
        told.add(turn, index >= beginning && is_instruction(turn));
    }
    let place = |at: &TextPlace| {
        let (turn, num_before) = *told.places.get(at.turn)?;
        Some(TextPlace { turn, num_bytes: num_before + at.num_bytes })
    };
    let breakpoints = prompt.breakpoints.iter().filter_map(place).collect();
    TurnsPrompt { turns: told.turns, breakpoints, tools: prompt.tools.clone(), end: prompt.end }
}

#[derive(Default)]
struct Told {
    turns: Vec<Turn>,
    /// For each given turn, the turn that has its text now, and how many bytes come before it there.
    places: Vec<(usize, usize)>,
    /// Whether the last turn ends with instructions, so that the user's next message joins it.
    is_open: bool,
}

impl Told {
    fn add(&mut self, turn: &Turn, is_late: bool) {
        let joins = is_late || (self.is_open && has_role(turn, Role::User));
        if joins
            && let Some(Turn::Message(last)) = self.turns.last_mut()
            && last.role == Role::User
        {
            last.content.push_str(GAP);
            let num_before = last.content.len();
            last.content.push_str(turn.content());
            // The stored tokens are those of the text before.
            last.token_ids = None;
            self.places.push((self.turns.len() - 1, num_before));
            self.is_open = is_late;
            return;
        }
        self.places.push((self.turns.len(), 0));
        self.turns.push(if is_late { of_user(turn.content()) } else { turn.clone() });
        self.is_open = is_late;
    }
}

fn of_user(content: &str) -> Turn {
    Turn::Message(Message { role: Role::User, content: content.to_owned(), token_ids: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::PromptEnd;

    fn message(role: Role, content: &str) -> Turn {
        Turn::Message(Message { role, content: content.to_owned(), token_ids: None })
    }

    /// Turns of letters: `s` system, `u` user, `a` answer, each followed by its text.
    fn turns(written: &[&str]) -> Vec<Turn> {
        let turn = |turn: &&str| {
            let (role, content) = turn.split_at(1);
            let role = match role {
                "s" => Role::System,
                "u" => Role::User,
                _ => Role::Assistant,
            };
            message(role, content)
        };
        written.iter().map(turn).collect()
    }

    #[test]
    fn user_tells_late_instructions() {
        let check = |given: &[&str], expected: &[&str]| {
            let places = given.iter().enumerate();
            let breakpoints =
                places.map(|(turn, text)| TextPlace { turn, num_bytes: text.len() - 1 });
            let prompt = TurnsPrompt {
                turns: turns(given),
                tools: Vec::new(),
                end: PromptEnd::NewAnswer,
                breakpoints: breakpoints.collect(),
            };
            let told = told_by_user(&prompt);
            assert_eq!(told.turns, turns(expected), "{given:?}");
            for (place, text) in told.breakpoints.iter().zip(given) {
                let before = &told.turns[place.turn].content()[..place.num_bytes];
                assert!(before.ends_with(&text[1..]), "{given:?}: {before}");
            }
        };
        check(&["sbe brief", "uhi", "ayes"], &["sbe brief", "uhi", "ayes"]);
        check(&["uhi", "snew"], &["uhi\n\nnew"]);
        check(&["uhi", "ayes", "snew", "uand?"], &["uhi", "ayes", "unew\n\nand?"]);
        check(&["uhi", "ayes", "sone", "stwo", "uand?"], &["uhi", "ayes", "uone\n\ntwo\n\nand?"]);
        check(&["uhi", "sone", "uand?"], &["uhi\n\none\n\nand?"]);
        check(&["sa", "sb", "uhi", "sc", "ayes"], &["sa", "sb", "uhi\n\nc", "ayes"]);
    }
}
