//! `cairn cache` as a shell meets it: the program itself, on a data folder of its own with a tiny
//! model.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cairn_app::wire::{self, Reply, Settings};
use cairn_app::{App, CacheVariables, DataFolder, Options};
use serde_json::Value;
use tempfile::TempDir;

const MODEL: &str = "tiny-chat";

/// What the program said.
struct Said {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// A data folder, and a place for files beside it.
struct Place {
    folder: TempDir,
}

impl Place {
    /// With the tiny model and room for prompt caches, whatever the disk has.
    async fn new() -> Place {
        Place::with_budget(1 << 30).await
    }

    async fn with_budget(cache_budget_bytes: u64) -> Place {
        let place = Place { folder: tempfile::tempdir().unwrap() };
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/llama").join(MODEL);
        let model = place.home().join("models").join(MODEL);
        std::fs::create_dir_all(&model).unwrap();
        for name in [
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ] {
            std::fs::copy(source.join(name), model.join(name)).unwrap();
        }
        let app = place.open_app().await;
        let Reply::Bootstrap { settings, .. } = app.call(wire::Command::Bootstrap).await.unwrap()
        else {
            panic!("no settings")
        };
        let settings = Settings { cache_budget_bytes, ..settings };
        app.call(wire::Command::UpdateSettings { settings }).await.unwrap();
        app.close().await;
        place
    }

    async fn open_app(&self) -> std::sync::Arc<App> {
        let options = Options {
            data_folder: DataFolder::new(self.home()),
            hub_variables: CacheVariables::default(),
            autoload: false,
        };
        App::open(options).await.unwrap()
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn run(&self, arguments: &[&str]) -> Said {
        let mut program = Command::new(env!("CARGO_BIN_EXE_cairn"));
        program
            .args(arguments)
            .env("CAIRN_HOME", self.home())
            .env("HF_HUB_CACHE", self.folder.path().join("hub"));
        let output = program.stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Said {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// What it printed; it must have worked.
    fn printed(&self, arguments: &[&str]) -> String {
        let Said { code, stdout, stderr } = self.run(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
        stdout
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.printed(arguments)).unwrap()
    }

    fn check_refused(&self, arguments: &[&str], code: i32, expected: &str) {
        let said = self.run(arguments);
        assert_eq!(
            (said.code, said.stdout.as_str()),
            (Some(code), ""),
            "{arguments:?}: {}",
            said.stderr
        );
        assert!(
            said.stderr.contains(expected),
            "{arguments:?}: {:?} should say {expected:?}",
            said.stderr
        );
        if code == 1 {
            assert!(
                said.stderr.starts_with("cairn: ") && said.stderr.lines().count() == 1,
                "{arguments:?}: {:?}",
                said.stderr
            );
        }
    }

    /// Writes a prompt-cache file and returns its path.
    fn prompt_file(&self, name: &str, prompt: &str) -> String {
        let file = self.file(name);
        self.printed(&[
            "cache-prompt",
            "--model",
            MODEL,
            "--prompt",
            prompt,
            "--prompt-cache-file",
            &file,
        ]);
        file
    }

    /// Files of chunks.
    fn num_chunk_files(&self) -> usize {
        let folders = std::fs::read_dir(self.home().join("prompt-cache-v2")).unwrap().flatten();
        folders
            .filter(|folder| folder.path().is_dir())
            .map(|folder| std::fs::read_dir(folder.path()).unwrap().count())
            .sum()
    }
}

/// The tokens that continue a file, and how many came from it.
fn continued(place: &Place, file: &str) -> (Value, Value) {
    let flags = ["--prompt", " And then?", "--max-tokens", "12", "--json"];
    let answer = place
        .json(&[&["generate", "--model", MODEL, "--prompt-cache-file", file][..], &flags].concat());
    (answer["tokens"].clone(), answer["cached_tokens"].clone())
}

#[tokio::test]
async fn what_is_imported_is_listed_shown_exported_and_gives_the_same_answer() {
    let place = Place::new().await;
    let file =
        place.prompt_file("story.safetensors", &"Once there was a pile of stones. ".repeat(20));
    let expected = continued(&place, &file);

    let told = place.printed(&["cache", "import", &file, "--yes", "--check", "--name", "Story"]);
    for expected in
        ["model\ttiny-chat", "kind\tprompt", "begins\t\"", "pile of stones", "kept as\tStory"]
    {
        assert!(told.contains(expected), "{told:?} should say {expected:?}");
    }
    let list = place.json(&["cache", "list", "--json"]);
    let [named] = &list.as_array().unwrap()[..] else { panic!("{list}") };
    assert_eq!(
        (&named["kind"], &named["name"], &named["model"]),
        (&"named".into(), &"Story".into(), &MODEL.into())
    );
    assert_eq!(
        (&named["tokens"], &named["imported_from"]),
        (&expected.1, &"story.safetensors".into())
    );
    let (id, bytes) = (named["id"].as_str().unwrap(), named["bytes"].as_u64().unwrap());
    let table = place.printed(&["cache", "list"]);
    assert!(table.contains("Story") && table.contains(id) && table.contains("total\t"), "{table}");

    let shown = place.printed(&["cache", "show", "Story"]);
    assert!(shown.contains(id) && shown.contains(&format!("bytes\t{bytes}")), "{shown}");
    let chunks: Vec<&str> = shown.lines().filter(|line| line.contains("\tsystem\t")).collect();
    assert!(chunks.len() > 1 && chunks[0].starts_with("0..256\t"), "{shown}");
    let key = chunks[0].rsplit('\t').next().unwrap();
    assert_eq!(place.printed(&["cache", "show", key]).lines().collect::<Vec<_>>(), chunks[..1]);

    let again = place.file("again.safetensors");
    for source in ["Story", id] {
        assert_eq!(place.printed(&["cache", "export", source, &again]).trim(), again);
        assert_eq!(continued(&place, &again), expected);
    }
    let said = place.run(&["cache", "import", &again, "--yes"]);
    assert!(said.code == Some(1) && said.stderr.contains("“Story”"), "{}", said.stderr);
    place.check_refused(&["cache", "export", key, &again], 1, "chunk");

    // Half of it, then all.
    let last = chunks[chunks.len() - 1].rsplit('\t').next().unwrap();
    place.printed(&["cache", "delete", last]);
    let rest = place.json(&["cache", "list", "--json"])[0].clone();
    assert!(rest["tokens"].as_u64() < expected.1.as_u64() && rest["lost"].is_string(), "{rest}");
    place.printed(&["cache", "delete", "Story"]);
    assert_eq!(place.json(&["cache", "list", "--json"]), Value::Array(Vec::new()));
    assert_eq!(place.num_chunk_files(), 0);
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_in_one_line() {
    let place = Place::new().await;
    let file = place.prompt_file("a.safetensors", "Stones");
    place.check_refused(&["cache", "import", &file], 2, "--yes");
    place.check_refused(&["cache"], 2, "Usage");
    place.check_refused(&["cache", "show"], 2, "<KEY>");
    place.check_refused(&["cache", "delete"], 2, "<KEY>");
    place.check_refused(&["cache", "export", "Story"], 2, "OUT.safetensors");
    place.check_refused(&["cache", "import", "--yes"], 2, "<FILE>");
    place.check_refused(&["cache", "show", "Story"], 1, "“Story”");
    place.check_refused(&["cache", "delete", "Story"], 1, "nothing was deleted");
    place.check_refused(&["cache", "export", "Story", &place.file("b.safetensors")], 1, "“Story”");
    place.check_refused(
        &["cache", "import", &place.file("none.safetensors"), "--yes"],
        1,
        "none.safetensors",
    );
    place.check_refused(&["cache", "import", &file, "--yes", "--model", "other"], 1, "other");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(place.file("half.safetensors"), &bytes[..bytes.len() / 2]).unwrap();
    place.check_refused(
        &["cache", "import", &place.file("half.safetensors"), "--yes"],
        1,
        "half.safetensors",
    );
    std::fs::rename(
        place.home().join("models").join(MODEL),
        place.home().join("models").join("renamed"),
    )
    .unwrap();
    place.check_refused(&["cache", "import", &file, "--yes"], 1, "--model");
    assert_eq!(place.num_chunk_files(), 0);
    assert!(
        place
            .printed(&["cache", "import", &file, "--yes", "--model", "renamed"])
            .contains("kept as\ta")
    );
}

#[tokio::test]
async fn the_budget_on_disk_holds_for_imports_too() {
    let place = Place::with_budget(300_000).await;
    let file = |name: &str, num_words: usize| place.prompt_file(name, &"stone ".repeat(num_words));
    let (small, large) = (file("small.safetensors", 60), file("large.safetensors", 200));
    let sizes = [&small, &large].map(|file| std::fs::metadata(file).unwrap().len());
    assert!(sizes[0] < 300_000 && sizes.iter().sum::<u64>() > 300_000, "{sizes:?}");
    place.printed(&["cache", "import", &small, "--yes"]);
    let said = place.run(&["cache", "import", &large, "--yes"]);
    assert!(said.code == Some(1) && said.stderr.contains("budget"), "{}", said.stderr);
    let list = place.json(&["cache", "list", "--json"]);
    assert!(
        list.as_array().unwrap().len() == 1
            && list[0]["name"] == "small"
            && list[0]["lost"].is_null(),
        "{list}"
    );
}

#[tokio::test]
async fn the_app_may_have_the_folder_open() {
    let place = Place::new().await;
    let file = place.prompt_file("story.safetensors", "Once there was a pile of stones.");
    let app = place.open_app().await;
    place.printed(&["cache", "import", &file, "--yes"]);
    let named = async || match app.call(wire::Command::GetCache).await.unwrap() {
        Reply::Cache { cache } => cache.named,
        other => panic!("{other:?}"),
    };
    let [cache] = &named().await[..] else { panic!("one is imported") };
    assert_eq!(
        (cache.name.as_str(), cache.imported_from.as_deref()),
        ("story", Some("story.safetensors"))
    );
    place.printed(&["cache", "delete", &cache.id]);
    assert!(named().await.is_empty());
    app.close().await;
}
