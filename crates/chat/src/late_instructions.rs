//! System messages after the first question. Agents send them when something has changed: another folder,
//! another set of helpers. Many templates take a system message at the beginning only; for those the
//! user's side tells it.

use crate::Role;
use crate::retold::{GAP, Retold, has_role, message};
use crate::turn::{Turn, TurnsPrompt};

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

/// Rewrites late system messages as parts of the user's turns. They never make two turns of the user in a
/// row, which some templates refuse. Breakpoints stay at their texts.
pub(crate) fn told_by_user(prompt: &TurnsPrompt) -> TurnsPrompt {
    let mut retold = Retold::default();
    let beginning = num_at_beginning(&prompt.turns);
    // Whether the last turn ends with instructions, so that the user's next message joins it.
    let mut is_open = false;
    for (index, turn) in prompt.turns.iter().enumerate() {
        let is_late = index >= beginning && is_instruction(turn);
        let joins = is_late || (is_open && has_role(turn, Role::User));
        if !(joins && retold.join(GAP, turn.content(), "")) {
            let told =
                if is_late { message(Role::User, turn.content().to_owned()) } else { turn.clone() };
            retold.push(told, 0);
        }
        is_open = is_late;
    }
    retold.into_prompt(prompt, prompt.tools.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::TextPlace;
    use crate::turn::PromptEnd;

    /// Turns of letters: `s` system, `u` user, `a` answer, each followed by its text.
    fn turns(written: &[&str]) -> Vec<Turn> {
        let turn = |turn: &&str| {
            let (role, content) = turn.split_at(1);
            let role = match role {
                "s" => Role::System,
                "u" => Role::User,
                _ => Role::Assistant,
            };
            message(role, content.to_owned())
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
