//! The channels of Harmony.

use crate::kit::{Part, call, check_after, malformed, reasoning, text, unfinished};

#[test]
fn harmony_channels_become_segments() {
    let names = ("<|channel|>analysis", "harmony");
    let check = |answer: &str, expected: &[Part]| {
        check_after(
            names,
            "<|start|>system<|message|>x<|end|><|start|>assistant",
            answer,
            expected,
        );
    };
    check(
        "<|channel|>analysis<|message|>Hm. {<|end|><|start|>assistant<|channel|>final<|message|>Hi.\
         <|return|>",
        &[reasoning("Hm. {"), text("Hi.")],
    );
    check(
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary \
         to=functions.weather <|constrain|>json<|message|>{\"a\": \"<|call|>\"}<|call|>",
        &[text("I look."), call("weather", "{\"a\": \"<|call|>\"}")],
    );
    check(" to=functions.f<|channel|>commentary json<|message|> {} \n", &[call("f", "{}")]);
    check(
        "<|channel|>analysis to=python<|message|>print(1)<|call|>",
        &[malformed("python", "print(1)")],
    );
    check(
        "<|channel|>commentary to=functions.f<|message|>{\"a\": tru<|call|>b",
        &[malformed("f", "{\"a\": tru"), text("b")],
    );
    check(
        "<|channel|>commentary to=functions.f<|message|>{\"a\": tru",
        &[unfinished("f", "{\"a\": tru", "{\"a\": tru")],
    );
    check("<|channel|>commentary to=functions.f<|message|>", &[unfinished("f", "", "")]);
    // A header that breaks off, and an answer without one.
    check("<|channel|>final<|message|>Hi.<|end|><|start|>assis", &[text("Hi.")]);
    check("<|channel|>fin", &[]);
    check(" to=functions.f<|chan", &[]);
    check("Hi.", &[text("Hi.")]);
    check_after(names, "", "Hi.", &[text("Hi.")]);
    check_after(
        names,
        "",
        "Hi.<|start|>assistant<|channel|>final<|message|>b <|",
        &[text("Hi."), text("b <|")],
    );
    let long = "x".repeat(300);
    check(&long, &[text(&long)]);
    check(&format!("<|channel|>{long}<|message|>y"), &[text(&long), text("y")]);
    // A prompt that has opened the message.
    let prompt = "<|start|>assistant<|channel|>analysis<|message|>";
    check_after(names, prompt, "Hm.<|end|>Hi.<|eot|>", &[reasoning("Hm."), text("Hi.")]);
    check_after(names, "<|start|>assistant<|channel|>final", "<|message|>Hi.", &[text("Hi.")]);
}
