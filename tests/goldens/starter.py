"""What the starter model (SmolLM2-135M-Instruct) says in float32 to a fixed chat, by mlx-lm 0.32.2 on MLX 0.32.2 (CPU).

`python tests/goldens/make_goldens.py starter MODEL_FOLDER`, given the folder that importing the model's GGUF made, writes `tests/goldens/starter.json`:

    turns[0]    a question: 64 greedy tokens
    turns[1]    the same chat with that answer and another question: 32 greedy tokens, from an empty cache
    each turn:  messages, prompt_tokens (the chat template's, generation prompt included), tokens, text,
                gaps (per step: how far the best logprob is ahead of the second)

Scales and biases are cast to float32 before weights are dequantized, so every weight is exact in float32.
No answer meets an end-of-sequence token, and no gap is below MIN_GAP: another order of summation changes no token.
The second prompt begins with the first prompt and its answer, token for token (checked): a prompt cache can take up there.
It takes a quarter of a minute with OpenBLAS in place of the BLAS in MLX's wheel, which is much slower.
"""

import json
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.utils import dequantize_model, load
from oracle import ORACLE, check_versions

OUT = Path(__file__).parent / "starter.json"
MIN_GAP = 1e-3
QUESTIONS = [("Explain in a few sentences why the sky is blue.", 64), ("And why is it red in the evening?", 32)]


def answer(model, tokenizer, messages, num_tokens):
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    tokens, gaps = [], []
    for token, logprobs in generate_step(mx.array(prompt), model, mx.default_stream(mx.cpu), max_tokens=num_tokens):
        second, best = sorted(mx.topk(logprobs, 2).tolist())
        tokens.append(token)
        gaps.append(round(best - second, 4))
    mx.synchronize()  # generate_step has launched a step more; leaving the process during it would crash
    return {"messages": messages, "prompt_tokens": prompt, "tokens": tokens, "text": tokenizer.decode(tokens), "gaps": gaps}


def main(folder):
    check_versions()
    model, tokenizer = load(folder)
    model.set_dtype(mx.float32)
    dequantize_model(model)
    mx.eval(model.parameters())
    turns, messages = [], []
    for question, num_tokens in QUESTIONS:
        messages = [*messages, {"role": "user", "content": question}]
        turn = answer(model, tokenizer, messages, num_tokens)
        print(f"{turn['text']!r}: smallest gap {min(turn['gaps'])}")
        assert min(turn["gaps"]) > MIN_GAP, "a near tie: choose another question"
        assert not set(turn["tokens"]) & set(tokenizer.eos_token_ids), "the answer ends early: choose another question"
        turns.append(turn)
        if len(turns) == 2:
            before = turns[0]["prompt_tokens"] + turns[0]["tokens"]
            assert turn["prompt_tokens"][: len(before)] == before, "the answer is encoded otherwise than it was sampled: choose another question"
        messages = [*messages, {"role": "assistant", "content": turn["text"]}]
    text = json.dumps({"oracle": ORACLE, "model": "SmolLM2-135M-Instruct", "dtype": "float32", "turns": turns}, indent=1, ensure_ascii=False)
    OUT.write_text(text + "\n", encoding="utf-8")
