//! Writes down what the engine tells about the files of its prompt cache. Rows are an optimisation: one that cannot be written is
//! logged and forgotten.

use std::sync::Arc;

use cairn_engine::CacheEvent;
use cairn_store::{Store, StoreError};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::app::now_ms;
use crate::convert;

/// Runs until the engine has shut down.
///
/// For each event the owner of an anchor that has moved, or none, is sent to `moved`.
pub(crate) async fn keep(store: Arc<Store>, mut events: UnboundedReceiver<CacheEvent>, moved: UnboundedSender<Option<String>>) {
    while let Some(event) = events.recv().await {
        let _ = moved.send(match &event {
            CacheEvent::Anchored(anchor) => Some(anchor.owner.clone()),
            CacheEvent::Released { owner } => Some(owner.clone()),
            CacheEvent::Filed(_) | CacheEvent::Removed { .. } | CacheEvent::Touched { .. } => None,
        });
        if let Err(error) = write(&store, event).await {
            tracing::warn!("the index of the prompt cache is behind its files: {error}");
        }
    }
}

pub(crate) async fn write(store: &Store, event: CacheEvent) -> Result<(), StoreError> {
    match event {
        CacheEvent::Filed(record) => store.insert_chunk(&convert::chunk_row(record, now_ms())).await,
        CacheEvent::Touched { keys, at_ms } => store.touch_chunks(&keys, at_ms).await,
        CacheEvent::Anchored(anchor) => store.put_anchor(&convert::anchor_row(anchor)).await,
        CacheEvent::Released { owner } => store.delete_anchor(&owner).await,
        CacheEvent::Removed { keys, reason } => {
            tracing::info!("{} chunks left the prompt cache: {reason}", keys.len());
            store.delete_chunks(&keys).await
        }
    }
}
