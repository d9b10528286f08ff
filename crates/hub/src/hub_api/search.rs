//! Looking for models by words.

use std::collections::HashSet;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value as Json;

use super::model_info::{is_gated, is_tag};
use super::{DownloadError, Hub, RepoId};

/// The tag of models that were converted for MLX.
const MLX_TAG: &str = "mlx";
/// What else Cairn can load.
const SAFETENSORS_TAG: &str = "safetensors";
/// Quantized weights have a few bits; more is a number of something else.
const MAX_QUANTIZATION_BITS: u32 = 8;

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
    /// Whether it was converted for MLX, as its tags say.
    pub is_mlx: bool,
    /// The bits of its quantized weights, as its tags say, or else its name.
    pub quantization_bits: Option<u32>,
    /// `model_type` of its `config.json`, where the hub has read it: `qwen3`.
    pub model_type: Option<String>,
    /// When it last changed, as in `2026-11-22T12:00:00.000Z`.
    pub last_modified: Option<String>,
    /// The same in milliseconds since 1970.
    pub updated_at_ms: Option<i64>,
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
    config: Option<Json>,
    #[serde(default)]
    tags: Vec<String>,
}

impl Hub {
    /// The models with these words in their names that Cairn may load: first those for MLX, then
    /// others in safetensors files if there are fewer than `limit`. Within each, those with the most
    /// downloads first.
    pub async fn search_models(
        &self,
        text: &str,
        limit: usize,
    ) -> Result<Vec<FoundModel>, DownloadError> {
        let mut found: Vec<FoundModel> = Vec::new();
        for tag in [MLX_TAG, SAFETENSORS_TAG] {
            if found.len() >= limit {
                break;
            }
            let query = SearchQuery { text: text.to_owned(), tags: vec![tag.to_owned()], limit };
            let mut seen: HashSet<RepoId> = found.iter().map(|model| model.repo.clone()).collect();
            let models = self.search(&query).await?;
            found.extend(models.into_iter().filter(|model| seen.insert(model.repo.clone())));
        }
        found.truncate(limit);
        Ok(found)
    }

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
            for field in ["downloads", "likes", "gated", "lastModified", "safetensors", "config"]
                .into_iter()
                .chain(["tags"])
            {
                pairs.append_pair("expand", field);
            }
        }
        // One page has as many as were asked for.
        let (entries, _): (Vec<SearchEntry>, _) = self.get_json(url, None).await?;
        Ok(entries.into_iter().take(query.limit).filter_map(found).collect())
    }
}

fn found(entry: SearchEntry) -> Option<FoundModel> {
    let repo: RepoId = entry.id.parse().ok()?;
    let total = entry.safetensors.as_ref().and_then(|counts| counts.get("total"));
    let model_type = entry.config.as_ref().and_then(|config| config.get("model_type")?.as_str());
    let last_modified = entry.last_modified.filter(|date| is_tag(date));
    let tags: Vec<String> = entry.tags.into_iter().filter(|tag| is_tag(tag)).collect();
    Some(FoundModel {
        num_downloads: entry.downloads,
        num_likes: entry.likes,
        is_gated: is_gated(&entry.gated),
        is_mlx: tags.iter().any(|tag| tag == MLX_TAG),
        quantization_bits: quantization_bits(&tags, repo.as_str()),
        model_type: model_type.filter(|name| is_tag(name)).map(str::to_owned),
        updated_at_ms: last_modified.as_deref().and_then(milliseconds),
        last_modified,
        num_parameters: total.and_then(Json::as_u64),
        tags,
        repo,
    })
}

/// From a tag such as `4-bit`, else from a part of the name such as `4bit`.
fn quantization_bits(tags: &[String], name: &str) -> Option<u32> {
    let number = |digits: &str| {
        let bits = digits.parse().ok()?;
        (1..=MAX_QUANTIZATION_BITS).contains(&bits).then_some(bits)
    };
    let tagged = tags.iter().find_map(|tag| number(tag.strip_suffix("-bit")?));
    tagged.or_else(|| {
        let name = name.to_ascii_lowercase();
        name.split(['-', '_', '/']).find_map(|part| number(part.strip_suffix("bit")?))
    })
}

fn milliseconds(date: &str) -> Option<i64> {
    date.parse::<Timestamp>().ok().map(Timestamp::as_millisecond)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_in_a_tag_or_in_the_name() {
        let check = |tags: &[&str], name: &str, expected: Option<u32>| {
            let tags: Vec<String> = tags.iter().map(|&tag| tag.to_owned()).collect();
            assert_eq!(quantization_bits(&tags, name), expected, "{tags:?}, {name}");
        };
        check(&["mlx", "4-bit"], "a/b", Some(4));
        check(&["8-bit"], "a/b-4bit", Some(8));
        check(&["mlx"], "mlx-community/Qwen3-0.6B-6bit", Some(6));
        check(&[], "a/Model-3Bit-DWQ", Some(3));
        check(&[], "a/model_8bit", Some(8));
        check(&["0-bit", "64-bit", "-bit", "four-bit"], "a/b", None);
        check(&[], "a/b-16bit", None);
        check(&[], "a/b-1.58bit", None);
        check(&[], "a/rabbit", None);
        check(&[], "a/b-bf16", None);
        check(&["99999999999999-bit"], "a/b-4bit", Some(4));
    }

    #[test]
    fn dates_are_milliseconds() {
        assert_eq!(milliseconds("1970-01-01T00:00:01.500Z"), Some(1500));
        assert_eq!(milliseconds("2026-11-22T12:00:00+02:00"), Some(1_795_341_600_000));
        for bad in ["", "yesterday", "2026-11-22", "2026-13-01T00:00:00Z", "2026-11-22T12:00:00"] {
            assert_eq!(milliseconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_the_hub_says_about_a_model_is_bounded() {
        let entry = |more: &str| -> Option<FoundModel> {
            found(serde_json::from_str(&format!(r#"{{"id": "a/b"{more}}}"#)).unwrap())
        };
        let plain = entry("").unwrap();
        assert!(!plain.is_mlx && plain.model_type.is_none() && plain.updated_at_ms.is_none());
        let config = r#", "config": {"model_type": "qwen3", "tokenizer_config": {"x": [1]}}"#;
        assert_eq!(entry(config).unwrap().model_type.as_deref(), Some("qwen3"));
        for bad in [
            r#", "config": {"model_type": "\u001b[31m"}"#.to_owned(),
            format!(r#", "config": {{"model_type": "{}"}}"#, "x".repeat(1000)),
            r#", "config": {"model_type": 7}"#.to_owned(),
            r#", "config": []"#.to_owned(),
            r#", "config": null"#.to_owned(),
        ] {
            assert_eq!(entry(&bad).unwrap().model_type, None, "{bad}");
        }
        assert!(found(serde_json::from_str(r#"{"id": "../b"}"#).unwrap()).is_none());
    }
}
