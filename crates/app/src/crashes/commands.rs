//! Commands that answer the notice of a crash.

use std::sync::Arc;

use cairn_store::UncleanSubject;

use crate::app::App;
use crate::models::list;
use crate::wire::{Command, Failure, Reply};

/// Runs one command about crashes; every other command is a fault of the caller.
pub(crate) async fn run(app: &Arc<App>, command: Command) -> Result<Reply, Failure> {
    match command {
        Command::UseModelAnyway { name } => {
            if app.crashes.forgive(&app.store, [UncleanSubject::Model(name)]).await {
                list::emit(app).await;
            }
        }
        Command::EndQuietStart => app.crashes.end_quiet(),
        _ => return Err(Failure::invalid("This is not a command about crashes.")),
    }
    Ok(Reply::Done)
}
