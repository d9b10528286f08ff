//! Wire types of the settings: what they are set for, and where each was set.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use ts_rs::TS;

use crate::settings::{SettingScope, Settings};
use crate::wire::setting_values::ThinkingChoices;

/// What settings are set for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum SettingTarget {
    /// All chats.
    App,
    /// What a model answers.
    Model { name: String },
    /// All conversations with a persona.
    Persona { id: String },
    /// One conversation.
    Chat { id: String },
}

/// Values of some settings, by key.
pub type SettingValues = BTreeMap<String, Value>;

/// Named parameters of answers, which chats can be given together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct Preset {
    pub id: String,
    pub name: String,
    #[ts(type = "Partial<Settings>")]
    pub values: SettingValues,
}

/// What chats are begun with, by a name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct Persona {
    pub id: String,
    pub name: String,
    /// What conversations that are begun with it begin with; empty when there is none.
    pub system_prompt: String,
    /// The model of conversations that are begun with it; none: the one that is loaded.
    pub model: Option<String>,
    /// The parameters of their answers, as far as they set none themselves.
    #[ts(type = "Partial<Settings>")]
    pub values: SettingValues,
}

/// The values that hold for a target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct ResolvedSettings {
    pub settings: Settings,
    /// Where each value was set; a setting that is missing here has its default.
    #[ts(type = "{ [key in keyof Settings]?: SettingScope }")]
    pub from: BTreeMap<String, SettingScope>,
    /// How much the target's model can be told to think; none: no model is known.
    pub thinking: Option<ThinkingChoices>,
}
