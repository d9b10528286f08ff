//! Reasoning told apart from text.

use crate::kit::{Part, check_after, reasoning, text};

#[test]
fn reasoning_is_told_apart_from_text() {
    let check = |prompt: &str, answer: &str, expected: &[Part]| {
        check_after(("<think>", ""), prompt, answer, expected);
    };
    check("", "Hi.", &[text("Hi.")]);
    check("", "", &[]);
    check("", "<think>\nHm.\n</think>\n\nHi.", &[reasoning("Hm."), text("Hi.")]);
    check("", "<think></think>\n\nHi.\n", &[text("Hi.\n")]);
    check("", "<think>\n\n</think>\n\n Hi", &[text(" Hi")]);
    check("", "\n<think>a\n\nb\n \n</think>Hi", &[reasoning("a\n\nb\n "), text("Hi")]);
    check("", "A <think>b</think> c", &[text("A "), reasoning("b"), text(" c")]);
    check("", "<think>cut \n", &[reasoning("cut \n")]);
    check("", "<think>", &[]);
    // The template has opened it.
    check("…<think>\n", "Hm.\n</think>\n\nHi.", &[reasoning("Hm."), text("Hi.")]);
    check("…<think>", "\n\nHm.</think>Hi.", &[reasoning("Hm."), text("Hi.")]);
    check("…<think>\n", "<think>\nHm.</think>", &[reasoning("Hm.")]);
    check("…<think>\n", "Say <think>.</think>!", &[reasoning("Say <think>."), text("!")]);
    check("…<think>\n\n</think>\n\n", "Hi.", &[text("Hi.")]);
    check("write <think> twice", "Hi.", &[text("Hi.")]);
    // Something like a marker is text.
    check("", "x < y, a <think, <thin", &[text("x < y, a <think, <thin")]);
    check("", "a <", &[text("a <")]);
    check("", "<think>a </thin", &[reasoning("a </thin")]);
    check("", "<<think>a<</think>>", &[text("<"), reasoning("a<"), text(">")]);
    // A closing marker alone is structure.
    check("", "a</think>b", &[text("a"), text("b")]);
    // More line ends than belong to a marker.
    let lines = "\n".repeat(10);
    check("", &format!("a{lines}<think>b"), &[text("a\n\n"), reasoning("b")]);
    // Special tokens are no text.
    check("", "a\n<|im_end|>\nb", &[text("a\n"), text("\nb")]);
    check("", "<think>a<|im_end|>b", &[reasoning("a"), reasoning("b")]);
    check("", "a<|im_end", &[text("a<|im_end")]);
}

#[test]
fn other_markers_of_reasoning_work_alike() {
    let answer = "<seed:think>a\n</seed:think>b";
    check_after(("<seed:think>", ""), "", answer, &[reasoning("a"), text("b")]);
    check_after(("[THINK]", ""), "", "[THINK]a[/THINK]b [x]", &[reasoning("a"), text("b [x]")]);
    let answer = "<|channel>thought\na\n<channel|>b";
    check_after(("<|channel>thought", "gemma4"), "", answer, &[reasoning("a"), text("b")]);
    let prompt = "<|turn>model\n<|channel>thought\n<channel|>";
    check_after(("<|channel>thought", "gemma4"), prompt, "b", &[text("b")]);
}
