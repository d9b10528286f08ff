//! Writes the engine's cache changes to the database. Rows are an optimisation: one that cannot be
//! written is logged and skipped.

use std::collections::HashSet;
use std::sync::Arc;

use cairn_prompt_cache::{CacheChange, RefName};
use cairn_store::Store;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// The most changes of one transaction.
const MAX_BATCH: usize = 256;

/// Writes changes until the engine has shut down. Changes that arrive during a write are written
/// together.
///
/// For each change the name of the reference that changed, or none, is sent to `moved`.
pub(crate) async fn write_changes(
    store: Arc<Store>,
    mut changes: UnboundedReceiver<CacheChange>,
    moved: UnboundedSender<Option<RefName>>,
) {
    let mut batch = Vec::new();
    while changes.recv_many(&mut batch, MAX_BATCH).await > 0 {
        for change in &batch {
            let _ = moved.send(name(change).cloned());
            if let CacheChange::Removed { chunks, reason } = change {
                tracing::info!(
                    "{} chunks were removed from the prompt cache: {reason}",
                    chunks.len()
                );
            }
        }
        let last = last_of_each_ref(std::mem::take(&mut batch));
        if store.change_cache(&last).await.is_ok() {
            continue;
        }
        // One change that cannot be written must not prevent the others.
        for change in last {
            if let Err(error) = store.change_cache(&[change]).await {
                tracing::warn!("the index of the prompt cache is behind its files: {error}");
            }
        }
    }
}

/// The name of the reference that has changed.
fn name(change: &CacheChange) -> Option<&RefName> {
    match change {
        CacheChange::RefSet(cache_ref) => Some(&cache_ref.name),
        CacheChange::RefRemoved(name) => Some(name),
        CacheChange::Written(_) | CacheChange::Removed { .. } | CacheChange::Used { .. } => None,
    }
}

/// The changes, of several changes of one reference only the last.
pub(crate) fn last_of_each_ref(mut changes: Vec<CacheChange>) -> Vec<CacheChange> {
    let mut moved = HashSet::new();
    changes.reverse();
    changes.retain(|change| name(change).is_none_or(|name| moved.insert(name.clone())));
    changes.reverse();
    changes
}

#[cfg(test)]
mod tests {
    use cairn_prompt_cache::{CacheRef, ChunkKey, KvFormat, Namespace, Owner};

    use super::*;

    #[test]
    fn only_the_last_change_of_a_reference_is_written() {
        let with_ref = |id: &str, num_tokens: usize| {
            CacheChange::RefSet(CacheRef {
                name: Owner::Named(id.to_owned()).into(),
                namespace: Namespace::computed("f", KvFormat::Plain),
                model_name: "m".to_owned(),
                target: None,
                num_tokens,
                is_pinned: false,
                loss: None,
            })
        };
        let without_ref = |id: &str| CacheChange::RefRemoved(Owner::Named(id.to_owned()).into());
        let used = |key: u8| CacheChange::Used {
            keys: vec![ChunkKey::from_bytes([key; 16])],
            at_ms: key.into(),
        };
        let check = |changes: Vec<CacheChange>, expected: &[CacheChange]| {
            assert_eq!(last_of_each_ref(changes), expected);
        };
        check(vec![], &[]);
        check(
            vec![with_ref("a", 1), used(1), with_ref("a", 2), with_ref("b", 3)],
            &[used(1), with_ref("a", 2), with_ref("b", 3)],
        );
        check(
            vec![with_ref("a", 1), with_ref("b", 3), without_ref("a"), used(1), used(1)],
            &[with_ref("b", 3), without_ref("a"), used(1), used(1)],
        );
    }
}
