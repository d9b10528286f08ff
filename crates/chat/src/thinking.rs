//! How much a model thinks before it answers, as far as its chat template lets one choose.
//!
//! Templates take that choice as variables: one switches thoughts off, another has efforts, a third
//! a budget. A template is asked by rendering: a small chat is rendered with each value, and a
//! value counts if it changes the text. So a template that only mentions a variable has no choice,
//! and one that knows three efforts of seven has three.
//!
//! ```text
//! ChatTemplate ─▶ thinking() ─▶ ThinkingChoices ─▶ allowed(wanted) ─▶ variables
//!                 (once)         off, low, medium
//! ```

use std::fmt;

use serde_json::{Map, Value as Json, json};

use crate::{ChatTemplate, Message, Role};

/// How much a model thinks, from least to most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Thinking {
    /// As much as the model's maker chose, but at most [`Thinking::Medium`]: by default some models
    /// think too long to come to an answer.
    Automatic,
    /// Not at all.
    Off,
    /// As much as it likes.
    On,
    /// As little as possible.
    Minimal,
    /// Briefly.
    Low,
    /// Not briefly and not long.
    Medium,
    /// Long.
    High,
    /// Very long.
    Xhigh,
    /// As long as possible.
    Max,
}

/// The names, in the order of the variants.
const NAMES: [(Thinking, &str); 9] = [
    (Thinking::Automatic, "automatic"),
    (Thinking::Off, "off"),
    (Thinking::On, "on"),
    (Thinking::Minimal, "minimal"),
    (Thinking::Low, "low"),
    (Thinking::Medium, "medium"),
    (Thinking::High, "high"),
    (Thinking::Xhigh, "xhigh"),
    (Thinking::Max, "max"),
];

const EFFORTS: [Thinking; 6] = [
    Thinking::Minimal,
    Thinking::Low,
    Thinking::Medium,
    Thinking::High,
    Thinking::Xhigh,
    Thinking::Max,
];

impl Thinking {
    /// The name, such as `medium`.
    pub fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// The level of this name. Names of other programs are known too: `none`, `auto`, `adaptive`.
    pub fn from_name(name: &str) -> Option<Thinking> {
        let name = name.trim().to_ascii_lowercase();
        match name.as_str() {
            "none" | "no_think" | "disabled" => Some(Thinking::Off),
            "enabled" => Some(Thinking::On),
            "auto" | "adaptive" | "default" => Some(Thinking::Automatic),
            name => NAMES.iter().find(|(_, known)| *known == name).map(|(level, _)| *level),
        }
    }

    /// The level that comes nearest to a budget of tokens for thoughts.
    pub fn from_budget(num_tokens: u64) -> Thinking {
        match num_tokens {
            0 => Thinking::Off,
            1..=4096 => Thinking::Low,
            4097..=16_384 => Thinking::Medium,
            _ => Thinking::High,
        }
    }

    /// The level that variables of a chat template ask for, whichever template they are meant for.
    fn from_variables(variables: &Map<String, Json>) -> Option<Thinking> {
        let switch = |is_on| {
            let mut switches = SWITCHES.iter().filter(|switch| switch.off == Value::Bool(false));
            switches.any(|switch| variables.get(switch.name) == Some(&Json::Bool(is_on)))
        };
        if switch(false) {
            return Some(Thinking::Off);
        }
        effort_in(variables).or_else(|| switch(true).then_some(Thinking::On))
    }
}

impl fmt::Display for Thinking {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// The levels that a template has, and the variables that it takes for each.
///
/// There are at least two, or none: then the model always thinks, or never. `Off` is the first if
/// there is one. The others are efforts, or only `On`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ThinkingChoices {
    levels: Vec<(Thinking, Map<String, Json>)>,
    own: Option<Thinking>,
}

impl ThinkingChoices {
    /// The levels, least first; empty if there is nothing to choose.
    pub fn levels(&self) -> impl ExactSizeIterator<Item = Thinking> + '_ {
        self.levels.iter().map(|(level, _)| *level)
    }

    /// The level of a prompt that says nothing. `None` if no level has the same prompt, or there is
    /// nothing to choose.
    pub fn own(&self) -> Option<Thinking> {
        self.own
    }

    /// Returns the wanted level, or the nearest one that the template has. `None` if the template
    /// is to be left alone.
    pub fn allowed(&self, wanted: Thinking) -> Option<Thinking> {
        let has = |level: Thinking| self.levels().any(|known| known == level);
        let efforts = || self.levels().filter(|level| *level > Thinking::On);
        // If two are equally near, the lower one, which answers sooner.
        let nearest = |level: Thinking| {
            efforts()
                .min_by_key(|known| (*known as u8).abs_diff(level as u8))
                .or(Some(Thinking::On))
        };
        let own_or_less = || match self.own {
            Some(own) if own > Thinking::Medium => {
                efforts().filter(|level| *level <= Thinking::Medium).last().or(efforts().next())
            }
            own => own,
        };
        match wanted {
            _ if self.levels.is_empty() => None,
            Thinking::Automatic => own_or_less(),
            level if has(level) => Some(level),
            Thinking::Off => self.levels().next(),
            Thinking::On => {
                own_or_less().filter(|level| *level != Thinking::Off).or(nearest(Thinking::Medium))
            }
            Thinking::Minimal if efforts().next().is_none() => Some(Thinking::Off),
            level => nearest(level),
        }
    }

    /// Adds to the `given` variables those that the `wanted` level needs. If the given ones ask for
    /// a level, also in the words of another template, that level counts instead.
    pub fn variables(&self, wanted: Thinking, given: Map<String, Json>) -> Map<String, Json> {
        let asked = Thinking::from_variables(&given);
        let Some(level) = self.allowed(asked.unwrap_or(wanted)) else { return given };
        let known = self.levels.iter().find(|(known, _)| *known == level);
        let needed = known.map(|(_, variables)| variables.clone()).unwrap_or_default();
        let mut variables = given;
        // A template may refuse an effort that it does not know; what it needs says the same.
        if effort_in(&variables).is_some() {
            variables.remove(EFFORT);
        }
        for (name, value) in needed {
            variables.entry(name).or_insert(value);
        }
        variables
    }
}

fn effort_in(variables: &Map<String, Json>) -> Option<Thinking> {
    variables.get(EFFORT)?.as_str().and_then(Thinking::from_name)
}

/// Removes the variables that say how much to think, whichever template they are meant for.
pub fn forget_thinking(variables: &mut Map<String, Json>) {
    variables.retain(|name, _| {
        name != EFFORT && name != BUDGET && !SWITCHES.iter().any(|switch| switch.name == name)
    });
}

const EFFORT: &str = "reasoning_effort";
const BUDGET: &str = "thinking_budget";

/// Tokens for thoughts, where a template takes any number.
const BUDGETS: [(Thinking, u32); 3] =
    [(Thinking::Low, 1024), (Thinking::Medium, 4096), (Thinking::High, 16_384)];

/// A value of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Bool(bool),
    Text(&'static str),
}

impl From<Value> for Json {
    fn from(value: Value) -> Json {
        match value {
            Value::Bool(value) => value.into(),
            Value::Text(value) => value.into(),
        }
    }
}

/// A variable that switches thoughts off and on.
struct Switch {
    name: &'static str,
    off: Value,
    on: Value,
}

impl Switch {
    const fn new(name: &'static str) -> Switch {
        Switch { name, off: Value::Bool(false), on: Value::Bool(true) }
    }

    const fn with_texts(name: &'static str, off: &'static str, on: &'static str) -> Switch {
        Switch { name, off: Value::Text(off), on: Value::Text(on) }
    }
}

/// The most common ones first: of several that a template takes, the first is used.
const SWITCHES: [Switch; 5] = [
    Switch::new("enable_thinking"),
    Switch::new("thinking"),
    Switch::new("enable_reasoning"),
    Switch::with_texts("thinking_mode", "disabled", "enabled"),
    Switch::with_texts("thinking_mode", "chat", "thinking"),
];

/// An effort that no template knows.
const UNKNOWN_EFFORT: &str = "qzx";

/// Finds the levels that a template has. A template that cannot be rendered has none.
pub(crate) fn probe(template: &ChatTemplate) -> ThinkingChoices {
    let template = template.for_one_prompt();
    let probe = Probe { template: &template };
    let Some(unset) = probe.text(&Map::new()) else { return ThinkingChoices::default() };
    let switch = probe.switch(&unset);
    let base = switch.as_ref().map(|switch| switch.on.clone()).unwrap_or_default();
    let thinking = if base.is_empty() { Some(unset.clone()) } else { probe.text(&base) };
    let mut efforts = thinking.as_ref().map(|text| probe.efforts(&base, text)).unwrap_or_default();
    if efforts.levels.is_empty() {
        efforts = probe.budgets(&base);
    }
    match switch {
        // One effort is no choice: then it is on or off.
        Some(Found { off, own, .. }) if efforts.levels.len() > 1 => {
            let own = if own == Some(Thinking::On) { efforts.own } else { own };
            let levels = [(Thinking::Off, off)].into_iter().chain(efforts.levels);
            ThinkingChoices { levels: levels.collect(), own }
        }
        Some(Found { off, on, own }) => {
            ThinkingChoices { levels: vec![(Thinking::Off, off), (Thinking::On, on)], own }
        }
        None => {
            let off = efforts.off.map(|off| (Thinking::Off, off));
            let levels: Vec<_> = off.into_iter().chain(efforts.levels).collect();
            if levels.len() < 2 {
                return ThinkingChoices::default();
            }
            ThinkingChoices { levels, own: efforts.own }
        }
    }
}

/// A switch that a template takes, with the variables for both of its values.
struct Found {
    off: Map<String, Json>,
    /// Empty if the template is on without being asked.
    on: Map<String, Json>,
    own: Option<Thinking>,
}

/// Efforts that a template takes.
#[derive(Default)]
struct Efforts {
    /// The effort that means no thoughts, if there is one.
    off: Option<Map<String, Json>>,
    levels: Vec<(Thinking, Map<String, Json>)>,
    own: Option<Thinking>,
}

struct Probe<'a> {
    template: &'a ChatTemplate,
}

impl Probe<'_> {
    /// Renders a question with and without a system prompt, up to the answer; `None` if the
    /// template refuses the variables. Some templates refuse a system prompt.
    fn text(&self, variables: &Map<String, Json>) -> Option<String> {
        let message =
            |role, content: &str| Message { role, content: content.to_owned(), token_ids: None };
        let template = self.template.clone().with_variables(variables.clone()).ok()?;
        let question = message(Role::User, "?");
        let alone = template.render(std::slice::from_ref(&question), true).ok()?;
        let instructed = template.render(&[message(Role::System, "!"), question], true);
        Some(alone + "\0" + &instructed.unwrap_or_default())
    }

    /// The first switch that changes the text.
    fn switch(&self, unset: &str) -> Option<Found> {
        SWITCHES.iter().find_map(|switch| {
            let set = |value: Value| Map::from_iter([(switch.name.to_owned(), value.into())]);
            let (off, on) = (set(switch.off), set(switch.on));
            let (off_text, on_text) = (self.text(&off)?, self.text(&on)?);
            if off_text == on_text {
                return None;
            }
            let own = match unset {
                unset if unset == off_text => Some(Thinking::Off),
                unset if unset == on_text => Some(Thinking::On),
                _ => None,
            };
            let on = if own == Some(Thinking::On) { Map::new() } else { on };
            Some(Found { off, on, own })
        })
    }

    /// The efforts that change the text, each with a text of its own. `thinking` is the text
    /// without one.
    fn efforts(&self, base: &Map<String, Json>, thinking: &str) -> Efforts {
        let with = |name: &str| {
            let mut variables = base.clone();
            variables.insert(EFFORT.to_owned(), name.into());
            (self.text(&variables), variables)
        };
        let (unknown, _) = with(UNKNOWN_EFFORT);
        // A template that writes whatever it is given was trained on the usual three.
        let writes_any = unknown.as_ref().is_some_and(|text| text.contains(UNKNOWN_EFFORT));
        let usual = Thinking::Low..=Thinking::High;
        let names = [(Thinking::Off, "none"), (Thinking::Off, "no_think")];
        let names = names.into_iter().chain(EFFORTS.map(|level| (level, level.name())));
        let rendered = names.filter(|(level, _)| !writes_any || usual.contains(level));
        let rendered: Vec<_> = rendered
            .filter_map(|(level, name)| {
                let (text, variables) = with(name);
                Some((level, name, text?, variables))
            })
            .collect();
        // A template may treat an unknown effort as one that it knows. The text of the known effort
        // then has its name more often than the other texts have.
        let is_named = |name: &str, text: &str| {
            let others = rendered.iter().filter(|(_, _, other, _)| other != text);
            let num = num_words(name, text);
            let most = others.map(|(_, _, other, _)| num_words(name, other)).max();
            most.is_some_and(|most| num > most)
        };
        let mut efforts = Efforts::default();
        let mut texts: Vec<(Thinking, &str)> = Vec::new();
        for (level, name, text, variables) in &rendered {
            let is_known = unknown.as_ref() != Some(text) || is_named(name, text);
            let twin = texts.iter().position(|(_, known)| known == text);
            if !is_known || twin.is_some() && !is_named(name, text) {
                continue;
            }
            if let Some(twin) = twin {
                let (level, _) = texts.remove(twin);
                efforts.levels.retain(|(known, _)| *known != level);
            }
            texts.push((*level, text));
            let is_own = text == thinking;
            if is_own {
                efforts.own = Some(*level);
            }
            let variables = if is_own { base.clone() } else { variables.clone() };
            match level {
                Thinking::Off => efforts.off = Some(variables),
                level => efforts.levels.push((*level, variables)),
            }
        }
        efforts
    }

    /// Budgets of tokens, if they change the text.
    fn budgets(&self, base: &Map<String, Json>) -> Efforts {
        let with = |num_tokens: u32| {
            let mut variables = base.clone();
            variables.insert(BUDGET.to_owned(), json!(num_tokens));
            variables
        };
        let texts = BUDGETS.map(|(_, num_tokens)| self.text(&with(num_tokens)));
        match &texts {
            [Some(low), Some(medium), Some(high)] if low != medium && medium != high => {
                let levels = BUDGETS.map(|(level, num_tokens)| (level, with(num_tokens)));
                Efforts { off: Some(with(0)), levels: levels.to_vec(), own: None }
            }
            _ => Efforts::default(),
        }
    }
}

/// Counts a word in a text; case does not matter.
fn num_words(word: &str, text: &str) -> usize {
    let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.split(|letter| !is_letter(letter)).filter(|known| known.eq_ignore_ascii_case(word)).count()
}
