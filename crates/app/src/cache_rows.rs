//! Writes down what the engine tells about the files of its prompt cache. Rows are an optimisation:
//! one that cannot be written is logged and forgotten.

use std::collections::HashSet;
use std::sync::Arc;

use cairn_engine::{Anchor, CacheEvent};
use cairn_store::{CacheChange, Store};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::app::now_ms;
use crate::convert;

/// What is written down at once at most.
const MAX_BATCH: usize = 256;

/// Runs until the engine has shut down. What came while the disk was waited for is written
/// together.
///
/// For each event the owner of an anchor that has moved, or none, is sent to `moved`.
pub(crate) async fn keep(
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
        // One that cannot be written does not take the others with it.
        for change in changes {
            if let Err(error) = store.change_cache(&[change]).await {
                tracing::warn!("the index of the prompt cache is behind its files: {error}");
            }
        }
    }
}

/// Whose anchor has moved.
fn owner(event: &CacheEvent) -> Option<String> {
    match event {
        CacheEvent::Anchored(Anchor { owner, .. }) | CacheEvent::Released { owner } => {
            Some(owner.clone())
        }
        CacheEvent::Filed(_) | CacheEvent::Removed { .. } | CacheEvent::Touched { .. } => None,
    }
}

/// What events change in the rows; of the moves of one anchor only the last.
pub(crate) fn changes(events: impl IntoIterator<Item = CacheEvent>) -> Vec<CacheChange> {
    let mut changes: Vec<CacheChange> = events.into_iter().map(change).collect();
    let mut moved = HashSet::new();
    changes.reverse();
    changes.retain(|change| match change {
        CacheChange::Anchored(anchor) => moved.insert(anchor.owner.clone()),
        CacheChange::Released { owner } => moved.insert(owner.clone()),
        CacheChange::Filed(_) | CacheChange::Touched { .. } | CacheChange::Removed { .. } => true,
    });
    changes.reverse();
    changes
}

fn change(event: CacheEvent) -> CacheChange {
    match event {
        CacheEvent::Filed(record) => CacheChange::Filed(convert::chunk_row(record, now_ms())),
        CacheEvent::Touched { keys, at_ms } => CacheChange::Touched { keys, at_ms },
        CacheEvent::Anchored(anchor) => CacheChange::Anchored(convert::anchor_row(anchor)),
        CacheEvent::Released { owner } => CacheChange::Released { owner },
        CacheEvent::Removed { keys, reason } => {
            tracing::info!("{} chunks left the prompt cache: {reason}", keys.len());
            CacheChange::Removed { keys }
        }
    }
}

#[cfg(test)]
mod tests {
    use cairn_engine::Space;

    use super::*;

    #[test]
    fn of_the_moves_of_one_anchor_only_the_last_is_written() {
        let anchored = |owner: &str, num_tokens: usize| {
            CacheEvent::Anchored(Anchor {
                owner: owner.to_owned(),
                space: Space { fingerprint: "f".to_owned(), variant: String::new() },
                model: "m".to_owned(),
                chunk_key: None,
                num_tokens,
                is_pinned: false,
                lost: None,
            })
        };
        let removed = |key: &str| CacheEvent::Removed {
            keys: vec![key.to_owned()],
            reason: "evicted".to_owned(),
        };
        let check = |events: Vec<CacheEvent>, expected: &[&str]| {
            let said = |change: CacheChange| match change {
                CacheChange::Anchored(anchor) => {
                    format!("{} at {}", anchor.owner, anchor.num_tokens)
                }
                CacheChange::Removed { keys } => format!("without {}", keys.concat()),
                other => format!("{other:?}"),
            };
            assert_eq!(changes(events).into_iter().map(said).collect::<Vec<_>>(), expected);
        };
        check(vec![], &[]);
        check(
            vec![anchored("a", 1), removed("x"), anchored("a", 2), anchored("b", 3)],
            &["without x", "a at 2", "b at 3"],
        );
        check(
            vec![anchored("a", 1), anchored("b", 3), anchored("a", 0), removed("x"), removed("x")],
            &["b at 3", "a at 0", "without x", "without x"],
        );
    }
}
