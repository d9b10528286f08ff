//! Personas: a system prompt, parameters of answers and a model by one name, which chats are begun with.
//!
//! A chat takes the system prompt over when it is begun, because its saved context begins with that; the
//! parameters are those that the persona has when an answer begins.

use std::sync::Arc;

use crate::app::App;
use crate::chat::creation::new_conversation;
use crate::clock::now_ms;
use crate::convert;
use crate::names::checked_name_of;
use crate::settings::{SettingOverrides, SettingScope};
use crate::wire::{Command, Event, Failure, Persona, Reply};

pub(crate) async fn run(app: &Arc<App>, command: Command) -> Result<Reply, Failure> {
    match command {
        Command::NewConversationAs { persona_id } => {
            let row = app.store.create_conversation_as(now_ms(), &persona_id).await?;
            return Ok(new_conversation(app, row).await);
        }
        Command::CreatePersona { name, system_prompt, model, values } => {
            let mut overrides = SettingOverrides::none(SettingScope::Persona);
            overrides.replace_parameters(values).map_err(Failure::from)?;
            let persona = cairn_store::Persona {
                id: String::new(),
                name: checked_name_of("persona", &name)?.to_owned(),
                system_prompt: prompt(&system_prompt).to_owned(),
                model: model.filter(|name| !name.is_empty()),
                setting_overrides: overrides.to_json(),
                created_at_ms: now_ms(),
            };
            let persona = convert::persona(app.store.create_persona(persona).await?);
            emit(app).await;
            return Ok(Reply::Persona { persona });
        }
        Command::ChangePersona { id, name, system_prompt, model } => {
            let model = model.as_deref().filter(|name| !name.is_empty());
            let (name, prompt) = (checked_name_of("persona", &name)?, prompt(&system_prompt));
            app.store.change_persona(&id, name, prompt, model).await?;
        }
        Command::DeletePersona { id } => {
            app.store.delete_persona(&id, now_ms()).await?;
            // What holds for its chats is another thing now.
            app.emit(Event::Settings { settings: app.settings() });
        }
        Command::RestorePersona { id } => {
            app.store.restore_persona(&id).await?;
            app.emit(Event::Settings { settings: app.settings() });
        }
        _ => return Err(Failure::invalid("This command is run elsewhere.")),
    }
    emit(app).await;
    Ok(Reply::Done)
}

/// White space alone says nothing to a model.
fn prompt(text: &str) -> &str {
    if text.trim().is_empty() { "" } else { text }
}

/// All personas.
pub(crate) async fn list(app: &App) -> Result<Vec<Persona>, Failure> {
    Ok(app.store.personas().await?.into_iter().map(convert::persona).collect())
}

/// Sends all personas after a change; the change itself has succeeded.
pub(crate) async fn emit(app: &App) {
    match list(app).await {
        Ok(personas) => app.emit(Event::Personas { personas }),
        Err(failure) => tracing::debug!("changed personas are not sent: {}", failure.message),
    }
}
