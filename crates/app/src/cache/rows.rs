//! Writes the engine's cache events to the database. Rows are an optimisation: one that cannot be
//! written is logged and skipped.

use std::collections::HashSet;
use std::sync::Arc;

use cairn_engine::{CacheEvent, CacheRef};
use cairn_store::{CacheChange, Store};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::app::now_ms;
use crate::convert;

/// The most events of one transaction.
const MAX_BATCH: usize = 256;

/// Writes events until the engine has shut down. Events that arrive during a write are written
/// together.
///
/// For each event the owner of the reference that changed, or none, is sent to `moved`.
pub(crate) async fn write_events(
    store: Arc<Store>,
    mut events: UnboundedReceiver<CacheEvent>,
    moved: UnboundedSender<Option<String>>,
) {
    let mut batch = Vec::new();
    while events.recv_many(&mut batch, MAX_BATCH).await > 0 {
        for event in &batch {
            let _ = moved.send(owner(event));
        }
        let changes = changes(batch.drain(..));
        if store.change_cache(&changes).await.is_ok() {
            continue;
        }
        // One change that cannot be written must not prevent the others.
        for change in changes {
            if let Err(error) = store.change_cache(&[change]).await {
                tracing::warn!("the index of the prompt cache is behind its files: {error}");
            }
        }
    }
}

/// The owner of the reference that has changed.
fn owner(event: &CacheEvent) -> Option<String> {
    match event {
        CacheEvent::RefSet(CacheRef { owner, .. }) | CacheEvent::RefRemoved { owner } => {
            Some(owner.clone())
        }
        CacheEvent::Written(_) | CacheEvent::Removed { .. } | CacheEvent::Touched { .. } => None,
    }
}

/// The changes of rows for these events; of several changes of one reference only the last.
pub(crate) fn changes(events: impl IntoIterator<Item = CacheEvent>) -> Vec<CacheChange> {
    let mut changes: Vec<CacheChange> = events.into_iter().map(change).collect();
    let mut moved = HashSet::new();
    changes.reverse();
    changes.retain(|change| match change {
        CacheChange::RefSet(cache_ref) => moved.insert(cache_ref.owner.clone()),
        CacheChange::RefRemoved { owner } => moved.insert(owner.clone()),
        CacheChange::Written(_) | CacheChange::Touched { .. } | CacheChange::Removed { .. } => true,
    });
    changes.reverse();
    changes
}

fn change(event: CacheEvent) -> CacheChange {
    match event {
        CacheEvent::Written(record) => CacheChange::Written(convert::chunk_row(record, now_ms())),
        CacheEvent::Touched { keys, at_ms } => CacheChange::Touched { keys, at_ms },
        CacheEvent::RefSet(cache_ref) => CacheChange::RefSet(convert::cache_ref_row(cache_ref)),
        CacheEvent::RefRemoved { owner } => CacheChange::RefRemoved { owner },
        CacheEvent::Removed { keys, reason } => {
            tracing::info!("{} chunks were removed from the prompt cache: {reason}", keys.len());
            CacheChange::Removed { keys }
        }
    }
}

#[cfg(test)]
mod tests {
    use cairn_engine::Namespace;

    use super::*;

    #[test]
    fn only_the_last_change_of_a_reference_is_written() {
        let with_ref = |owner: &str, num_tokens: usize| {
            CacheEvent::RefSet(CacheRef {
                owner: owner.to_owned(),
                namespace: Namespace::computed("f", cairn_engine::KvFormat::Plain),
                model: "m".to_owned(),
                chunk_key: None,
                num_tokens,
                is_pinned: false,
                loss: None,
            })
        };
        let removed = |key: &str| CacheEvent::Removed {
            keys: vec![key.to_owned()],
            reason: "evicted".to_owned(),
        };
        let check = |events: Vec<CacheEvent>, expected: &[&str]| {
            let text = |change: CacheChange| match change {
                CacheChange::RefSet(cache_ref) => {
                    format!("{} at {}", cache_ref.owner, cache_ref.num_tokens)
                }
                CacheChange::Removed { keys } => format!("without {}", keys.concat()),
                other => format!("{other:?}"),
            };
            assert_eq!(changes(events).into_iter().map(text).collect::<Vec<_>>(), expected);
        };
        check(vec![], &[]);
        check(
            vec![with_ref("a", 1), removed("x"), with_ref("a", 2), with_ref("b", 3)],
            &["without x", "a at 2", "b at 3"],
        );
        check(
            vec![with_ref("a", 1), with_ref("b", 3), with_ref("a", 0), removed("x"), removed("x")],
            &["b at 3", "a at 0", "without x", "without x"],
        );
    }
}
