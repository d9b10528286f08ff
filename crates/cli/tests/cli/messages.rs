//! What commands tell people: refused values, sizes, names of things.

use crate::program::{MODEL, Program};

#[tokio::test]
async fn a_bad_line_of_a_batch_is_named() {
    let program = Program::new().await;
    let file = program.file("b.jsonl");
    let check = |second: &str, expected: &str| {
        std::fs::write(&file, format!("{{\"prompt\": \"x\"}}\n{second}\n")).unwrap();
        let batch = ["batch", "--model", MODEL, "--input", &file];
        program.check_fails(&batch, 1, &format!("line 2 of {file}{expected}"));
    };
    check("stones", " is not JSON\n");
    check("{\"prompt\": ", " is not JSON\n");
    check("{}", ": give one of prompt_tokens, messages and prompt\n");
    // The position within the line looks like another number of a line.
    check("{\"prompt\": 5}", ": invalid type: integer `5`, expected a string\n");
}
