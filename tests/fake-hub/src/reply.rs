//! The answer to one request: the right one, or what a fault makes of it.

use std::io::{self, Write};
use std::net::TcpStream;
use std::thread;

use serde_json::{Value, json};

use crate::server::State;
use crate::{Asked, Content, FakeFile, FakeRepo, Misdeed, Request, Side};

const CHUNK_BYTES: usize = 64 << 10;

/// The right answer to a request, and what was asked.
struct RightAnswer {
    asked: Asked,
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Content,
    /// Where the body begins in the file, for an answer to a range.
    start: u64,
}

impl RightAnswer {
    fn new(asked: Asked, status: u16, body: &[u8]) -> RightAnswer {
        RightAnswer {
            asked,
            status,
            headers: Vec::new(),
            body: Content::Given(body.into()),
            start: 0,
        }
    }

    fn json(asked: Asked, value: &Value) -> RightAnswer {
        let right = RightAnswer::new(asked, 200, value.to_string().as_bytes());
        right.with("Content-Type", "application/json")
    }

    fn refused(asked: Asked, status: u16, code: &str) -> RightAnswer {
        RightAnswer::new(asked, status, b"refused").with("X-Error-Code", code)
    }

    fn with(mut self, name: &'static str, value: impl ToString) -> RightAnswer {
        self.headers.push((name, value.to_string()));
        self
    }
}

pub(crate) fn answer(stream: &TcpStream, request: &Request, state: &State) -> io::Result<()> {
    let right = right_answer(request, state);
    if request.is_head {
        let mut sending = Sending { stream, body: &right.body, state, damaged: None };
        return sending.head(right.status, &right.headers, Some(right.body.length()));
    }
    send(stream, &right, state.misdeed(&right.asked), state)
}

fn right_answer(request: &Request, state: &State) -> RightAnswer {
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    if request.side == Side::Bytes {
        return stored_bytes(request, state, parts.last().copied().unwrap_or_default());
    }
    match parts[..] {
        ["api", "models"] => search(state, query),
        ["api", "models", owner, name, "revision", ref revision @ ..] => {
            let refusal = |code| RightAnswer::refused(Asked::Info, 404, code);
            let revision = revision.join("/").replace("%2F", "/");
            match state.repo(&format!("{owner}/{name}")) {
                None => refusal("RepoNotFound"),
                Some(repo) if !knows(&repo, &revision) => refusal("RevisionNotFound"),
                Some(repo) => refusal_of(&repo, request, Asked::Info).unwrap_or_else(|| {
                    let gated = if repo.is_gated { json!("auto") } else { json!(false) };
                    let tags = ["license:apache-2.0", "mlx"];
                    let info = json!({ "id": repo.name, "sha": repo.commit, "gated": gated, "tags": tags });
                    RightAnswer::json(Asked::Info, &info)
                }),
            }
        }
        ["api", "models", owner, name, "tree", _] => match state.repo(&format!("{owner}/{name}")) {
            None => RightAnswer::refused(Asked::Tree, 404, "RepoNotFound"),
            Some(repo) => tree_page(&repo, path, query, state),
        },
        [owner, name, "resolve", commit, ref file @ ..] => {
            let file = file.join("/").replace("%20", " ");
            let repo = state.repo(&format!("{owner}/{name}"));
            match repo.as_ref().and_then(|repo| Some((repo, repo.file(&file)?))) {
                Some((repo, file)) if knows(repo, commit) => resolved(repo, file, request, state),
                _ => RightAnswer::refused(Asked::File("?"), 404, "EntryNotFound"),
            }
        }
        _ => RightAnswer::refused(Asked::Any, 404, "RepoNotFound"),
    }
}

fn knows(repo: &FakeRepo, revision: &str) -> bool {
    repo.commit == revision || repo.revisions.iter().any(|known| known == revision)
}

fn refusal_of(repo: &FakeRepo, request: &Request, asked: Asked) -> Option<RightAnswer> {
    let wanted = repo.token.as_ref().map(|token| format!("Bearer {token}"));
    let sent = request.header("authorization");
    if wanted.is_some() && wanted.as_deref() != sent {
        return Some(RightAnswer::refused(asked, 401, ""));
    }
    let is_file = matches!(asked, Asked::File(_));
    (repo.is_gated && is_file).then(|| RightAnswer::refused(asked, 403, "GatedRepo"))
}

fn search(state: &State, query: &str) -> RightAnswer {
    let text = query.split('&').find_map(|pair| pair.strip_prefix("search="));
    let tags = query.split('&').filter_map(|pair| pair.strip_prefix("filter="));
    let mut found = state.repos();
    found.retain(|repo| repo.name.contains(text.unwrap_or("")));
    found.retain(|repo| tags.clone().all(|tag| repo.tags.iter().any(|known| known == tag)));
    let entries = found.into_iter().enumerate().map(|(index, repo)| {
        json!({
            "id": repo.name, "downloads": 1000 - index, "likes": index, "gated": repo.is_gated,
            "lastModified": "2026-11-22T12:00:00.000Z", "tags": repo.tags,
            "config": { "model_type": "llama", "tokenizer_config": { "bos_token": "<s>" } },
            "safetensors": { "total": 600_000_000 },
        })
    });
    RightAnswer::json(Asked::Search, &entries.collect())
}

fn tree_page(repo: &FakeRepo, path: &str, query: &str, state: &State) -> RightAnswer {
    let cursor = query.split('&').find_map(|pair| pair.strip_prefix("cursor="));
    let start = cursor.and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
    let entries = repo.entries();
    let end = entries.len().min(start + repo.page_length);
    let page = RightAnswer::json(Asked::Tree, &entries[start.min(end)..end].into());
    if end == entries.len() {
        return page;
    }
    let next = format!("http://{}{path}?recursive=true&cursor={end}", state.hub);
    page.with("Link", format!("<{next}>; rel=\"next\""))
}

/// The hub's answer for a file: the bytes of a small one, the other host's address of a large one.
fn resolved(repo: &FakeRepo, file: &FakeFile, request: &Request, state: &State) -> RightAnswer {
    let asked = Asked::File(leak(&file.path));
    if let Some(refusal) = refusal_of(repo, request, asked.clone()) {
        return refusal;
    }
    if file.is_lfs {
        // The signature stands for the secret that such an address has.
        let location = format!("http://{}/{}?signature=secret-signature", state.bytes, file.hash);
        return RightAnswer::new(asked, 302, b"")
            .with("Location", location)
            .with("X-Linked-Size", file.content.length())
            .with("X-Linked-ETag", format!("\"{}\"", file.hash))
            .with("X-Repo-Commit", &repo.commit);
    }
    ranged(asked, file, request).with("X-Repo-Commit", &repo.commit)
}

fn stored_bytes(request: &Request, state: &State, hash: &str) -> RightAnswer {
    let repos = state.repos();
    let file = repos.iter().flat_map(|repo| &repo.files).find(|file| file.hash == hash);
    match file {
        Some(file) => ranged(Asked::Bytes(leak(&file.path)), file, request),
        None => RightAnswer::refused(Asked::Bytes("?"), 403, ""),
    }
}

fn ranged(asked: Asked, file: &FakeFile, request: &Request) -> RightAnswer {
    let length = file.content.length();
    let etag = format!("\"{}\"", file.hash);
    let right = RightAnswer {
        asked,
        status: 200,
        headers: vec![("ETag", etag.clone()), ("Content-Type", "binary/octet-stream".to_owned())],
        body: file.content.clone(),
        start: 0,
    };
    let start = request
        .header("range")
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<u64>().ok());
    match start {
        Some(_) if request.header("if-range").is_some_and(|known| known != etag) => right,
        Some(start) if start >= length => {
            let right = RightAnswer { status: 416, body: Content::Given((*b"no").into()), ..right };
            right.with("Content-Range", format!("bytes */{length}"))
        }
        Some(start) => RightAnswer { status: 206, start, ..right }
            .with("Content-Range", format!("bytes {start}-{}/{length}", length - 1)),
        None => right,
    }
}

/// Test tables name files by text that lives as long as the test.
fn leak(path: &str) -> &'static str {
    Box::leak(path.to_owned().into_boxed_str())
}

fn send(
    stream: &TcpStream,
    right: &RightAnswer,
    misdeed: Option<Misdeed>,
    state: &State,
) -> io::Result<()> {
    let mut headers = right.headers.clone();
    let mut sending = Sending { stream, body: &right.body, state, damaged: None };
    let mut length = Some(right.body.length() - right.start);
    match misdeed {
        None => {}
        Some(Misdeed::NoLength) => length = None,
        Some(Misdeed::Gzip) => headers.push(("Content-Encoding", "gzip".to_owned())),
        Some(Misdeed::Damage(position)) => sending.damaged = Some(position),
        Some(Misdeed::Headers(more)) => headers.splice(0..0, more).for_each(drop),
        Some(Misdeed::IgnoreRange) => {
            headers.retain(|(name, _)| *name != "Content-Range");
            sending.head(200, &headers, Some(right.body.length()))?;
            return sending.part(0, u64::MAX);
        }
        Some(Misdeed::OtherRange) => {
            let total = right.body.length();
            let start = total / 2;
            headers.retain(|(name, _)| *name != "Content-Range");
            headers.push(("Content-Range", format!("bytes {start}-{}/{total}", total - 1)));
            sending.head(206, &headers, Some(total - start))?;
            return sending.part(start, u64::MAX);
        }
        Some(misdeed) => return send_instead(&mut sending, right, misdeed),
    }
    sending.head(right.status, &headers, length)?;
    sending.part(right.start, u64::MAX)
}

/// What is sent when little of the right answer is.
fn send_instead(sending: &mut Sending, right: &RightAnswer, misdeed: Misdeed) -> io::Result<()> {
    let length = right.body.length() - right.start;
    let mut head = |length| sending.head(right.status, &right.headers, length);
    match misdeed {
        Misdeed::Status(status, more) => {
            sending.short(status, &more, b"this must not become a file")
        }
        Misdeed::Instead(kind, body) => {
            sending.short(200, &[("Content-Type", kind.to_owned())], &body)
        }
        Misdeed::Redirect(location) => sending.short(302, &[("Location", location)], b""),
        Misdeed::CutAfter(count) => {
            head(Some(length))?;
            sending.part(right.start, count)
        }
        Misdeed::StallAfter(count) => {
            head(Some(length))?;
            sending.part(right.start, count)?;
            sending.state.stall(sending.stream);
            Ok(())
        }
        Misdeed::Drip(time) => {
            head(Some(length))?;
            for position in right.start..right.body.length() {
                sending.part(position, 1)?;
                thread::sleep(time);
            }
            Ok(())
        }
        Misdeed::Length(length) => {
            head(Some(length))?;
            sending.padded(right.start, length)
        }
        Misdeed::Endless => {
            head(None)?;
            sending.padded(right.start, u64::MAX)
        }
        // The connection ends; the others are `send`'s.
        _ => Ok(()),
    }
}

struct Sending<'a> {
    stream: &'a TcpStream,
    body: &'a Content,
    state: &'a State,
    damaged: Option<u64>,
}

impl Sending<'_> {
    fn head(
        &mut self,
        status: u16,
        headers: &[(&'static str, String)],
        length: Option<u64>,
    ) -> io::Result<()> {
        let mut head = format!("HTTP/1.1 {status} x\r\nConnection: close\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if let Some(length) = length {
            head += &format!("Content-Length: {length}\r\n");
        }
        self.stream.write_all((head + "\r\n").as_bytes())
    }

    fn short(
        &mut self,
        status: u16,
        headers: &[(&'static str, String)],
        body: &[u8],
    ) -> io::Result<()> {
        self.head(status, headers, Some(body.len() as u64))?;
        self.stream.write_all(body)
    }

    /// So many bytes of the body from `start` on, or as many as there are.
    fn part(&mut self, start: u64, count: u64) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK_BYTES];
        let end = start.saturating_add(count).min(self.body.length());
        let mut position = start;
        while position < end {
            let wanted = usize::try_from(end - position).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            let count = self.body.read_at(position, &mut buffer[..wanted]);
            if let Some(damaged) = self.damaged
                && (position..position + count as u64).contains(&damaged)
            {
                buffer[(damaged - position) as usize] ^= 1;
            }
            self.stream.write_all(&buffer[..count])?;
            self.state.sent(count);
            position += count as u64;
        }
        Ok(())
    }

    /// The body from `start` on, and then anything, until `length` bytes were sent.
    fn padded(&mut self, start: u64, length: u64) -> io::Result<()> {
        self.part(start, length)?;
        let mut left = length.saturating_sub(self.body.length() - start);
        while left > 0 {
            let count = left.min(CHUNK_BYTES as u64);
            self.stream.write_all(&vec![b'x'; count as usize])?;
            left -= count;
        }
        Ok(())
    }
}
