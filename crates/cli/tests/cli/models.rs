//! `cairn models`: what a model is and takes.

use serde_json::json;

use crate::program::{MODEL, Program};

#[tokio::test]
async fn info_names_the_memory_that_a_model_takes() {
    let program = Program::new().await;
    let info = program.json(&["models", "info", MODEL, "--json"]);
    let mut names: Vec<&String> = info.as_object().unwrap().keys().collect();
    names.sort();
    assert_eq!(
        names,
        [
            "context_length",
            "fits",
            "kv_bytes_per_token",
            "layers",
            "memory_bytes",
            "model_type",
            "name",
            "parameters",
            "quantization",
            "weight_bytes"
        ]
    );
    assert_eq!((&info["name"], &info["model_type"]), (&json!(MODEL), &json!("llama")));
    let quantization = json!({ "bits": 4, "group_size": 32 });
    assert_eq!((&info["quantization"], &info["fits"]), (&quantization, &json!(true)));
    let number = |name: &str| info[name].as_u64().unwrap();
    assert!(number("memory_bytes") > number("weight_bytes"));
    // On a CPU every number is computed in four bytes.
    assert!(number("weight_bytes") >= 2 * number("parameters") && number("parameters") > 0);

    let at = |context: &str| {
        let flags = ["models", "info", MODEL, "--context", context, "--json"];
        program.json(&flags)["memory_bytes"].as_u64().unwrap()
    };
    assert!(at("10") < at("1000"));
    assert!(program.stdout_of(&["models", "info", MODEL]).contains("fits\tyes"));
    program.check_fails(&["models", "info", "nothing/here"], 1, "nothing/here");
}
