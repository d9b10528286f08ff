"""What schemathesis is told: requests name a model that is there, and ask for short answers."""

import schemathesis

# The one that takes tools, and the one that was loaded.
WITH_TOOLS, WITHOUT_TOOLS = "tiny-tools", "tiny-chat"
MAX_TOKENS = 16
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
LONGEST = 2**32 - 1


def is_in(value, low, high):
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


@schemathesis.hook
def map_body(context, body):
    if not isinstance(body, dict):
        return body
    # Another name would be refused before anything else is looked at.
    if isinstance(body.get("model"), str):
        body["model"] = WITH_TOOLS if body.get("tools") else WITHOUT_TOOLS
    # What is wrong stays wrong.
    for name in LENGTHS:
        if is_in(body.get(name), MAX_TOKENS, LONGEST):
            body[name] = MAX_TOKENS
    path = context.operation.path if context.operation else ""
    if not any(name in body for name in LENGTHS) and not path.endswith("/messages"):
        body["max_output_tokens" if path.endswith("/responses") else "max_tokens"] = MAX_TOKENS
    if is_in(body.get("top_logprobs"), 0, 20) and body.get("logprobs") in (None, False):
        body["logprobs"] = True
    return body
