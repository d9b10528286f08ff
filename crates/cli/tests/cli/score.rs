//! `cairn score`: where its text comes from.

use serde_json::Value;

use crate::program::{MODEL, Program};

#[tokio::test]
async fn without_a_text_the_usage_error_names_the_flags_that_give_one() {
    let program = Program::new().await;
    for flag in ["--prompt", "--tokens", "--input"] {
        program.check_fails(&["score", "--model", MODEL], 2, flag);
    }
    let both = ["score", "--model", MODEL, "--prompt", "x", "--input", "f.jsonl"];
    program.check_fails(&both, 2, "cannot be used with");
}

/// All log-probabilities of a score, and the likeliest next tokens.
fn numbers(score: &Value) -> Vec<f64> {
    let own = score["logprobs"].as_array().unwrap().iter().filter_map(Value::as_f64);
    let next = score["next"].as_array().unwrap().iter();
    own.chain(next.flat_map(|next| [next[0].as_f64().unwrap(), next[1].as_f64().unwrap()]))
        .collect()
}

#[tokio::test]
async fn each_line_of_an_input_is_scored_as_it_is_alone() {
    let program = Program::new().await;
    let score = ["score", "--model", MODEL, "--json", "--top", "2"];
    let input = program.file("texts.jsonl");
    std::fs::write(&input, "{\"prompt\": \"Stones\"}\n\n{\"tokens\": [5, 6, 7]}\n").unwrap();
    let lines = program.stdout_of(&[&score[..], &["--input", &input]].concat());
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();

    let alone: [&[&str]; 2] = [&["--prompt", "Stones"], &["--tokens", "5,6,7"]];
    assert_eq!(lines.len(), alone.len());
    for (index, text) in alone.iter().enumerate() {
        let expected = program.json(&[&score, *text].concat());
        assert_eq!(
            (&lines[index]["index"], &lines[index]["tokens"]),
            (&index.into(), &expected["tokens"])
        );
        // Rows of one pass are computed with sums in another order than alone.
        let [found, expected] = [&lines[index], &expected].map(numbers);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-4, "{found} instead of {expected}");
        }
    }

    std::fs::write(&input, "{\"prompt\": \"Stones\"}\nstones\n").unwrap();
    let bad = [&score[..], &["--input", &input]].concat();
    program.check_fails(&bad, 1, &format!("line 2 of {input} is not JSON"));
    std::fs::write(&input, "\n[{\"prompt\": \"Stones\"}]\n").unwrap();
    program.check_fails(&bad, 1, &format!("line 2 of {input} is not a JSON object"));
    std::fs::write(&input, "{\"prompt\": \"Stones\", \"tokens\": [5]}\n").unwrap();
    program.check_fails(&bad, 1, "give one of tokens and prompt");
}

#[tokio::test]
async fn a_line_that_cannot_be_scored_is_named_and_the_others_are_scored() {
    let program = Program::new().await;
    let input = program.file("texts.jsonl");
    let lines = [
        serde_json::json!({ "prompt": "Stones" }),
        serde_json::json!({ "tokens": vec![5; 5000] }),
        serde_json::json!({ "tokens": [5, 6, 7] }),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(&input, text).unwrap();
    let score = ["score", "--model", MODEL, "--input", &input];
    let output = program.run(&[&score[..], &["--json"]].concat());
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    let rows: Vec<Value> =
        output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let is_scored: Vec<bool> = rows.iter().map(|row| row["next"].is_array()).collect();
    assert_eq!(is_scored, [true, false, true], "{}", output.stdout);
    let (index, error) = (&rows[1]["index"], rows[1]["error"].as_str().unwrap());
    assert_eq!(index, 1);
    let said = format!("cairn: row 2: {error}\ncairn: 1 of 3 rows failed\n");
    assert_eq!(output.stderr, said);
    let plain = program.run(&score);
    assert_eq!((plain.code, plain.stderr), (Some(1), said));
    assert!(plain.stdout.contains("index\t2") && !plain.stdout.contains("index\t1"));
}

#[tokio::test]
async fn a_byte_order_mark_begins_no_line() {
    let program = Program::new().await;
    let input = program.file("marked.jsonl");
    std::fs::write(&input, "\u{feff}{\"prompt\": \"Stones\"}\n").unwrap();
    for command in [&["score"][..], &["batch"], &["classify"]] {
        let flags = ["--model", MODEL, "--input", &input, "--json"];
        let rows = program.stdout_of(&[command, &flags].concat());
        assert_eq!(rows.lines().count(), 1, "{command:?}: {rows}");
    }
}
