//! `cairn classify`: its lines, and how it goes on after a run that was ended.

use std::fs;

use serde_json::{Value, json};

use crate::program::{MODEL, Program};

fn lines_of(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn write_input(program: &Program, lines: &[Value]) -> String {
    let input = program.file("rows.jsonl");
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(&input, text).unwrap();
    input
}

#[tokio::test]
async fn each_line_gets_what_score_says_of_it_alone() {
    let program = Program::new().await;
    let prompts: [&[u32]; 3] = [&[65, 66, 67, 68], &[65, 66, 67, 70, 71], &[65, 66, 67, 9]];
    let input = write_input(&program, &prompts.map(|tokens| json!({ "prompt_tokens": tokens })));
    let classify = ["classify", "--model", MODEL, "--input", &input];
    let rows = lines_of(&program.stdout_of(&[&classify[..], &["--json", "--top", "2"]].concat()));
    assert_eq!(rows.len(), 3);
    for (index, (row, tokens)) in rows.iter().zip(prompts).enumerate() {
        let tokens: Vec<String> = tokens.iter().map(u32::to_string).collect();
        let score = ["score", "--model", MODEL, "--json", "--top", "2", "--tokens"];
        let score = program.json(&[&score[..], &[&tokens.join(",")]].concat());
        assert_eq!(row["index"], index);
        assert_eq!(row["token"], score["next"][0][0], "row {index}");
        assert_eq!(row["top"][1][0], score["next"][1][0], "row {index}");
        let (found, expected) = (&row["logprob"], &score["next"][0][1]);
        assert!((found.as_f64().unwrap() - expected.as_f64().unwrap()).abs() < 1e-4);
        assert_eq!(row["prompt_tokens"], tokens.len());
        assert_eq!(row["cached_tokens"], 3, "the first three are the same in all rows");
    }
    let plain = program.stdout_of(&classify);
    assert_eq!(plain.lines().count(), 3);
    assert!(plain.starts_with("0\t"), "{plain}");
}

#[tokio::test]
async fn labels_are_chosen_from_and_have_to_differ() {
    let program = Program::new().await;
    let rows = ["Stones", "Water", "A longer one about stones and water"];
    let input = write_input(&program, &rows.map(|text| json!({ "prompt": text })));
    let classify = ["classify", "--model", MODEL, "--input", &input, "--prefix", "Sort these."];
    let labels = [&classify[..], &["--labels", "yes,no", "--json"]].concat();
    for row in lines_of(&program.stdout_of(&labels)) {
        let labels = row["labels"].as_object().unwrap();
        let best = ["yes", "no"]
            .into_iter()
            .max_by(|a, b| labels[*a].as_f64().unwrap().total_cmp(&labels[*b].as_f64().unwrap()));
        assert_eq!(row["text"].as_str(), best);
        assert_eq!(row["logprob"], labels[best.unwrap()]);
        assert!(row["cached_tokens"].as_u64().unwrap() > 5, "{row}");
    }
    for (labels, code, message) in [
        ("yes,yet", 1, "“yes” and “yet” begin with the same token: choose others\n"),
        ("yes,no,yes", 2, "cairn: --labels: “yes” is there twice\n"),
        ("yes,,no", 2, "cairn: --labels: label 2 is empty\n"),
    ] {
        program.check_fails(
            &[&classify[..], &["--labels", labels, "--json"]].concat(),
            code,
            message,
        );
    }
}

#[tokio::test]
async fn a_run_that_cannot_begin_changes_no_file() {
    let program = Program::new().await;
    let input = write_input(&program, &[json!({ "prompt": "one" }), json!({ "prompt": "two" })]);
    let output = program.file("out.jsonl");
    let prefix = program.file("prefix.txt");
    let link = program.file("link.jsonl");
    std::os::unix::fs::symlink(&input, &link).unwrap();
    let check = |written: &str, flags: &[&str], code: i32, message: &str| {
        fs::write(&output, "earlier results\n").unwrap();
        fs::write(&prefix, "Sort these.").unwrap();
        let before = [&input, &output, &prefix].map(|file| fs::read(file).unwrap());
        let classify = ["classify", "--input", &input, "--output", written];
        program.check_fails(&[&classify[..], flags].concat(), code, message);
        let after = [&input, &output, &prefix].map(|file| fs::read(file).unwrap());
        assert!(before == after, "{written} {flags:?}");
    };
    let is_read = "which is read: choose another file";
    check(&input, &["--model", MODEL], 2, is_read);
    check(&link, &["--model", MODEL], 2, is_read);
    check(&prefix, &["--model", MODEL, "--prefix-file", &prefix], 2, is_read);
    check(&output, &["--model", "not-there"], 1, "there is no model");
    check(&output, &["--model", MODEL, "--labels", "A,A"], 2, "“A” is there twice");
    check(&output, &["--model", MODEL, "--labels", "yes,yet"], 1, "begin with the same token");
    check(&output, &["--model", "not-there", "--resume"], 1, "line 1 is not row 1");
    let absent = program.file("new.jsonl");
    check(&absent, &["--model", "not-there"], 1, "there is no model");
    assert!(!fs::exists(&absent).unwrap());

    program.stdout_of(&["classify", "--model", MODEL, "--input", &input, "--output", &output]);
    assert_eq!(lines_of(&fs::read_to_string(&output).unwrap()).len(), 2);
}

#[tokio::test]
async fn a_run_that_was_ended_goes_on_where_it_was() {
    let program = Program::new().await;
    let rows: Vec<Value> = (0..1700)
        .map(|row| json!({ "prompt_tokens": [7, 8, 9, 65 + row % 20, row % 90] }))
        .collect();
    let input = write_input(&program, &rows);
    let whole = program.file("whole.jsonl");
    let classify = ["classify", "--model", MODEL, "--input", &input, "--labels", "a,b"];
    program.stdout_of(&[&classify[..], &["--output", &whole]].concat());
    let whole = fs::read_to_string(whole).unwrap();
    assert_eq!(lines_of(&whole).len(), rows.len());

    let parts = program.file("parts.jsonl");
    let resume = [&classify[..], &["--output", &parts, "--resume"]].concat();
    let mut running = program.command(&resume).spawn().unwrap();
    while fs::metadata(&parts).map_or(0, |file| file.len()) == 0 {
        assert!(running.try_wait().unwrap().is_none(), "it runs until it is killed");
        std::thread::yield_now();
    }
    running.kill().unwrap();
    running.wait().unwrap();
    let before = fs::read_to_string(&parts).unwrap();
    assert!(whole.starts_with(&before), "what was written is right");
    // A kill may also cut the last line.
    fs::write(&parts, &before[..before.len() - 10]).unwrap();
    program.stdout_of(&resume);
    // The passes of a resumed run have other rows, so that sums may differ in their last digits.
    let answers = |text: &str| -> Vec<(Value, Value)> {
        lines_of(text).iter().map(|row| (row["index"].clone(), row["text"].clone())).collect()
    };
    assert!(answers(&fs::read_to_string(&parts).unwrap()) == answers(&whole), "each row once");
    let output = program.run(&resume);
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), "cairn: all 1700 rows are done\n"));
}

#[tokio::test]
async fn what_cannot_be_continued_is_left_as_it_is() {
    let program = Program::new().await;
    let input = write_input(&program, &[json!({ "prompt": "one" }), json!({ "prompt": "two" })]);
    let output = program.file("out.jsonl");
    let resume = ["classify", "--model", MODEL, "--input", &input, "--output", &output, "--resume"];
    let row = |index: u32| format!("{{\"index\": {index}, \"labels\": {{\"a\": -1.0}}}}\n");
    for (text, message) in [
        (row(0), "it was written with other labels".to_owned()),
        (row(5), format!("cannot continue {output}: line 1 is not row 1")),
        ("no results\n".to_owned(), "line 1 is not row 1".to_owned()),
        (
            [
                "{\"index\": 0, \"error\": \"x\"}\n",
                "{\"index\": 1, \"error\": \"x\"}\n",
                "{\"index\": 2, \"error\": \"x\"}\n",
            ]
            .concat(),
            "has 3 rows, but the input only 2: it belongs to another input".to_owned(),
        ),
    ] {
        fs::write(&output, &text).unwrap();
        program.check_fails(&resume, 1, &message);
        assert_eq!(fs::read_to_string(&output).unwrap(), text);
    }
    let no_output = ["classify", "--model", MODEL, "--input", &input, "--resume"];
    program.check_fails(&no_output, 2, "--output");
    fs::write(&input, "{\"prompt\": \"one\", \"messages\": []}\n").unwrap();
    program.check_fails(&resume[..5], 1, "give one of prompt_tokens, messages and prompt");
}
