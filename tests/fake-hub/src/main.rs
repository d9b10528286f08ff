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
//! stall FILE BYTES       after so many bytes of this file nothing comes any more
//! damage FILE            the first byte of this file is another one
//! unreachable            every connection ends before an answer
//! right                  all that was stalled, damaged or unreachable is right again
//! ```

use std::io::BufRead;
use std::path::Path;
use std::process::ExitCode;

use cairn_fake_hub::{Asked, FakeFile, FakeHub, FakeRepo, Fault, Misdeed};

fn main() -> ExitCode {
    let repos: Result<Vec<_>, _> = std::env::args().skip(1).map(|text| repo(&text)).collect();
    match repos {
        Ok(repos) => {
            let hub = FakeHub::start(repos);
            println!("{}", hub.endpoint());
            // Whether its input ends or fails, nobody needs the hub any more.
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                match obey(&hub, &line) {
                    Some(()) => println!("ok"),
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

/// Changes the hub's behaviour; none for a line that says nothing it knows.
fn obey(hub: &FakeHub, line: &str) -> Option<()> {
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
        ["stall", file, bytes] => {
            let misdeed = Misdeed::StallAfter(bytes.parse().ok()?);
            hub.add_fault(Fault::always(Asked::Bytes(lasting(file)), misdeed));
        }
        ["damage", file] => {
            hub.add_fault(Fault::always(Asked::Bytes(lasting(file)), Misdeed::Damage(0)));
        }
        ["unreachable"] => hub.add_fault(Fault::always(Asked::Any, Misdeed::CutBeforeAnswer)),
        ["right"] => hub.clear_faults(),
        _ => return None,
    }
    Some(())
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
