//! The prefix of a conversation that was started from a starting point, as the engine's
//! [`PromptPrefix`].

use cairn_engine::PromptPrefix;
use cairn_prompt_cache::{ChunkKind, ChunkRecord, ModelFingerprint};
use cairn_store::{NamedCacheKind, Prefix};

use crate::app::App;
use crate::cache::excerpts::ends;
use crate::cache::owners::conversation_owner;
use crate::convert;
use crate::wire::{Failure, FailureKind};

/// A conversation's prefix for the loaded model with this fingerprint. A model with another vocabulary
/// is refused, because the same token ids stand for other text.
pub(crate) async fn checked(
    app: &App,
    conversation_id: &str,
    prefix: Prefix,
    fingerprint: Option<String>,
) -> Result<PromptPrefix, Failure> {
    if let Some(model) = foreign_model(app, conversation_id, &prefix, fingerprint).await? {
        return Err(Failure::invalid(format!(
            "this conversation starts from a context of {model}: choose that model to continue"
        ))
        .of_kind(FailureKind::OtherModel { model: Some(model) }));
    }
    Ok(PromptPrefix {
        num_tokens: usize::try_from(prefix.num_tokens).unwrap_or(0),
        kind: convert::prompt_kind(prefix.kind),
        kv_format: prefix.kv_format,
        provenance: prefix.provenance,
        token_ids: prefix.token_ids,
    })
}

/// The model that computed a prefix, if the loaded one cannot continue it.
async fn foreign_model(
    app: &App,
    conversation_id: &str,
    prefix: &Prefix,
    fingerprint: Option<String>,
) -> Result<Option<String>, Failure> {
    let Some(loaded) = fingerprint else { return Ok(None) };
    // If its starting point is gone, the conversation's reference names the model that read it
    // last.
    let named =
        app.store.named_cache(&prefix.named_id).await?.map(|row| (row.namespace.model, row.model));
    let (fingerprint, model) = named.or_else(|| last_reader(app, conversation_id)).unzip();
    if fingerprint.is_some_and(|fingerprint| fingerprint.as_str() == loaded) {
        return Ok(None);
    }
    // Other weights with the same vocabulary can compute the tokens again: then the texts are
    // equal.
    if let Some(token_ids) = &prefix.token_ids {
        let (start_text, end_text) = ends(&app.engine, &loaded, token_ids).await;
        if !start_text.is_empty()
            && (start_text, end_text) == (prefix.start_text.clone(), prefix.end_text.clone())
        {
            return Ok(None);
        }
    }
    Ok(Some(model.unwrap_or_else(|| "another model".to_owned())))
}

/// The fingerprint and the name of the model that read a conversation last.
fn last_reader(app: &App, conversation_id: &str) -> Option<(ModelFingerprint, String)> {
    let ref_usage = app.engine.cache()?.ref_usage(&conversation_owner(conversation_id))?;
    Some((ref_usage.cache_ref.namespace.model, ref_usage.cache_ref.model_name))
}

/// Where the saved context of a conversation ends; `path` are its chunks.
pub(crate) fn ending(prefix: Option<&Prefix>, path: &[ChunkRecord]) -> NamedCacheKind {
    let Some(last) = path.last() else { return NamedCacheKind::Prompt };
    match prefix {
        // All chunks of a prefix are of one kind, so its row names how it ends.
        Some(prefix) if last.stop() as i64 <= prefix.num_tokens => prefix.kind,
        // Only the system prompt, up to the first question.
        None if last.kind == ChunkKind::System => NamedCacheKind::Prompt,
        _ => NamedCacheKind::Conversation,
    }
}

/// The file from which a conversation's prefix was imported: context that continues it cannot be
/// trusted more than the file.
pub(crate) async fn imported_from(app: &App, prefix: Option<&Prefix>) -> Option<String> {
    let prefix = prefix.filter(|prefix| prefix.is_imported)?;
    let named = app.store.named_cache(&prefix.named_id).await.ok().flatten();
    Some(named.and_then(|row| row.imported_from).unwrap_or_else(|| prefix.name.clone()))
}

#[cfg(test)]
mod tests {
    use cairn_prompt_cache::{ChunkKey, KvFormat, Namespace, Provenance, Tokens};

    use super::*;

    #[test]
    fn saved_context_ends_as_its_prefix_does_unless_it_is_longer() {
        use ChunkKind::{Assistant, System, User};
        use NamedCacheKind::{Conversation, Prompt};
        fn check(
            prefix: Option<(NamedCacheKind, i64)>,
            chunks: &[(ChunkKind, usize)],
            expected: NamedCacheKind,
        ) {
            let prefix = prefix.map(|(kind, num_tokens)| Prefix {
                named_id: String::new(),
                name: String::new(),
                kind,
                kv_format: KvFormat::Plain,
                provenance: Provenance::Computed,
                num_tokens,
                token_ids: None,
                start_text: String::new(),
                end_text: String::new(),
                is_imported: true,
            });
            let chunk = |&(kind, start): &(ChunkKind, usize)| ChunkRecord {
                key: ChunkKey::from_bytes([0; 16]),
                parent: None,
                namespace: Namespace::computed("", Default::default()),
                kind,
                start,
                tokens: Tokens::known([0; 10]),
                held_from: start,
                has_state: false,
                file: None,
                hits: 0,
                created_at_ms: 0,
                last_used_at_ms: 0,
            };
            let path: Vec<ChunkRecord> = chunks.iter().map(chunk).collect();
            assert_eq!(ending(prefix.as_ref(), &path), expected, "{prefix:?} before {chunks:?}");
        }
        check(None, &[(System, 0)], Prompt);
        check(None, &[(System, 0), (User, 10)], Conversation);
        check(None, &[(System, 0), (User, 10), (Assistant, 20)], Conversation);
        for kind in [Prompt, Conversation] {
            check(Some((kind, 20)), &[(System, 0), (System, 10)], kind);
            check(Some((kind, 20)), &[(System, 0)], kind);
            check(Some((kind, 10)), &[(System, 0), (User, 10), (Assistant, 20)], Conversation);
        }
    }
}
