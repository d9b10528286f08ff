"""What Python's Jinja makes of chat templates, by transformers' environment (sandboxed, with its whitespace rules and additions).

`python tests/goldens/make_goldens.py templates` renders CONVERSATIONS with each `*.jinja` of `tests/goldens/templates/` and writes `expected.json`
there; with a folder behind it, of that one, which `TEMPLATES=FOLDER cargo test -p cairn-chat --test families` then compares.

    conversations   name → messages and tools in OpenAI's form, variables, and the day, where there is one
    rendered        template → conversation → its text, {"refused": what the template raises} or {"fails": Python's error}

Without a day `strftime_now` is undefined, as in Cairn, unless the template calls it without asking. A template that takes a call's arguments for a
text gets them as one.
"""

import json
from datetime import datetime
from importlib.metadata import version

import jinja2
from oracle import GOLDENS, check_versions
from transformers.utils import chat_template_utils

FOLDER = GOLDENS / "templates"
SPECIAL = {"bos_token": "<|first|>", "eos_token": "<|last|>"}
DAY = "2026-03-09"

# What templates cut, trim, quote and escape.
ODD = "  A <b>\"bold\"</b> & 'plain' {{ 7 * 7 }} — naïve, 你好, 🪨?\n\n"


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def answer(text, reasoning=None, calls=()):
    message = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}} for id, name, arguments in calls
        ]
    return message


def result(id, name, text):
    return {"role": "tool", "tool_call_id": id, "name": name, "content": text}


def tool(name, description, properties, required):
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    tool(
        "weather",
        'The weather of a city, as <degrees> & "words".',
        {
            "city": {"type": "string", "description": "Where"},
            "days": {"type": "integer", "default": 1, "minimum": 1},
            "unit": {"type": "string", "enum": ["°C", "°F"]},
        },
        ["city"],
    ),
    tool("add", "Adds numbers.", {"of": {"type": "array", "items": {"type": "number"}}, "exact": {"type": ["boolean", "null"]}}, ["of"]),
]  # fmt: skip
ONE_CALL = [("call00001", "weather", {"city": "Zürich", "days": 2})]
TWO_CALLS = [("call00002", "add", {"of": [1, 2.5, -3], "exact": True}), ("call00003", "weather", {"city": 'Rio "de" Janeiro'})]
CALLS = [
    system("Be exact."),
    user("What is the weather?"),
    answer("I look.", None, ONE_CALL),
    result("call00001", "weather", '{"degrees": 7}'),
]
CONVERSATIONS = {
    "plain": {"messages": [user(ODD)]},
    "system": {"messages": [system(ODD), user("Hi")]},
    "turns": {"messages": [system("Be brief."), user("One?"), answer("  One.\n"), user(ODD), answer("Two."), user("Three?")]},
    "reasoned": {"messages": [user("One?"), answer("One.", "\nIt is one.\n"), user("Two?")]},
    "written": {"messages": [user("One?"), answer("<think>\nIt is one.\n</think>\n\nOne."), user("Two?")]},
    "thinks": {"messages": [user("One?")], "variables": {"enable_thinking": True, "thinking": True}},
    "thinks not": {"messages": [user("One?")], "variables": {"enable_thinking": False, "thinking": False}},
    "effort": {"messages": [system("Be brief."), user("One?")], "variables": {"reasoning_effort": "high"}},
    "tools": {"messages": [user("Hi")], "tools": TOOLS},
    "calls": {
        "messages": [
            *CALLS,
            answer("Seven degrees."),
            user("And a sum?"),
            answer("", "Two at once.", TWO_CALLS),
            result("call00002", "add", "0.5"),
            result("call00003", "weather", "<hot> & 'dry'"),
        ],
        "tools": TOOLS,
    },
    "dated": {"messages": [system("Be brief."), user("One?")], "day": DAY},
}  # fmt: skip


def with_arguments_as_text(messages):
    messages = json.loads(json.dumps(messages))
    for call in (call for message in messages for call in message.get("tool_calls", [])):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"], separators=(",", ":"), ensure_ascii=False)
    return messages


def render(source, messages, tools=None, variables=None, day=None):
    environment = chat_template_utils._cached_compile_jinja_template(source).environment
    asks = "strftime_now is defined" in source or "strftime_now is not defined" in source
    if day or not asks:
        environment.globals["strftime_now"] = datetime.fromisoformat(day or DAY).strftime
    else:
        del environment.globals["strftime_now"]
    template = environment.from_string(source)
    return template.render(messages=messages, tools=tools, documents=None, add_generation_prompt=True, **SPECIAL, **(variables or {}))


def outcome(source, conversation):
    try:
        try:
            return render(source, **conversation)
        except TypeError:
            return render(source, **conversation | {"messages": with_arguments_as_text(conversation["messages"])})
    except jinja2.exceptions.TemplateError as error:
        if type(error) is jinja2.exceptions.TemplateError:
            return {"refused": str(error)}
        return {"fails": str(error)}
    except Exception as error:
        return {"fails": f"{type(error).__name__}: {error}"}


def main(folder=FOLDER):
    check_versions()
    rendered = {}
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        rendered[path.stem] = {name: outcome(source, conversation) for name, conversation in CONVERSATIONS.items()}
        failed = [name for name, text in rendered[path.stem].items() if isinstance(text, dict)]
        print(path.stem, *(f"{name}: {rendered[path.stem][name]}" for name in failed), sep="\n    ")
    oracle = {name: version(name) for name in ("jinja2", "transformers")}
    value = {"oracle": oracle, "special": SPECIAL, "conversations": CONVERSATIONS, "rendered": rendered}
    text = json.dumps(value, ensure_ascii=False, indent=1)
    (folder / "expected.json").write_text(text + "\n", encoding="utf-8")
