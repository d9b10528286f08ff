//! Who asks: the key of a request, its owner in the prompt cache, and the end of a key.

use std::collections::HashMap;
use std::time::Duration;

use cairn_prompt_cache::Owner;
use cairn_store::ApiKeyRow;
use tokio::sync::Mutex;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::cache::owners::API_TOKEN;
use crate::wire::Failure;

/// How long revoking waits for the running answers of a key.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// The keys that were used since the app was opened, by their ids. Locked while a key is looked up
/// and while one is revoked, so that no request slips in between.
#[derive(Debug, Default)]
pub(super) struct Clients(Mutex<HashMap<String, Client>>);

#[derive(Debug, Default)]
struct Client {
    revoked: CancellationToken,
    running: TaskTracker,
}

/// Who asks for something. Revoking the key waits for it to be dropped.
#[derive(Debug)]
pub struct ApiClient {
    /// The key's name; none for the token of `cairn serve`.
    name: Option<String>,
    id: String,
    revoked: CancellationToken,
    _running: Option<TaskTrackerToken>,
}

impl ApiClient {
    /// Who knows the token of `cairn serve`.
    pub fn with_token() -> ApiClient {
        let (name, id) = (None, API_TOKEN.to_owned());
        ApiClient { name, id, revoked: CancellationToken::new(), _running: None }
    }

    /// The key's name; none for the token of `cairn serve`.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Identifies it among all clients.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Resolves when the key is revoked.
    pub fn revoked(&self) -> WaitForCancellationFuture<'_> {
        self.revoked.cancelled()
    }

    /// The owner of what is saved of its prompts: the key, or with a `prompt_cache_key` a part of
    /// it, so that two agents with one key do not take each other's place.
    pub fn owner(&self, prompt_cache_key: Option<&str>) -> Owner {
        Owner::Api(match prompt_cache_key {
            None => self.id.clone(),
            Some(key) => format!("{}/{:03x}", self.id, slot(key)),
        })
    }
}

/// One of 4096 places for a `prompt_cache_key`. Some programs make a new one for each conversation;
/// each with an owner of its own would leave a row for ever.
fn slot(prompt_cache_key: &str) -> u16 {
    let hash = blake3::hash(prompt_cache_key.as_bytes());
    let [first, second, ..] = *hash.as_bytes();
    u16::from_be_bytes([first, second]) >> 4
}

impl Clients {
    /// Who asks with the key whose row `find` reads; none if there is no such key.
    pub(super) async fn with_key(
        &self,
        find: impl Future<Output = Result<Option<ApiKeyRow>, Failure>>,
    ) -> Result<Option<(ApiClient, ApiKeyRow)>, Failure> {
        let mut clients = self.0.lock().await;
        let Some(row) = find.await? else { return Ok(None) };
        let client = clients.entry(row.id.clone()).or_default();
        let (revoked, running) = (client.revoked.clone(), Some(client.running.token()));
        let (name, id) = (Some(row.name.clone()), row.id.clone());
        Ok(Some((ApiClient { name, id, revoked, _running: running }, row)))
    }

    /// Removes a key by `delete`. When this returns, no request with it begins any more, and those
    /// that ran have ended or were given time for it.
    pub(super) async fn revoke(
        &self,
        id: &str,
        delete: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        let mut clients = self.0.lock().await;
        delete.await?;
        let Some(client) = clients.remove(id) else { return Ok(()) };
        drop(clients);
        client.revoked.cancel();
        client.running.close();
        if tokio::time::timeout(STOP_LIMIT, client.running.wait()).await.is_err() {
            tracing::warn!("an answer for a revoked key had not ended in time");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::owners::is_of_key;

    #[test]
    fn a_part_of_a_key_belongs_to_it_and_to_no_other() {
        let client = ApiClient { id: "k1".to_owned(), ..ApiClient::with_token() };
        let (whole, one, two) =
            (client.owner(None), client.owner(Some("agent 1")), client.owner(Some("agent 2")));
        assert_eq!(whole, Owner::Api("k1".to_owned()));
        assert_ne!(one, two);
        assert_eq!(one, client.owner(Some("agent 1")));
        for owner in [&whole, &one, &two] {
            assert!(is_of_key(owner, "k1"), "{owner}");
            assert!(!is_of_key(owner, "k"), "{owner}");
            assert!(!is_of_key(owner, "k10"), "{owner}");
        }
        assert!(!is_of_key(&Owner::Conversation("k1".to_owned()), "k1"));
    }
}
