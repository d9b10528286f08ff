//! The values of settings that have names.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum Appearance {
    System,
    Light,
    Dark,
}

/// What becomes of a chat that has outgrown its model's context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum AtOverflow {
    /// It ends there.
    Stop,
    /// Its oldest turns are no longer read.
    Forget,
    /// The model writes a summary, which is read instead of them.
    Summarize,
}

/// After what time without use a model leaves memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum IdleUnload {
    Never,
    FiveMinutes,
    FifteenMinutes,
    OneHour,
    FourHours,
}

/// Whether tokens are proposed that the model checks, without a draft model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum Speed {
    /// None are.
    Plain,
    /// What followed the same words in the chat before, where that was measured to pay.
    Automatic,
}

/// In how many bits keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum KvBits {
    /// As computed.
    Plain,
    EightBits,
    FourBits,
}
