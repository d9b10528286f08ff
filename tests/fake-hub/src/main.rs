//! Serves model folders as a hub on loopback, for scripts and benchmarks.
//!
//! `fake-hub OWNER/NAME=FOLDER OWNER/NAME=BYTES …` prints the address to use as `HF_ENDPOINT` and
//! runs until its input ends. A number instead of a folder makes up a model whose weights have so
//! many bytes.
//!
//! A line of its input changes how it behaves from then on, and is answered by `ok`:
//!
//! ```text
//! gated OWNER/NAME       its files are refused until its terms are accepted
//! token OWNER/NAME TEXT  it is given to those who send this token
//! open OWNER/NAME        to everyone
//! length OWNER/NAME FILE BYTES  the list of files says that this one has so many
//! stall FILE BYTES       after so many bytes of this file nothing comes any more
//! damage FILE            the first byte of this file is another one
//! refuse FILE STATUS     the hub answers with this status instead of the file
//! redirect FILE ADDRESS  the hub says that the file is at this address
//! unreachable            every connection ends before an answer
//! right                  every file is answered rightly again
//! ```
//!
//! `requests` is answered by all requests so far, a JSON array in one line.

use std::io::BufRead;
use std::path::Path;
use std::process::ExitCode;

use cairn_fake_hub::{Asked, FakeFile, FakeHub, FakeRepo, Fault, Misdeed};
use serde_json::{Value, json};

fn main() -> ExitCode {
    let repos: Result<Vec<_>, _> = std::env::args().skip(1).map(|text| repo(&text)).collect();
    match repos {
        Ok(repos) => {
            let hub = FakeHub::start(repos);
            println!("{}", hub.endpoint());
            // Whether its input ends or fails, nobody needs the hub any more.
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                match obey(&hub, &line) {
                    Some(answer) => println!("{answer}"),
                    None => println!("{line:?} is not understood"),
                }
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("fake-hub: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Changes the hub's behaviour, or tells of it; none for a line that says nothing it knows.
fn obey(hub: &FakeHub, line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    // The process ends soon, and the table wants names that live as long.
    let lasting = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
    match words.as_slice() {
        ["gated", name] => change(hub, name, |repo| repo.is_gated = true),
        ["token", name, token] => change(hub, name, |repo| {
            repo.token = Some((*token).to_owned());
        }),
        ["open", name] => change(hub, name, |repo| {
            (repo.is_gated, repo.token) = (false, None);
        }),
        ["length", name, path, bytes] => {
            let bytes = bytes.parse().ok()?;
            change(hub, name, |repo| {
                let named = repo.files.iter_mut().filter(|file| file.path == *path);
                named.for_each(|file| file.listed_bytes = bytes);
            });
        }
        ["stall", file, bytes] => {
            let misdeed = Misdeed::StallAfter(bytes.parse().ok()?);
            hub.add_fault(Fault::always(Asked::Bytes(lasting(file)), misdeed));
        }
        ["damage", file] => {
            hub.add_fault(Fault::always(Asked::Bytes(lasting(file)), Misdeed::Damage(0)));
        }
        ["refuse", file, status] => {
            let misdeed = Misdeed::Status(status.parse().ok()?, Vec::new());
            hub.add_fault(Fault::always(Asked::File(lasting(file)), misdeed));
        }
        ["redirect", file, address] => {
            let misdeed = Misdeed::Redirect((*address).to_owned());
            hub.add_fault(Fault::always(Asked::File(lasting(file)), misdeed));
        }
        ["requests"] => return Some(requests(hub)),
        ["unreachable"] => hub.add_fault(Fault::always(Asked::Any, Misdeed::CutBeforeAnswer)),
        ["right"] => hub.clear_faults(),
        _ => return None,
    }
    Some("ok".to_owned())
}

fn requests(hub: &FakeHub) -> String {
    let request = |request: cairn_fake_hub::Request| {
        json!({
            "side": format!("{:?}", request.side),
            "target": request.target,
            "headers": request.headers,
        })
    };
    Value::from_iter(hub.requests().into_iter().map(request)).to_string()
}

fn change(hub: &FakeHub, name: &str, change: impl Fn(&mut FakeRepo)) {
    hub.change(|repos| repos.iter_mut().filter(|repo| repo.name == name).for_each(change));
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
