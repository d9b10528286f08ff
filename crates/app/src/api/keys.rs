//! The keys of the API: making one, listing them, revoking one.

use std::fmt::Write;

use cairn_prompt_cache::Owner;
use cairn_store::ApiKeyRow;
use cairn_store::new_id;

use crate::app::App;
use crate::cache::follow;
use crate::cache::owners::is_of_key;
use crate::clock::now_ms;
use crate::names::checked_name;
use crate::wire::{ApiKey, Event, Failure, FailureCode, Reply};

const KEY_BYTES: usize = 32;

/// What is stored of a key. It has 256 random bits, so that its hash needs no salt and cannot be
/// searched.
pub(super) fn hash(key: &str) -> String {
    blake3::hash(key.as_bytes()).to_hex().to_string()
}

pub(super) async fn list(app: &App) -> Result<Vec<ApiKey>, Failure> {
    Ok(app.store.api_keys().await?.into_iter().map(wire).collect())
}

/// Makes a key. The reply is the only place where it ever stands.
pub(super) async fn make(app: &App, name: &str) -> Result<Reply, Failure> {
    let name = checked_name(name)?.to_owned();
    let secret = random_key()?;
    let id = new_id().to_string();
    let row = ApiKeyRow { id, name, created_at_ms: now_ms(), last_used_at_ms: None };
    app.store.create_api_key(&row, &hash(&secret)).await?;
    emit(app).await;
    Ok(Reply::ApiKeyMade { key: wire(row), secret })
}

/// Revokes a key, whose answers end. The context that is saved of its programs is deleted, or stays
/// until it is evicted.
pub(super) async fn revoke(app: &App, id: &str, deletes_saved: bool) -> Result<Reply, Failure> {
    let delete = async { Ok(app.store.delete_api_key(id).await?) };
    app.api.clients.revoke(id, delete).await?;
    forget_saved(app, id, deletes_saved).await;
    emit(app).await;
    Ok(Reply::Done)
}

/// Removes the references of a key to saved context, and with `deletes_saved` what nobody else
/// refers to.
async fn forget_saved(app: &App, id: &str, deletes_saved: bool) {
    let Some(handle) = app.engine.cache() else { return };
    // What the engine still holds of its last answers gets references now, not after this.
    app.engine.flush_cache().await;
    let owners = handle.ref_usages().into_iter().map(|usage| usage.cache_ref.name.owner);
    let owners: Vec<Owner> = owners.filter(|owner| is_of_key(owner, id)).collect();
    if deletes_saved {
        app.engine.forget_conversations().await;
        follow::release(app, handle, owners).await;
        // The reply means that the files are deleted, so wait for the writer.
        handle.flush().await;
    } else {
        owners.iter().for_each(|owner| handle.remove_ref(owner));
    }
}

/// Saves when a key was used last. That it was is no reason to fail.
pub(super) async fn note_use(app: &App, id: &str, now_ms: i64) {
    match app.store.touch_api_key(id, now_ms).await {
        Ok(()) => emit(app).await,
        Err(error) => tracing::debug!("the use of a key is not saved: {error}"),
    }
}

async fn emit(app: &App) {
    if let Ok(keys) = list(app).await {
        app.emit(Event::ApiKeys { keys });
    }
}

fn random_key() -> Result<String, Failure> {
    let mut bits = [0; KEY_BYTES];
    getrandom::fill(&mut bits).map_err(|error| {
        Failure::new(FailureCode::Storage, format!("A key cannot be made: {error}."))
    })?;
    Ok(bits.iter().fold("cairn-".to_owned(), |mut key, byte| {
        // Writing to a String cannot fail.
        let _ = write!(key, "{byte:02x}");
        key
    }))
}

fn wire(row: ApiKeyRow) -> ApiKey {
    let ApiKeyRow { id, name, created_at_ms, last_used_at_ms } = row;
    ApiKey { id, name, created_at_ms, last_used_at_ms }
}
