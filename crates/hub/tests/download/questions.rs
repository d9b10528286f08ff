//! What is asked before a download: searches.

use cairn_fake_hub::{Asked, FakeRepo, Fault, Misdeed};
use cairn_hub::{DownloadError, FoundModel, Hub, SearchQuery};

use crate::support::{MODEL, Setting};

#[test]
fn models_are_found_by_words_and_remote_text_is_plain() {
    let setting = Setting::new();
    let hub = Hub::new(setting.options()).unwrap();
    let query =
        |text: &str| SearchQuery { text: text.to_owned(), tags: vec!["mlx".to_owned()], limit: 10 };
    let found = setting.runtime.block_on(hub.search(&query("name"))).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].repo.as_str(), found[0].num_downloads), (MODEL, 1000));
    assert_eq!((found[0].num_parameters, found[0].is_gated), (Some(600_000_000), false));
    assert_eq!(found[0].model_type.as_deref(), Some("llama"));
    assert_eq!(found[0].updated_at_ms, Some(1_795_348_800_000));
    assert_eq!(found[0].tags, ["mlx", "safetensors"], "one has an escape sequence");
    assert!(setting.runtime.block_on(hub.search(&query("other"))).unwrap().is_empty());
    let asked = &setting.hub.requests()[0].target;
    assert!(asked.contains("filter=mlx") && asked.contains("limit=10"), "{asked}");
}

#[test]
fn models_for_mlx_are_found_first_and_others_fill_the_rest() {
    let setting = Setting::new();
    let repo = |name: &str, tags: &[&str]| {
        let tags = tags.iter().map(|&tag| tag.to_owned()).collect();
        FakeRepo { tags, ..FakeRepo::model(name, 10) }
    };
    setting.hub.change(|repos| {
        *repos = vec![
            repo("a/original", &["safetensors"]),
            repo("mlx/model-4bit", &["mlx", "safetensors", "4-bit"]),
            repo("b/other", &["safetensors"]),
            repo("c/gguf-only", &["gguf"]),
            repo("mlx/old", &["mlx"]),
        ];
    });
    let hub = Hub::new(setting.options()).unwrap();
    let search = |text: &str, limit| -> Vec<FoundModel> {
        setting.hub.forget_requests();
        setting.runtime.block_on(hub.search_models(text, limit)).unwrap()
    };
    let found = search("", 10);
    let names = |found: &[FoundModel]| -> Vec<String> {
        found.iter().map(|model| model.repo.to_string()).collect()
    };
    assert_eq!(names(&found), ["mlx/model-4bit", "mlx/old", "a/original", "b/other"]);
    let facts: Vec<_> = found.iter().map(|one| (one.is_mlx, one.quantization_bits)).collect();
    assert_eq!(facts, [(true, Some(4)), (true, None), (false, None), (false, None)]);
    assert_eq!(names(&search("", 3)), ["mlx/model-4bit", "mlx/old", "a/original"]);
    assert_eq!(names(&search("", 2)), ["mlx/model-4bit", "mlx/old"]);
    assert_eq!(setting.hub.requests().len(), 1, "there is no place for others");
    assert!(search("", 0).is_empty() && setting.hub.requests().is_empty());
    assert_eq!(names(&search("other", 10)), ["b/other"]);

    let failing = Fault::always(Asked::Search, Misdeed::Status(500, Vec::new()));
    setting.hub.add_fault(failing);
    let refused = setting.runtime.block_on(hub.search_models("", 10)).unwrap_err();
    assert!(matches!(refused, DownloadError::HubFailed { .. }), "{refused}");
}
