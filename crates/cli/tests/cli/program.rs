//! Runs the `cairn` binary on a data folder of its own.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use cairn_app::wire;
use cairn_app::{App, DataFolder, Options};
use cairn_tiny_models::{copy_tiny_model, tiny_model};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The name of the tiny model in the data folder.
pub const MODEL: &str = "tiny-chat";

/// What a run of the program returned.
pub struct Output {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    pub fn of(output: std::process::Output) -> Output {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Output {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

/// The program with a data folder, and a folder for other files beside it.
pub struct Program {
    folder: TempDir,
}

impl Program {
    /// With a budget for prompt caches that does not depend on the machine's free disk space.
    pub async fn new() -> Program {
        Program::with_budget(1 << 30).await
    }

    pub async fn with_budget(cache_budget_bytes: u64) -> Program {
        let program = Program { folder: tempfile::tempdir().unwrap() };
        program.copy_model(MODEL);
        let app = program.open_app().await;
        let budget = wire::Command::set_for_all("cache_budget_bytes", cache_budget_bytes);
        app.call(budget).await.unwrap();
        app.close().await;
        program
    }

    /// Copies the tiny model into the data folder under `name` and returns its folder.
    pub fn copy_model(&self, name: &str) -> PathBuf {
        let folder = self.home().join("models").join(name);
        copy_tiny_model("llama/tiny-chat", &folder).unwrap();
        folder
    }

    /// Copies a tiny model with heads of 32 numbers, whose KV cache can be quantized in groups of
    /// 32; the tiny model's cannot. It has 128 tokens, the tokenizer's ASCII ones, so its chat
    /// template has no special tokens.
    pub fn copy_quantizable_model(&self, name: &str) {
        let folder = self.copy_model(name);
        let source = tiny_model("qwen3_moe/quant4");
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(source.join(file), folder.join(file)).unwrap();
        }
        let template = "{% for message in messages %}{{ message['content'] }}{% endfor %}";
        let config = json!({ "chat_template": template });
        std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
    }

    pub async fn open_app(&self) -> Arc<App> {
        let options = Options::new(DataFolder::new(self.home()));
        App::open(options).await.unwrap()
    }

    pub fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// The path of a file beside the data folder.
    pub fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// The program with its environment; stdin is closed.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cairn"));
        command
            .args(arguments)
            .env("CAIRN_HOME", self.home())
            .env("HF_HUB_CACHE", self.folder.path().join("hub"))
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        Output::of(self.command(arguments).output().unwrap())
    }

    /// The stdout of a run that must succeed.
    pub fn stdout_of(&self, arguments: &[&str]) -> String {
        let Output { code, stdout, stderr } = self.run(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
        stdout
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.stdout_of(arguments)).unwrap()
    }

    /// As [`Program::json`], with `stdin` as the program's input.
    pub fn json_with_stdin(&self, arguments: &[&str], stdin: &str) -> Value {
        serde_json::from_str(&self.stdout_with_stdin(arguments, stdin)).unwrap()
    }

    /// As [`Program::stdout_of`], with `stdin` as the program's input.
    pub fn stdout_with_stdin(&self, arguments: &[&str], stdin: &str) -> String {
        let mut command = self.command(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Checks the exit status of a run that fails, and that stderr says `expected`.
    pub fn check_fails(&self, arguments: &[&str], code: i32, expected: &str) {
        let output = self.run(arguments);
        let stderr = &output.stderr;
        assert_eq!(
            (output.code, output.stdout.as_str()),
            (Some(code), ""),
            "{arguments:?}: {stderr}"
        );
        assert!(stderr.contains(expected), "{arguments:?}: {stderr:?} should say {expected:?}");
        if code == 1 {
            let is_one_line = stderr.starts_with("cairn: ") && stderr.lines().count() == 1;
            assert!(is_one_line, "{arguments:?}: {stderr:?}");
        }
    }

    /// Writes a prompt-cache file and returns its path.
    pub fn prompt_file(&self, name: &str, prompt: &str) -> String {
        let file = self.file(name);
        let flags = ["--model", MODEL, "--prompt", prompt, "--prompt-cache-file", &file];
        self.stdout_of(&[&["cache-prompt"], &flags[..]].concat());
        file
    }

    /// The number of chunk files in the data folder.
    pub fn num_chunk_files(&self) -> usize {
        let folders = self.chunk_folders();
        folders.iter().map(|folder| std::fs::read_dir(folder).unwrap().count()).sum()
    }

    /// The folder of the only model with chunks.
    pub fn chunk_folder(&self) -> PathBuf {
        let folders = self.chunk_folders();
        assert_eq!(folders.len(), 1);
        folders[0].clone()
    }

    fn chunk_folders(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.home().join("prompt-cache-v2")).unwrap().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }
}
