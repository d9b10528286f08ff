//! The settings, as one table: `table.rs` has a row for each, from which the struct, the checks,
//! the TypeScript twin and the rows of the settings dialog follow.
//!
//! ```text
//! table.rs ─► Settings, TABLE ─► wire.ts, ui/src/settings/table.ts (`cargo xtask bindings`)
//!
//! request ► chat ► persona ► model ► app ► generation_config.json ► default
//!     the first that sets a value wins: resolve() in overrides.rs
//! ```
//!
//! Only what a person has set is saved: for all chats under one key of the settings table, for a
//! model under its name, for a chat in its row.

mod app_settings;
pub(crate) mod commands;
mod generation_config;
mod overrides;
mod row;
pub(crate) mod sampling;
mod settings_macro;
mod table;

pub(crate) use app_settings::AppSettings;
pub(crate) use overrides::{SettingOverrides, resolve};
pub use row::{SettingKind, SettingRow, SettingScope, SettingSection};
pub(crate) use table::stop_strings;
pub use table::{Settings, TABLE};
