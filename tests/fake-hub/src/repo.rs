//! The repositories that a fake hub has.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::Content;

/// A repository with one commit, which every revision that it knows names.
#[derive(Debug, Clone)]
pub struct FakeRepo {
    /// `owner/name`.
    pub name: String,
    /// 40 hexadecimal digits, unless a test wants others.
    pub commit: String,
    /// Branches and tags.
    pub revisions: Vec<String>,
    /// What a search can ask for, and a tag that nobody should show.
    pub tags: Vec<String>,
    /// Its files.
    pub files: Vec<FakeFile>,
    /// Entries that the file list has besides, as they are.
    pub more_entries: Vec<Value>,
    /// The token that it asks for.
    pub token: Option<String>,
    /// Whether its terms were not accepted yet.
    pub is_gated: bool,
    /// Entries of a page of its file list.
    pub page_length: usize,
}

/// One file of a repository.
#[derive(Debug, Clone)]
pub struct FakeFile {
    /// Its path.
    pub path: String,
    /// Its bytes.
    pub content: Content,
    /// Whether it is kept in LFS: then the hub redirects to the other host.
    pub is_lfs: bool,
    /// Its hash as the file list has it.
    pub hash: String,
    /// Its length as the file list has it.
    pub listed_bytes: u64,
}

impl FakeRepo {
    /// With these files on the branch `main`, and all else as usual.
    pub fn new(name: &str, files: Vec<FakeFile>) -> FakeRepo {
        FakeRepo {
            name: name.to_owned(),
            commit: "c0ffee00".repeat(5),
            revisions: vec!["main".to_owned()],
            tags: ["mlx", "safetensors", "a\u{1b}[31m"].map(str::to_owned).into(),
            files,
            more_entries: Vec::new(),
            token: None,
            is_gated: false,
            page_length: 1000,
        }
    }

    /// A model that is complete as far as files go; its weights have this many bytes.
    pub fn model(name: &str, weight_bytes: u64) -> FakeRepo {
        let config = r#"{"model_type": "llama"}"#;
        FakeRepo::new(
            name,
            vec![
                FakeFile::small(".gitattributes", "*.safetensors filter=lfs"),
                FakeFile::small("README.md", "# A model"),
                FakeFile::small("config.json", config),
                FakeFile::small("modeling.py", "import os"),
                FakeFile::lfs("model.safetensors", Content::MadeUp { length: weight_bytes }),
                FakeFile::lfs("pytorch_model.bin", Content::MadeUp { length: 99 }),
                FakeFile::small("tokenizer.json", "{}"),
            ],
        )
    }

    /// The file of this path.
    pub fn file(&self, path: &str) -> Option<&FakeFile> {
        self.files.iter().find(|file| file.path == path)
    }

    pub(crate) fn entries(&self) -> Vec<Value> {
        let listed = self.files.iter().map(FakeFile::entry);
        listed.chain(self.more_entries.iter().cloned()).collect()
    }
}

impl FakeFile {
    /// A file that the hub serves itself.
    pub fn small(path: &str, text: &str) -> FakeFile {
        FakeFile::new(path, Content::Given(text.as_bytes().into()), false)
    }

    /// A file that another host serves.
    pub fn lfs(path: &str, content: Content) -> FakeFile {
        FakeFile::new(path, content, true)
    }

    /// A file of given bytes that another host serves.
    pub fn lfs_bytes(path: &str, bytes: Vec<u8>) -> FakeFile {
        FakeFile::lfs(path, Content::Given(Arc::from(bytes)))
    }

    fn new(path: &str, content: Content, is_lfs: bool) -> FakeFile {
        let hash = if is_lfs { content.sha256() } else { content.git_sha1() };
        let listed_bytes = content.length();
        FakeFile { path: path.to_owned(), content, is_lfs, hash, listed_bytes }
    }

    fn entry(&self) -> Value {
        if !self.is_lfs {
            let (path, oid, size) = (&self.path, &self.hash, self.listed_bytes);
            return json!({ "type": "file", "path": path, "oid": oid, "size": size });
        }
        let lfs = json!({ "oid": self.hash, "size": self.listed_bytes, "pointerSize": 135 });
        let (oid, size) = ("0".repeat(40), self.listed_bytes);
        json!({ "type": "file", "path": self.path, "oid": oid, "size": size, "lfs": lfs })
    }
}
