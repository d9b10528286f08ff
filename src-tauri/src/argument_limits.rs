//! The most that the page may hand to a command, checked before the command takes it apart.

use cairn_app::wire::{Failure, FailureCode, MAX_COMMAND_BYTES};
use serde_json::Value;
use tauri::ipc::{Invoke, InvokeBody};

/// The ids of a hundred thousand chats, or the paths of as many files.
const MAX_BYTES: usize = 4 << 20;

/// Refuses what is too large, and hands everything else to `handler`.
pub fn limited(
    handler: impl Fn(Invoke) -> bool + Send + Sync + 'static,
) -> impl Fn(Invoke) -> bool + Send + Sync + 'static {
    move |invoke| match refusal(invoke.message.command(), invoke.message.payload()) {
        Some(failure) => {
            invoke.resolver.reject(failure);
            true
        }
        None => handler(invoke),
    }
}

fn refusal(command: &str, body: &InvokeBody) -> Option<Failure> {
    let most = match command {
        "call" | "save_text" => MAX_COMMAND_BYTES,
        _ => MAX_BYTES,
    };
    let left = match body {
        InvokeBody::Json(value) => left(value, most),
        InvokeBody::Raw(bytes) => most.checked_sub(bytes.len()),
    };
    let sentence = || format!("A command may have at most {} MiB.", most >> 20);
    left.is_none().then(|| Failure::new(FailureCode::Invalid, sentence()))
}

/// Returns how much of `most` bytes a value leaves, about as JSON writes it. Stops as soon as the
/// value has more, and returns `None`.
fn left(value: &Value, most: usize) -> Option<usize> {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => most.checked_sub(8),
        Value::String(text) => most.checked_sub(text.len() + 2),
        Value::Array(values) => values.iter().try_fold(most, |most, value| left(value, most)),
        Value::Object(fields) => fields
            .iter()
            .try_fold(most, |most, (name, value)| left(value, most.checked_sub(name.len() + 4)?)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(command: &str, body: InvokeBody, expected: Option<&str>) {
        let refused = refusal(command, &body).map(|failure| failure.message);
        assert_eq!(refused.as_deref(), expected, "{command}");
    }

    #[test]
    fn refuses_too_large_arguments_in_one_sentence() {
        let text = |bytes: usize| InvokeBody::Json(json!({ "a": ["", "x".repeat(bytes)] }));
        let small = "A command may have at most 4 MiB.";
        let large = "A command may have at most 64 MiB.";
        for command in
            ["import_chats", "import_model", "list_dropped", "show_menus", "read_document"]
        {
            check(command, text(4 << 20), Some(small));
            check(command, text(3 << 20), None);
        }
        for command in ["call", "save_text"] {
            check(command, text(4 << 20), None);
            check(command, text(64 << 20), Some(large));
            check(command, InvokeBody::Raw(vec![0; (64 << 20) + 1]), Some(large));
        }
        // Many small values, and many names.
        check("import_chats", InvokeBody::Json(json!(vec![0; 1 << 20])), Some(small));
        let names: serde_json::Map<_, _> =
            (0..1 << 18).map(|n| (format!("name {n}"), Value::Null)).collect();
        check("import_chats", InvokeBody::Json(Value::Object(names)), Some(small));
    }
}
