//! A conversation as it is read from a request: its turns, and the breakpoints that its parts name.

use cairn_app::completion::{
    MadeCall, Message, PromptEnd, PromptInput, Role, TextPlace, Turn, TurnsPrompt,
};

use super::diagnosis::PromptShape;
use super::tools::{self, Tools};

/// How many breakpoints of a request are kept, the last ones: as many as at OpenAI and Anthropic.
const MAX_BREAKPOINTS: usize = 4;

/// What a message says in text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) text: String,
    /// The bytes of text before each breakpoint.
    breakpoints: Vec<usize>,
}

/// The turns read so far.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    turns: Vec<Turn>,
    breakpoints: Vec<TextPlace>,
    /// For each message of the request how many turns came before it.
    first_turns: Vec<usize>,
}

impl From<String> for Said {
    fn from(text: String) -> Self {
        Said { text, breakpoints: Vec::new() }
    }
}

impl Said {
    /// Adds what another part says, with its breakpoints.
    pub(super) fn join(&mut self, other: Said) {
        let num_before = self.text.len();
        self.text.push_str(&other.text);
        self.breakpoints.extend(other.breakpoints.iter().map(|at| num_before + at));
    }

    /// Adds a part; `ends_prefix` if it has a breakpoint.
    pub(super) fn add(&mut self, part: &str, ends_prefix: bool) {
        self.text.push_str(part);
        if ends_prefix {
            self.breakpoints.push(self.text.len());
        }
    }
}

impl Conversation {
    pub(super) fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// Notes that a message of the request begins, which may become several turns or a part of one.
    pub(super) fn begin_message(&mut self) {
        self.first_turns.push(self.turns.len());
    }

    /// The parts by which its prompt is compared with later ones.
    pub(super) fn shape(&self, tools: &Tools) -> PromptShape {
        PromptShape::new(&self.turns, &tools.for_template(), &self.first_turns)
    }

    /// Adds a message of text. Instructions that come in several messages are one, because many
    /// templates take only one. An answer's text belongs to the reasoning before it.
    pub(super) fn add_message(&mut self, role: Role, said: Said) {
        let num_before = match (self.turns.as_mut_slice(), role) {
            ([Turn::Message(system)], Role::System) if system.role == Role::System => {
                system.content.push_str("\n\n");
                let num_before = system.content.len();
                system.content.push_str(&said.text);
                num_before
            }
            ([.., Turn::Answer { content, calls, .. }], Role::Assistant)
                if content.is_empty() && calls.is_empty() =>
            {
                *content = said.text;
                0
            }
            _ => {
                let message = Message { role, content: said.text, token_ids: None };
                self.turns.push(Turn::Message(message));
                0
            }
        };
        self.add_breakpoints(num_before, &said.breakpoints);
    }

    /// Adds an answer.
    pub(super) fn add_answer(
        &mut self,
        said: Said,
        reasoning: Option<String>,
        calls: Vec<MadeCall>,
    ) {
        if reasoning.is_none() && calls.is_empty() {
            return self.add_message(Role::Assistant, said);
        }
        self.turns.push(Turn::Answer { content: said.text, reasoning, calls });
        self.add_breakpoints(0, &said.breakpoints);
    }

    /// Adds an answer of which only the reasoning is known yet.
    pub(super) fn add_reasoning(&mut self, reasoning: Option<String>) {
        let (content, calls) = (String::new(), Vec::new());
        self.turns.push(Turn::Answer { content, reasoning, calls });
    }

    /// Adds a call to the answer that it belongs to: the last one, if nothing came after it.
    pub(super) fn add_call(&mut self, call: MadeCall) {
        match self.turns.last_mut() {
            Some(Turn::Answer { calls, .. }) => calls.push(call),
            Some(last @ Turn::Message(Message { role: Role::Assistant, .. })) => {
                let content = last.content().to_owned();
                *last = Turn::Answer { content, reasoning: None, calls: vec![call] };
            }
            _ => self.add_answer(Said::default(), None, vec![call]),
        }
    }

    /// Adds the result of a call.
    pub(super) fn add_result(&mut self, call_id: String, said: Said) {
        let name = tools::called(&self.turns, &call_id);
        self.turns.push(Turn::Result { call_id, name, content: said.text });
        self.add_breakpoints(0, &said.breakpoints);
    }

    /// The prompt for its next answer.
    pub(super) fn prompt(self, tools: &Tools, end: PromptEnd) -> PromptInput {
        let Conversation { turns, mut breakpoints, .. } = self;
        let num_earlier = breakpoints.len().saturating_sub(MAX_BREAKPOINTS);
        breakpoints.drain(..num_earlier);
        PromptInput::Turns(TurnsPrompt { turns, tools: tools.for_template(), end, breakpoints })
    }

    fn add_breakpoints(&mut self, num_before: usize, breakpoints: &[usize]) {
        let turn = self.turns.len() - 1; // one has been added
        let place = |&bytes: &usize| TextPlace { turn, num_bytes: num_before + bytes };
        self.breakpoints.extend(breakpoints.iter().map(place));
    }
}

#[cfg(test)]
mod tests {
    use cairn_app::completion::CallArguments;

    use super::*;

    /// A message of parts, of which each is a text and whether a breakpoint follows it.
    fn said(parts: &[(&str, bool)]) -> Said {
        let mut said = Said::default();
        parts.iter().for_each(|(part, ends_prefix)| said.add(part, *ends_prefix));
        said
    }

    /// The texts before the breakpoints, each within its turn.
    fn breakpoints(conversation: Conversation) -> Vec<String> {
        let Conversation { turns, breakpoints, .. } = conversation;
        let before = |place: &TextPlace| turns[place.turn].content()[..place.num_bytes].to_owned();
        breakpoints.iter().map(before).collect()
    }

    #[test]
    fn breakpoints_stay_with_their_parts_when_messages_are_joined() {
        let mut conversation = Conversation::default();
        conversation.add_message(Role::System, said(&[("Be brief.", true)]));
        conversation.add_message(Role::System, said(&[("Be kind.", true), (" Or else.", false)]));
        conversation.add_message(Role::User, said(&[("A book.", true), ("Who wrote it?", false)]));
        conversation.add_result("c1".to_owned(), said(&[("Nobody.", true)]));
        let expected = ["Be brief.", "Be brief.\n\nBe kind.", "A book.", "Nobody."];
        assert_eq!(conversation.turns().len(), 3);
        assert_eq!(breakpoints(conversation), expected);
    }

    #[test]
    fn a_call_joins_the_answer_before_it() {
        let call = |id: &str| MadeCall {
            id: id.to_owned(),
            name: "look".to_owned(),
            arguments: CallArguments::Object(serde_json::Map::new()),
        };
        let mut conversation = Conversation::default();
        conversation.add_message(Role::User, Said::from("Where?".to_owned()));
        conversation.add_message(Role::Assistant, said(&[("I look.", true)]));
        conversation.add_call(call("c1"));
        conversation.add_call(call("c2"));
        let [_, Turn::Answer { content, calls, .. }] = conversation.turns() else {
            panic!("{conversation:?}")
        };
        assert_eq!((content.as_str(), calls.len()), ("I look.", 2));
        assert_eq!(breakpoints(conversation), ["I look."]);
    }

    #[test]
    fn the_last_breakpoints_are_kept() {
        let mut conversation = Conversation::default();
        let parts: Vec<(&str, bool)> = vec![("a", true); MAX_BREAKPOINTS + 2];
        conversation.add_message(Role::User, said(&parts));
        let prompt = conversation.prompt(&Tools::default(), PromptEnd::NewAnswer);
        let PromptInput::Turns(prompt) = prompt else { panic!("{prompt:?}") };
        let places: Vec<usize> = prompt.breakpoints.iter().map(|place| place.num_bytes).collect();
        assert_eq!(places, [3, 4, 5, 6]);
    }
}
