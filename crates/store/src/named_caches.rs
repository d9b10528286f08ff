//! The named_caches table: prompt caches that the user gave a name, and that conversations can
//! start from.

use cairn_prompt_cache::{KvFormat, Namespace};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{FromRow, Row};

use crate::cache_columns::namespace;
use crate::deletion::Deletable;
use crate::error::{no_named_cache, unknown};
use crate::{Store, StoreError, token_ids};

/// Where the tokens of a named prompt cache end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedCacheKind {
    /// In an open user turn.
    Prompt,
    /// After a closed assistant turn.
    Conversation,
}

impl NamedCacheKind {
    /// The name in the database, and in exported files.
    pub fn as_str(self) -> &'static str {
        match self {
            NamedCacheKind::Prompt => "prompt",
            NamedCacheKind::Conversation => "conversation",
        }
    }

    pub(crate) fn named(column: &str, name: &str) -> Result<NamedCacheKind, sqlx::Error> {
        let kinds = [NamedCacheKind::Prompt, NamedCacheKind::Conversation];
        kinds.into_iter().find(|kind| kind.as_str() == name).ok_or_else(|| unknown(column, name))
    }
}

/// A prompt cache with a name. Its position in the prompt cache is the reference `named/<id>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedCacheRow {
    /// UUID v7.
    pub id: String,
    /// Unique among those that are not deleted.
    pub name: String,
    /// The name of the model that read it.
    pub model: String,
    /// The namespace of its chunks.
    pub namespace: Namespace,
    /// Where its tokens end.
    pub kind: NamedCacheKind,
    /// How many tokens it has.
    pub num_tokens: i64,
    /// Those tokens; none if an imported file did not name them, and in the list of
    /// [`Store::named_caches`].
    pub token_ids: Option<Vec<u32>>,
    /// The title given when it was made; may be empty.
    pub title: String,
    /// The beginning of its text, to show.
    pub start_text: String,
    /// The end of its text, to show.
    pub end_text: String,
    /// The name of the file it was imported from; none for one made here.
    pub imported_from: Option<String>,
    /// In milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// When a conversation last started from it, in milliseconds since the Unix epoch.
    pub last_used_at_ms: i64,
    /// Set while the deletion can still be undone.
    pub deleted_at_ms: Option<i64>,
}

/// A named prompt cache in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedNamedCache {
    /// Its row, without the tokens.
    pub row: NamedCacheRow,
    /// Whether its tokens are known.
    pub has_token_ids: bool,
    /// How many conversations that are not deleted start from it.
    pub num_conversations: i64,
}

impl FromRow<'_, SqliteRow> for ListedNamedCache {
    fn from_row(row: &SqliteRow) -> Result<ListedNamedCache, sqlx::Error> {
        Ok(ListedNamedCache {
            row: NamedCacheRow::from_row(row)?,
            has_token_ids: row.try_get("has_token_ids")?,
            num_conversations: row.try_get("num_conversations")?,
        })
    }
}

impl FromRow<'_, SqliteRow> for NamedCacheRow {
    fn from_row(row: &SqliteRow) -> Result<NamedCacheRow, sqlx::Error> {
        Ok(NamedCacheRow {
            id: row.try_get("id")?,
            name: row.try_get("name")?,
            model: row.try_get("model")?,
            // A text that no version writes means tokens that are computed again.
            namespace: match namespace(row)? {
                Some(namespace) => namespace,
                None => {
                    Namespace::computed(row.try_get::<&str, _>("fingerprint")?, KvFormat::Plain)
                }
            },
            kind: NamedCacheKind::named("kind", row.try_get("kind")?)?,
            num_tokens: row.try_get("num_tokens")?,
            token_ids: token_ids::from_row(row, "token_ids")?,
            title: row.try_get("title")?,
            start_text: row.try_get("start_text")?,
            end_text: row.try_get("end_text")?,
            imported_from: row.try_get("imported_from")?,
            created_at_ms: row.try_get("created_at_ms")?,
            last_used_at_ms: row.try_get("last_used_at_ms")?,
            deleted_at_ms: row.try_get("deleted_at_ms")?,
        })
    }
}

impl Store {
    /// The named prompt caches that are not deleted, the one used last first. Their token ids,
    /// perhaps of whole books, are left out.
    pub async fn named_caches(&self) -> Result<Vec<ListedNamedCache>, StoreError> {
        sqlx::query_as(
            "select id, name, model, fingerprint, kv_format, provenance, kind, num_tokens, title, start_text, end_text, imported_from,
                 created_at_ms, last_used_at_ms, deleted_at_ms, null as token_ids, token_ids is not null as has_token_ids,
                 coalesce(begun.num_conversations, 0) as num_conversations
             from named_caches left join (
                 select prefix_named_id, count(*) as num_conversations from conversations
                 where prefix_named_id is not null and deleted_at_ms is null group by prefix_named_id
             ) as begun on begun.prefix_named_id = id
             where deleted_at_ms is null order by last_used_at_ms desc, id desc",
        )
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }

    /// A named prompt cache that is not deleted; otherwise [`StoreError::NoNamedCache`].
    pub async fn listed_named_cache(&self, id: &str) -> Result<NamedCacheRow, StoreError> {
        let row = self.named_cache(id).await?.filter(|row| row.deleted_at_ms.is_none());
        row.ok_or_else(|| no_named_cache(id))
    }

    /// One named prompt cache, also when it is deleted but not purged yet.
    pub async fn named_cache(&self, id: &str) -> Result<Option<NamedCacheRow>, StoreError> {
        sqlx::query_as("select * from named_caches where id = ?")
            .bind(id)
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// Saves a new one. Its `deleted_at_ms` is ignored; a name in use is refused with
    /// [`StoreError::NameInUse`].
    pub async fn create_named_cache(&self, cache: &NamedCacheRow) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        self.refuse_name_in_use(&mut tx, &cache.name, &cache.id).await?;
        sqlx::query(
            "insert into named_caches
                 (id, name, model, fingerprint, kv_format, provenance, kind, num_tokens, token_ids, title, start_text, end_text, imported_from,
                  created_at_ms, last_used_at_ms)
             values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(&cache.id)
        .bind(&cache.name)
        .bind(&cache.model)
        .bind(cache.namespace.model.as_str())
        .bind(cache.namespace.kv_format.to_string())
        .bind(cache.namespace.provenance.to_string())
        .bind(cache.kind.as_str())
        .bind(cache.num_tokens)
        .bind(cache.token_ids.as_deref().map(token_ids::to_blob))
        .bind(&cache.title)
        .bind(&cache.start_text)
        .bind(&cache.end_text)
        .bind(&cache.imported_from)
        .bind(cache.created_at_ms)
        .bind(cache.last_used_at_ms)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }

    /// Renames one that is not deleted; a name in use is refused with [`StoreError::NameInUse`].
    pub async fn rename_named_cache(&self, id: &str, name: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        self.refuse_name_in_use(&mut tx, name, id).await?;
        let done =
            sqlx::query("update named_caches set name = ? where id = ? and deleted_at_ms is null")
                .bind(name)
                .bind(id)
                .execute(&mut *tx)
                .await;
        self.changed_a_row(done, || no_named_cache(id))?;
        self.commit(tx).await
    }

    /// Removes one from the list and frees its name. It is purged when the file is opened after
    /// this program has closed it; until then [`Store::restore_named_cache`] restores it. Deleting
    /// it again changes nothing.
    pub async fn delete_named_cache(&self, id: &str, now_ms: i64) -> Result<(), StoreError> {
        self.delete_rows(Deletable::NamedCaches, &[id], now_ms).await
    }

    /// Undoes [`Store::delete_named_cache`]. Refused with [`StoreError::NameInUse`] if another has
    /// its name meanwhile.
    pub async fn restore_named_cache(&self, id: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let name: Option<String> = sqlx::query_scalar("select name from named_caches where id = ?")
            .bind(id)
            .fetch_optional(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        let name = name.ok_or_else(|| no_named_cache(id))?;
        self.refuse_name_in_use(&mut tx, &name, id).await?;
        sqlx::query(
            "update named_caches set deleted_at_ms = null, deleted_by_run_id = null where id = ?",
        )
        .bind(id)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }

    /// Records a use; an unknown id is ignored.
    pub async fn touch_named_cache(&self, id: &str, now_ms: i64) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query("update named_caches set last_used_at_ms = ? where id = ?")
            .bind(now_ms)
            .bind(id)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }

    /// Checked before writing, because the error of the unique index does not say which rule was
    /// broken.
    async fn refuse_name_in_use(
        &self,
        tx: &mut SqliteConnection,
        name: &str,
        id: &str,
    ) -> Result<(), StoreError> {
        let is_in_use: bool =
            sqlx::query_scalar("select exists (select 1 from named_caches where name = ? and deleted_at_ms is null and id <> ?)")
                .bind(name)
                .bind(id)
                .fetch_one(tx)
                .await
                .map_err(|error| self.failed(error))?;
        if is_in_use { Err(StoreError::NameInUse { name: name.to_owned() }) } else { Ok(()) }
    }
}
