//! Serves model folders as a hub on loopback, for scripts and benchmarks.
//!
//! `fake-hub OWNER/NAME=FOLDER OWNER/NAME=BYTES …` prints the address to use as `HF_ENDPOINT` and
//! runs until its input ends. A number instead of a folder makes up a model whose weights have so
//! many bytes.

use std::path::Path;
use std::process::ExitCode;

use cairn_fake_hub::{FakeFile, FakeHub, FakeRepo};

fn main() -> ExitCode {
    let repos: Result<Vec<_>, _> = std::env::args().skip(1).map(|text| repo(&text)).collect();
    match repos {
        Ok(repos) => {
            let hub = FakeHub::start(repos);
            println!("{}", hub.endpoint());
            // Whether it ends or fails, nobody needs the hub any more.
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("fake-hub: {error}");
            ExitCode::FAILURE
        }
    }
}

fn repo(text: &str) -> Result<FakeRepo, String> {
    let (name, source) = text.split_once('=').ok_or("the arguments are OWNER/NAME=FOLDER")?;
    if let Ok(bytes) = source.parse() {
        return Ok(FakeRepo::model(name, bytes));
    }
    let files = files(Path::new(source)).map_err(|error| format!("{source}: {error}"))?;
    Ok(FakeRepo::new(name, files))
}

fn files(folder: &Path) -> std::io::Result<Vec<FakeFile>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_file() {
            let bytes = std::fs::read(&path)?;
            files.push(match String::from_utf8(bytes) {
                Ok(text) if !name.ends_with(".safetensors") => FakeFile::small(&name, &text),
                Ok(text) => FakeFile::lfs_bytes(&name, text.into_bytes()),
                Err(error) => FakeFile::lfs_bytes(&name, error.into_bytes()),
            });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}
