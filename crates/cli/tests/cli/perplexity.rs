//! `cairn perplexity`: the numbers of mlx_lm.perplexity, and where its data comes from.

use std::fmt::Write;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::program::{MODEL, Program};

/// `tests/goldens/perplexity.json`, which mlx-lm has computed.
#[derive(Deserialize)]
struct Golden {
    model: String,
    data: Map<String, Value>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    data: String,
    sequence_length: u32,
    num_samples: u32,
    batch_size: u32,
    seed: u32,
    samples: Vec<Vec<u32>>,
    perplexity: f64,
    standard_error: f64,
}

impl Case {
    fn flags(&self) -> Vec<String> {
        let numbers = [
            ("--sequence-length", self.sequence_length),
            ("--num-samples", self.num_samples),
            ("--batch-size", self.batch_size),
            ("--seed", self.seed),
        ];
        numbers
            .into_iter()
            .flat_map(|(flag, number)| [flag.to_owned(), number.to_string()])
            .collect()
    }
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../../../tests/goldens/perplexity.json")).unwrap()
}

/// Writes rows to a file, one on each line, and returns its path.
fn write_rows(program: &Program, name: &str, rows: &Value) -> String {
    let file = program.file(name);
    let mut text = String::new();
    for row in rows.as_array().unwrap() {
        writeln!(text, "{row}").unwrap();
    }
    std::fs::write(&file, text).unwrap();
    file
}

#[tokio::test]
async fn measures_as_mlx_lm_does() {
    let program = Program::new().await;
    let Golden { model, data, cases } = golden();
    assert_eq!(model, "llama/tiny-chat", "the model of these tests");
    for case in cases {
        let file = write_rows(&program, "rows.jsonl", &data[&case.data]);
        let flags = case.flags();
        let flags = flags.iter().map(String::as_str);
        let measure = ["perplexity", "--model", MODEL, "--json", "--data-path", &file];
        let found = program.json(&measure.into_iter().chain(flags).collect::<Vec<_>>());
        // Sums in another order; a sample of other tokens differs by percents.
        let is_close = |key: &str, expected: f64| {
            let found = found[key].as_f64().unwrap();
            assert!((found / expected - 1.0).abs() < 1e-4, "{key}: {found}, not {expected}");
        };
        is_close("perplexity", case.perplexity);
        is_close("standard_error", case.standard_error);
        assert_eq!(found["samples"], case.samples.len());
        assert_eq!(found["tokens"], case.samples.concat().len());
    }
}

#[tokio::test]
async fn takes_folders_and_plain_texts() {
    let program = Program::new().await;
    let measure = |path: &str, more: &[&str]| {
        let flags =
            ["perplexity", "--model", MODEL, "--sequence-length", "32", "--data-path", path];
        program.run(&[&flags[..], more].concat())
    };
    std::fs::create_dir(program.file("data")).unwrap();
    write_rows(&program, "data/train.jsonl", &golden().data["texts"]);
    let folder = measure(&program.file("data"), &["--num-samples", "2"]);
    assert_eq!(folder.code, Some(0), "{}", folder.stderr);
    assert!(folder.stdout.contains("samples\t2\ntokens\t64\n"), "{}", folder.stdout);

    let text = program.file("stones.txt");
    std::fs::write(&text, "Stones upon stones.\n".repeat(5)).unwrap();
    let all = measure(&text, &["--num-samples", "-1"]);
    assert_eq!((all.code, all.stderr.as_str()), (Some(0), ""));
    assert!(all.stdout.contains("samples\t3\ntokens\t96\n"), "{}", all.stdout);
    let fewer = measure(&text, &[]);
    assert!(fewer.stderr.contains("has 3 samples of 32 tokens, not 256"), "{}", fewer.stderr);
    assert_eq!(fewer.stdout.lines().next(), all.stdout.lines().next());
}

#[tokio::test]
async fn refuses_data_that_it_cannot_read() {
    let program = Program::new().await;
    let measure = ["perplexity", "--model", MODEL];
    let check = |path: &[&str], expected: &str| {
        program.check_fails(&[&measure[..], path].concat(), 1, expected);
    };
    let local = "Cairn downloads models only, so name a file on this machine with --data-path";
    check(&[], &format!("cannot read the data set allenai/tulu-3-sft-mixture: {local}"));
    check(&["--data-path", "owner/data"], &format!("cannot read the data set owner/data: {local}"));
    check(&["--data-path", "no/rows.jsonl"], "cannot read no/rows.jsonl");
    let file = program.file("rows.jsonl");
    std::fs::write(&file, "{\"text\": \"Stones\"}\n{\"title\": \"Stones\"}\n").unwrap();
    let forms = format!("line 2 of {file}: give text, messages, or prompt and completion");
    check(&["--data-path", &file], &forms);
    std::fs::write(&file, "{\"text\": \"Stones\"}\n").unwrap();
    check(&["--data-path", &file], "has 7 tokens, which is less than a sample");
    program.check_fails(&[&measure[..], &["--num-samples", "0"]].concat(), 2, "-1 for all");
}
