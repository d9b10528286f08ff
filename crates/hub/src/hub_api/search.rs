//! Looking for models by words.

use serde::Deserialize;
use serde_json::Value as Json;

use super::model_info::{is_gated, is_tag};
use super::{DownloadError, Hub, RepoId};

/// What is looked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SearchQuery {
    /// Words in the name.
    pub text: String,
    /// Tags that a model must have, such as `mlx`.
    pub tags: Vec<String>,
    /// The most models to return.
    pub limit: usize,
}

/// A model that a search found. Models whose names cannot be downloaded are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundModel {
    /// Its name.
    pub repo: RepoId,
    /// Downloads in the last month.
    pub num_downloads: u64,
    /// Likes.
    pub num_likes: u64,
    /// Whether terms have to be accepted first.
    pub is_gated: bool,
    /// When it last changed, as in `2026-11-22T12:00:00.000Z`.
    pub last_modified: Option<String>,
    /// Parameters in its safetensors files, where the hub has counted them.
    pub num_parameters: Option<u64>,
    /// Its tags that are plain words.
    pub tags: Vec<String>,
}

#[derive(Deserialize)]
struct SearchEntry {
    id: String,
    #[serde(default)]
    downloads: u64,
    #[serde(default)]
    likes: u64,
    #[serde(default)]
    gated: Json,
    #[serde(default, rename = "lastModified")]
    last_modified: Option<String>,
    #[serde(default)]
    safetensors: Option<Json>,
    #[serde(default)]
    tags: Vec<String>,
}

impl Hub {
    /// The models that match, those with the most downloads first.
    pub async fn search(&self, query: &SearchQuery) -> Result<Vec<FoundModel>, DownloadError> {
        let mut url = self.address(["api", "models"]);
        {
            let mut pairs = url.query_pairs_mut();
            pairs.append_pair("search", &query.text).append_pair("sort", "downloads");
            pairs.append_pair("limit", &query.limit.to_string());
            for tag in &query.tags {
                pairs.append_pair("filter", tag);
            }
            for field in ["downloads", "likes", "gated", "lastModified", "safetensors", "tags"] {
                pairs.append_pair("expand", field);
            }
        }
        // One page has as many as were asked for.
        let (entries, _): (Vec<SearchEntry>, _) = self.get_json(url, None).await?;
        Ok(entries.into_iter().take(query.limit).filter_map(found).collect())
    }
}

fn found(entry: SearchEntry) -> Option<FoundModel> {
    let total = entry.safetensors.as_ref().and_then(|counts| counts.get("total"));
    Some(FoundModel {
        repo: entry.id.parse().ok()?,
        num_downloads: entry.downloads,
        num_likes: entry.likes,
        is_gated: is_gated(&entry.gated),
        last_modified: entry.last_modified.filter(|date| is_tag(date)),
        num_parameters: total.and_then(Json::as_u64),
        tags: entry.tags.into_iter().filter(|tag| is_tag(tag)).collect(),
    })
}
