//! The personas table: what conversations are begun with, by a name; and which conversation has which.

use sqlx::SqliteConnection;

use crate::deletion::Deletable;
use crate::error::no_persona;
use crate::new_id;
use crate::{Store, StoreError};

/// A named system prompt, with values of settings and a model.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Persona {
    /// UUID v7.
    pub id: String,
    /// What it is called; two may be called the same.
    pub name: String,
    /// What every conversation that is begun with it begins with; empty when there is none.
    pub system_prompt: String,
    /// The model of conversations that are begun with it; none: the one that is loaded.
    pub model: Option<String>,
    /// A JSON object by the setting's key; none where nothing is set.
    pub setting_overrides: Option<String>,
    /// In milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

impl Store {
    /// The personas that are not deleted, in the order in which they were made.
    pub async fn personas(&self) -> Result<Vec<Persona>, StoreError> {
        sqlx::query_as(
            "select id, name, system_prompt, model, setting_overrides, created_at_ms from personas
             where deleted_at_ms is null order by created_at_ms, id",
        )
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }

    /// One persona that is not deleted.
    pub async fn persona(&self, id: &str) -> Result<Persona, StoreError> {
        let persona = sqlx::query_as(
            "select id, name, system_prompt, model, setting_overrides, created_at_ms from personas
             where id = ? and deleted_at_ms is null",
        );
        let persona = persona.bind(id).fetch_optional(&self.readers).await;
        persona.map_err(|error| self.failed(error))?.ok_or_else(|| no_persona(id))
    }

    /// Makes a persona, whose id is given to it here.
    pub async fn create_persona(&self, persona: Persona) -> Result<Persona, StoreError> {
        let mut tx = self.begin().await?;
        let id = insert_persona(&mut tx, &persona).await.map_err(|error| self.failed(error))?;
        self.commit(tx).await?;
        Ok(Persona { id, ..persona })
    }

    /// Sets the name, the system prompt and the model of a persona.
    pub async fn change_persona(
        &self,
        id: &str,
        name: &str,
        system_prompt: &str,
        model: Option<&str>,
    ) -> Result<(), StoreError> {
        let change = sqlx::query(
            "update personas set name = ?, system_prompt = ?, model = ?
             where id = ? and deleted_at_ms is null",
        );
        let change = change.bind(name).bind(system_prompt).bind(model).bind(id);
        self.change_row(change, || no_persona(id)).await
    }

    /// Stores the settings of a persona: a JSON text, or none.
    pub async fn set_persona_settings(
        &self,
        id: &str,
        overrides: Option<&str>,
    ) -> Result<(), StoreError> {
        let change = sqlx::query(
            "update personas set setting_overrides = ? where id = ? and deleted_at_ms is null",
        );
        self.change_row(change.bind(overrides).bind(id), || no_persona(id)).await
    }

    /// Hides a persona until [`Store::restore_persona`], or until this program closes the database.
    /// Its conversations stay.
    pub async fn delete_persona(&self, id: &str, now_ms: i64) -> Result<(), StoreError> {
        self.delete_rows(Deletable::Personas, &[id], now_ms).await
    }

    /// Undoes [`Store::delete_persona`].
    pub async fn restore_persona(&self, id: &str) -> Result<(), StoreError> {
        self.restore_rows(Deletable::Personas, &[id]).await
    }

    /// The settings of the persona that a conversation has; none without a persona, and where that is
    /// deleted.
    pub async fn settings_of_conversations_persona(
        &self,
        conversation_id: &str,
    ) -> Result<Option<String>, StoreError> {
        let overrides: Option<Option<String>> = sqlx::query_scalar(
            "select setting_overrides from personas
             join conversation_personas on conversation_personas.persona_id = personas.id
             where conversation_id = ? and deleted_at_ms is null",
        )
        .bind(conversation_id)
        .fetch_optional(&self.readers)
        .await
        .map_err(|error| self.failed(error))?;
        Ok(overrides.flatten())
    }

    /// Gives a conversation a persona, or takes its persona away. The system prompt stays.
    pub async fn set_conversation_persona(
        &self,
        conversation_id: &str,
        persona_id: Option<&str>,
    ) -> Result<(), StoreError> {
        self.listed_conversation(conversation_id).await?;
        if let Some(persona_id) = persona_id {
            self.persona(persona_id).await?;
        }
        let mut tx = self.begin().await?;
        let change = match persona_id {
            Some(persona_id) => sqlx::query(
                "insert into conversation_personas (conversation_id, persona_id) values (?, ?)
                 on conflict (conversation_id) do update set persona_id = excluded.persona_id",
            )
            .bind(conversation_id)
            .bind(persona_id),
            None => sqlx::query("delete from conversation_personas where conversation_id = ?")
                .bind(conversation_id),
        };
        change.execute(&mut *tx).await.map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }
}

/// Makes a persona and returns its id, which is given to it here.
pub(crate) async fn insert_persona(
    tx: &mut SqliteConnection,
    persona: &Persona,
) -> Result<String, sqlx::Error> {
    let id = new_id().to_string();
    sqlx::query(
        "insert into personas (id, name, system_prompt, model, setting_overrides, created_at_ms)
         values (?, ?, ?, ?, ?, ?)",
    )
    .bind(&id)
    .bind(&persona.name)
    .bind(&persona.system_prompt)
    .bind(&persona.model)
    .bind(&persona.setting_overrides)
    .bind(persona.created_at_ms)
    .execute(tx)
    .await?;
    Ok(id)
}
