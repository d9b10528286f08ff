//! Prompt caches that leave as files and come in as files: preview first, then the import that a person confirms.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cairn_engine::{EngineError, ExportRequest, Import, PromptFileInfo, PromptKind};
use cairn_store::{NamedCacheKind, NamedCacheRow, StoreError};
use uuid::Uuid;

use crate::app::{App, now_ms};
use crate::caches::{self, checked_name, conversation_owner, named_owner};
use crate::convert;
use crate::wire::{CacheSource, Failure, FailureCode, ImportPreview, Reply};

/// The files that have been previewed and are neither imported nor given up. Owned by [`crate::App`].
#[derive(Debug, Default)]
pub(crate) struct Imports(Mutex<HashMap<String, Previewed>>);

#[derive(Debug, Clone)]
struct Previewed {
    file: PathBuf,
    file_name: String,
    /// A copy that Cairn made, and removes.
    is_temporary: bool,
}

impl Imports {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Previewed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets one, and removes its file where that is Cairn's own copy.
    fn end(&self, token: &str) {
        let previewed = self.lock().remove(token);
        if let Some(Previewed { file, is_temporary: true, .. }) = previewed {
            // What stays is swept with the folder at the next start.
            let _ = std::fs::remove_file(file);
        }
    }
}

impl App {
    /// What a prompt-cache file holds and whether it can be imported, for a person to decide. `is_temporary` files are removed when that is
    /// done.
    pub async fn preview_import(&self, file: PathBuf, file_name: &str, is_temporary: bool) -> Result<ImportPreview, Failure> {
        let token = Uuid::now_v7().to_string();
        let previewed = Previewed { file: file.clone(), file_name: file_name.to_owned(), is_temporary };
        self.imports.lock().insert(token.clone(), previewed);
        let num_bytes = std::fs::metadata(&file).map_or(0, |metadata| metadata.len());
        let suggested_name = file_name.strip_suffix(".safetensors").unwrap_or(file_name).to_owned();
        let mut preview = ImportPreview {
            token,
            file_name: file_name.to_owned(),
            suggested_name,
            title: None,
            model: String::new(),
            kind: PromptKind::Prompt.as_str().to_owned(),
            tokens: 0,
            bytes: num_bytes,
            start_text: None,
            end_text: None,
            made_by: None,
            created_at_ms: None,
            problem: None,
            warnings: Vec::new(),
            can_check: false,
        };
        match self.engine.inspect_prompt_file(&file).await {
            Ok(info) => describe(self, &mut preview, info).await,
            Err(EngineError::NoModel) => {
                let why = "Load the model that it was made with first: without it nothing of it can be checked.";
                preview.problem = Some(why.to_owned());
            }
            Err(error) => preview.problem = Some(about(&error, &file, file_name)),
        }
        Ok(preview)
    }

    /// Writes what is kept of a conversation, or a named prompt cache, to a file that mlx-lm reads too.
    pub async fn export_cache(&self, source: &CacheSource, file: &Path) -> Result<(), Failure> {
        let (owner, kind, title) = match source {
            CacheSource::Conversation { id } => {
                let row = self.store.conversation(id).await?.filter(|row| row.deleted_at_ms.is_none());
                let row = row.ok_or_else(|| StoreError::NoConversation { id: id.clone() })?;
                (conversation_owner(id), PromptKind::Conversation, row.title)
            }
            CacheSource::Named { id } => {
                let row = self.store.named_cache(id).await?.filter(|row| row.deleted_at_ms.is_none());
                let row = row.ok_or_else(|| StoreError::NoNamedCache { id: id.clone() })?;
                let kind = match row.kind {
                    NamedCacheKind::Prompt => PromptKind::Prompt,
                    NamedCacheKind::Conversation => PromptKind::Conversation,
                };
                (named_owner(id), kind, row.name)
            }
        };
        let made_by = format!("Cairn {}", env!("CARGO_PKG_VERSION"));
        let request = ExportRequest { owner, file: file.to_owned(), kind, title, made_by, created_at_ms: now_ms() };
        self.engine.export_prompt(request).await?;
        Ok(())
    }
}

async fn describe(app: &App, preview: &mut ImportPreview, info: PromptFileInfo) {
    if let Some(ids) = &info.token_ids {
        let (start, end) = caches::ends(app, &info.space.fingerprint, ids).await;
        (preview.start_text, preview.end_text) = (Some(start), Some(end));
    } else {
        preview.warnings.push("It does not say its tokens, so its text cannot be shown and only its shapes were checked.".to_owned());
    }
    if !info.is_model_proven {
        preview.warnings.push("It does not say by which version of the model it was made.".to_owned());
    }
    if let Some(title) = &info.title {
        preview.suggested_name = one_line(title);
    }
    preview.title = info.title.as_deref().map(one_line);
    preview.model = one_line(&info.model);
    preview.kind = info.kind.as_str().to_owned();
    preview.tokens = convert::tokens(info.num_tokens);
    preview.made_by = info.made_by.as_deref().map(one_line);
    preview.created_at_ms = info.created_at_ms;
    preview.can_check = info.can_check;
}

/// Imports a previewed file under a name.
pub(crate) async fn confirm(app: &App, token: &str, name: &str, check: bool) -> Result<Reply, Failure> {
    let name = checked_name(name)?;
    let previewed = app.imports.lock().get(token).cloned();
    let gone = || Failure::new(FailureCode::NotFound, "This import was given up: choose the file again.");
    let Previewed { file, file_name, .. } = previewed.ok_or_else(gone)?;
    if app.store.named_caches().await?.iter().any(|row| row.name == name) {
        return Err(StoreError::NameInUse { name }.into());
    }
    let id = Uuid::now_v7().to_string();
    let owner = named_owner(&id);
    let imported = app.engine.import_prompt_file(&file, Import { owner: owner.clone(), check }).await;
    let info = imported.map_err(|error| Failure::invalid(about(&error, &file, &file_name)))?;
    let (start_text, end_text) = match &info.token_ids {
        Some(ids) => caches::ends(app, &info.space.fingerprint, ids).await,
        None => Default::default(),
    };
    let row = NamedCacheRow {
        id: id.clone(),
        name,
        // As the model is called here, where that is known: the file's name for it may be a path elsewhere.
        model: app.loaded_model_name().unwrap_or(info.model),
        fingerprint: info.space.fingerprint,
        variant: info.space.variant,
        kind: match info.kind {
            PromptKind::Prompt => NamedCacheKind::Prompt,
            PromptKind::Conversation => NamedCacheKind::Conversation,
        },
        num_tokens: info.num_tokens as i64,
        token_ids: info.token_ids,
        title: info.title.as_deref().map(one_line).unwrap_or_default(),
        start_text,
        end_text,
        imported_from: Some(file_name),
        created_at_ms: now_ms(),
        last_used_at_ms: now_ms(),
        deleted_at_ms: None,
    };
    if let Err(error) = app.store.create_named_cache(&row).await {
        let window = caches::window(app)?;
        window.purge(&owner);
        window.remove_anchor(&owner);
        return Err(error.into());
    }
    app.imports.end(token);
    caches::tell_named(app).await;
    Ok(Reply::Named { named: caches::one_named(app, &id).await? })
}

/// Forgets a preview.
pub(crate) fn cancel(app: &App, token: &str) -> Result<Reply, Failure> {
    app.imports.end(token);
    Ok(Reply::Done)
}

/// An error about a file, under the name by which a person knows it.
fn about(error: &EngineError, file: &Path, file_name: &str) -> String {
    convert::sentence(error.to_string().replace(&file.display().to_string(), file_name))
}

/// Texts of a file that are shown as one line.
fn one_line(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).take(200).collect()
}
