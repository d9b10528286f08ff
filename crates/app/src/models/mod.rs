//! The models: those on this machine, those of the hub, and which one is loaded.
//!
//! ```text
//! commands      the commands of the pages about models
//! own_settings  what a person sets for one model: whether it suits, and what follows
//! loading       chooses the model to load, loads it, unloads it; one caller loads at a time
//! draft         loads the draft model of the loaded one
//! list          the list of models on this machine; proposal says which answers where none is named
//! watching      notices models that other programs add and remove
//! locating      where models are
//! checking      what opening their files has shown: check opens them in a child process,
//!               check_child is that process
//! of_chats      which model answers a chat
//! names         which models there are; titles what they are called
//! loaded        those in memory
//! idle          unloads what nobody has used for a while
//! deletion      models that were deleted and can be brought back for a while
//! import        models from files and folders; rounding has what weights can be rounded to
//! measuring     measures in a child process what rounding costs; measure_child is that process,
//!               due_measurements what the next start goes on with
//! child         processes of the app's own program; child_tasks does what such a process is asked
//! hub_settings  follows the settings of the hub's address, folder and proxy
//! hub           searches, cards and the access token; token_store keeps that
//! downloads     begins, stops and ends downloads
//! revisions     newer versions of a model, and older ones
//! recommended   the models to begin with
//! thinking      how much a model can be told to think
//!
//! What is known, for the app to hold: catalog, removed_revisions, running_import, measurements,
//! download_queue, hub_account (with hub_options)
//! ```

pub(crate) mod catalog;
mod check;
mod check_child;
mod checking;
mod child;
mod child_tasks;
pub(crate) mod commands;
pub(crate) mod deletion;
pub(crate) mod download_queue;
pub(crate) mod downloads;
mod draft;
pub(crate) mod due_measurements;
pub(crate) mod hub;
pub(crate) mod hub_account;
pub(crate) mod hub_options;
pub(crate) mod hub_settings;
pub(crate) mod idle;
pub(crate) mod import;
pub(crate) mod list;
pub(crate) mod loaded;
pub(crate) mod loading;
pub(crate) mod locating;
mod measure_child;
pub(crate) mod measurements;
pub(crate) mod measuring;
pub(crate) mod names;
pub(crate) mod of_chats;
pub(crate) mod own_settings;
mod proposal;
pub(crate) mod recommended;
pub(crate) mod removed_revisions;
pub(crate) mod revisions;
mod rounding;
pub(crate) mod running_import;
pub(crate) mod thinking;
mod titles;
pub(crate) mod token_store;
pub(crate) mod watching;

pub use check_child::{CheckedFacts, ModelVerdict};
pub use child_tasks::run_child_if_asked;
pub use titles::model_title;
