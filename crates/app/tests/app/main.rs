//! The app through its interface: commands in, replies and events out, with a real store and a tiny
//! real model.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

mod answers;
mod api;
mod branches;
mod chat_files;
mod chat_models;
mod commands;
mod compare;
mod crashes;
mod database_file;
mod deletion;
mod documents;
mod finding;
mod folder_documents;
mod hub_settings;
mod jobs;
mod kit;
mod loops;
mod misses;
mod model_settings;
mod models;
mod monitor;
mod noticed_models;
mod opening;
mod per_chat;
mod probabilities;
mod reloading;
mod revisions;
mod saved_context;
mod script;
mod segments;
mod settings;
mod started_with;
mod starting_points;
mod thinking;
mod titles;
