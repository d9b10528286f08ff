//! Presets: named parameters of answers, which a chat takes all at once.

use std::sync::Arc;

use crate::app::App;
use crate::clock::now_ms;
use crate::convert;
use crate::names::checked_name_of;
use crate::settings::{SettingOverrides, SettingScope};
use crate::wire::{Command, Event, Failure, FailureKind, Preset, Reply};

pub(crate) async fn run(app: &Arc<App>, command: Command) -> Result<Reply, Failure> {
    match command {
        Command::CreatePreset { name, values } => {
            let name = free_name(app, None, &name).await?;
            let mut overrides = SettingOverrides::none(SettingScope::Persona);
            overrides.replace_parameters(values).map_err(Failure::from)?;
            let Some(json) = overrides.to_json() else {
                let why = "A preset needs at least one value: change one for this chat first.";
                return Err(Failure::invalid(why).of_kind(FailureKind::EmptyPreset));
            };
            app.store.create_preset(&name, &json, now_ms()).await?;
        }
        Command::RenamePreset { id, name } => {
            let name = free_name(app, Some(&id), &name).await?;
            app.store.rename_preset(&id, &name).await?;
        }
        Command::DeletePreset { id } => app.store.delete_preset(&id, now_ms()).await?,
        Command::RestorePreset { id } => app.store.restore_preset(&id).await?,
        _ => return Err(Failure::invalid("This command is run elsewhere.")),
    }
    match list(app).await {
        Ok(presets) => app.emit(Event::Presets { presets }),
        Err(failure) => tracing::debug!("changed presets are not sent: {}", failure.message),
    }
    Ok(Reply::Done)
}

/// All presets.
pub(crate) async fn list(app: &App) -> Result<Vec<Preset>, Failure> {
    Ok(app.store.presets().await?.into_iter().map(convert::preset).collect())
}

/// A name that no other preset has: nobody could tell the two apart.
async fn free_name(app: &App, id: Option<&str>, name: &str) -> Result<String, Failure> {
    let name = checked_name_of("preset", name)?;
    let presets = list(app).await?;
    if presets.iter().any(|other| other.name == name && Some(other.id.as_str()) != id) {
        let why = format!("There is already a preset with the name “{name}”: choose another name.");
        let kind = FailureKind::NameTaken { name: name.to_owned() };
        return Err(Failure::invalid(why).of_kind(kind));
    }
    Ok(name.to_owned())
}
