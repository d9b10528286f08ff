//! The cache_refs table: references of conversations and named prompt caches to positions in the
//! prompt cache. A row whose texts or numbers no version writes is skipped.

use std::collections::{BTreeSet, HashSet};

use cairn_prompt_cache::{CacheRef, Loss, LossReason, Namespace, Owner, RefName};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{FromRow, Row};

use crate::cache_columns::{namespace, number};
use crate::{Store, StoreError};

/// A row; none where it says something impossible.
struct RefRow(Option<CacheRef>);

impl FromRow<'_, SqliteRow> for RefRow {
    fn from_row(row: &SqliteRow) -> Result<RefRow, sqlx::Error> {
        let name: Option<RefName> = row.try_get::<&str, _>("owner")?.parse().ok();
        let namespace = namespace(row)?;
        let target: Option<&str> = row.try_get("chunk_key")?;
        let num_tokens = usize::try_from(row.try_get::<i64, _>("num_tokens")?).ok();
        let model_name = row.try_get("model")?;
        let is_pinned = row.try_get("is_pinned")?;
        let loss = loss(row)?;
        let cache_ref = || {
            Some(CacheRef {
                name: name?,
                namespace: namespace?,
                model_name,
                target: target.map(str::parse).transpose().ok()?,
                num_tokens: num_tokens?,
                is_pinned,
                loss: loss?,
            })
        };
        Ok(RefRow(cache_ref()))
    }
}

/// What a reference has lost, if anything; none where the number is impossible.
fn loss(row: &SqliteRow) -> Result<Option<Option<Loss>>, sqlx::Error> {
    let num_tokens = usize::try_from(row.try_get::<i64, _>("lost_tokens")?).ok();
    let reason: Option<&str> = row.try_get("lost_reason")?;
    let at_ms: Option<i64> = row.try_get("lost_at_ms")?;
    Ok(num_tokens.map(|num_tokens| {
        reason.map(LossReason::from_text).map(|reason| Loss {
            num_tokens,
            reason,
            at_ms: at_ms.unwrap_or_default(),
        })
    }))
}

impl Store {
    /// Every reference, ordered by its name as text.
    pub async fn cache_refs(&self) -> Result<Vec<CacheRef>, StoreError> {
        let rows: Vec<RefRow> = sqlx::query_as("select * from cache_refs order by owner")
            .fetch_all(&self.readers)
            .await
            .map_err(|error| self.failed(error))?;
        Ok(rows.into_iter().filter_map(|row| row.0).collect())
    }

    /// The conversations, named prompt caches and folders that are purged and still have references,
    /// ordered; and folders without documents. One that is deleted but can still be restored keeps its
    /// references.
    pub async fn purged_owners(&self) -> Result<Vec<Owner>, StoreError> {
        let [names, conversations, named, folders] = [
            "select owner from cache_refs",
            "select id from conversations",
            "select id from named_caches",
            "select distinct folder_id from folder_documents where folder_id is not null",
        ]
        .map(|select| sqlx::query_scalar::<_, String>(select).fetch_all(&self.readers));
        // The references first: whatever is made meanwhile has none among them.
        let names = names.await.map_err(|error| self.failed(error))?;
        let conversations = conversations.await.map_err(|error| self.failed(error))?;
        let named = named.await.map_err(|error| self.failed(error))?;
        let conversations: HashSet<String> = conversations.into_iter().collect();
        let named: HashSet<String> = named.into_iter().collect();
        let folders = folders.await.map_err(|error| self.failed(error))?;
        let folders: HashSet<String> = folders.into_iter().collect();
        let is_gone = |owner: &Owner| match owner {
            Owner::Conversation(id) => !conversations.contains(id),
            Owner::Named(id) => !named.contains(id),
            Owner::Folder(id) => !folders.contains(id),
            Owner::Api(_) => false,
        };
        let owners = names.iter().filter_map(|name| Some(name.parse::<RefName>().ok()?.owner));
        let gone: BTreeSet<Owner> = owners.filter(is_gone).collect();
        Ok(gone.into_iter().collect())
    }

    /// The conversations, named prompt caches and folders that are deleted and can still be restored.
    pub async fn deleted_owners(&self) -> Result<BTreeSet<Owner>, StoreError> {
        let [conversations, named, folders] = [
            "select id from conversations where deleted_at_ms is not null",
            "select id from named_caches where deleted_at_ms is not null",
            "select id from folders where deleted_at_ms is not null",
        ]
        .map(|select| sqlx::query_scalar::<_, String>(select).fetch_all(&self.readers));
        let conversations = conversations.await.map_err(|error| self.failed(error))?;
        let named = named.await.map_err(|error| self.failed(error))?;
        let folders = folders.await.map_err(|error| self.failed(error))?;
        let conversations = conversations.into_iter().map(Owner::Conversation);
        let named = named.into_iter().map(Owner::Named);
        Ok(conversations.chain(named).chain(folders.into_iter().map(Owner::Folder)).collect())
    }
}

pub(crate) async fn put(
    tx: &mut SqliteConnection,
    cache_ref: &CacheRef,
) -> Result<(), sqlx::Error> {
    let Namespace { model, kv_format, provenance } = &cache_ref.namespace;
    let loss = cache_ref.loss.as_ref();
    let done = sqlx::query(
        "insert or replace into cache_refs
             (owner, fingerprint, kv_format, provenance, model, chunk_key, num_tokens, is_pinned, lost_tokens, lost_reason, lost_at_ms)
         values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(cache_ref.name.to_string())
    .bind(model.as_str())
    .bind(kv_format.to_string())
    .bind(provenance.to_string())
    .bind(&cache_ref.model_name)
    .bind(cache_ref.target.map(|key| key.to_string()))
    .bind(number(cache_ref.num_tokens))
    .bind(cache_ref.is_pinned)
    .bind(loss.map_or(0, |loss| number(loss.num_tokens)))
    .bind(loss.map(|loss| loss.reason.to_string()))
    .bind(loss.map(|loss| loss.at_ms))
    .execute(tx)
    .await;
    done.map(drop)
}

pub(crate) async fn delete(tx: &mut SqliteConnection, name: &RefName) -> Result<(), sqlx::Error> {
    let delete = sqlx::query("delete from cache_refs where owner = ?").bind(name.to_string());
    delete.execute(tx).await.map(drop)
}
