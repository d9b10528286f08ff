//! Which family a template and a vocabulary belong to.

use cairn_chat::AnswerFormat;

#[test]
fn a_family_is_recognized_by_its_template() {
    let check = |template: &str, tokens: &[&str], expected: (&str, &str)| {
        let format = AnswerFormat::of(template, |token| tokens.contains(&token));
        assert_eq!(format.names(), expected, "{template}");
    };
    check("{{ messages }}", &[], ("", ""));
    check("{{ '<tool_call>\\n{\"name\"' }}", &[], ("", "hermes"));
    check("<think> <tool_call> {\"name\": }", &[], ("<think>", "hermes"));
    check("content.split('</think>') <tool_call>\n<function=x>", &[], ("<think>", "qwen3-coder"));
    check("<tool_call>{name} <arg_key> </think>", &[], ("<think>", "glm-4.5"));
    check("<｜tool▁call▁begin｜> '```json' </think>", &[], ("<think>", "deepseek-v3"));
    check("<｜tool▁call▁begin｜>", &[], ("", "deepseek-v3.1"));
    check("[TOOL_CALLS] [THINK]", &[], ("[THINK]", "mistral"));
    check("<|start|> <|channel|> <|message|>", &[], ("<|channel|>analysis", "harmony"));
    check("<|tool_call>call: <|channel>thought", &[], ("<|channel>thought", "gemma4"));
    check("<start_of_turn> <start_function_call>", &[], ("", "function-gemma"));
    check("<start_of_turn>", &[], ("", "gemma3"));
    check("<think> within <function_calls></function_calls>", &[], ("<think>", "olmo3"));
    check("<|start_header_id|> \"parameters\": d", &[], ("", "llama3.2"));
    // The vocabulary speaks where the template is silent.
    check("{{ messages }}", &["<|python_tag|>"], ("", "llama3"));
    check("{{ messages }}", &["<|tool_call_begin|>", "<think>"], ("", "kimi-k2"));
    check("{{ messages }}", &["<think>", "</think>"], ("<think>", ""));
    check("<tool_call>", &["<|python_tag|>"], ("", "hermes"));
}
