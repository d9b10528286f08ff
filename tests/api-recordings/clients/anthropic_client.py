"""Anthropic's Python client against Cairn: every answer is parsed into the client's own types.

CAIRN_URL and CAIRN_KEY say where. Each call has a name, by which `make interop` records it.
"""

import asyncio
import os

import anthropic
from anthropic import Anthropic, AsyncAnthropic

URL, KEY = os.environ["CAIRN_URL"], os.environ["CAIRN_KEY"]
client = Anthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=120)

SCRIPTED, RANDOM, SMALL = "scripted", "tiny-tools", "tiny-chat"
ASKED = [{"role": "user", "content": "Where is it?"}]
# The client has no field for a temperature any more; the API has.
NO_END = {"logit_bias": {"256": -100, "258": -100}, "temperature": 0}
FEW_BLANKS = {"logit_bias": {str(blank): -100 for blank in (9, 10, 13, 32)}, "seed": 3}
ENDLESS = 1_000_000
PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOLS = [
    {"name": name, "description": "Looks.", "input_schema": PARAMETERS} for name in ("look", "go")
]
STONE = {
    "type": "object",
    "required": ["color"],
    "additionalProperties": False,
    "properties": {"color": {"enum": ["red", "blue"]}},
}


def case(name):
    return {"x-case": name}


def models():
    listed = list(client.models.list(extra_headers=case("models are listed")))
    assert {RANDOM, SMALL} <= {model.id for model in listed}, listed
    assert all(model.type == "model" and model.display_name for model in listed), listed


def messages():
    asked = dict(model=SCRIPTED, messages=ASKED, system="Be brief.", tools=TOOLS, max_tokens=400)
    message = client.messages.create(
        **asked, extra_headers=case("a message thinks, speaks and calls")
    )
    counted = client.messages.count_tokens(
        model=SCRIPTED,
        messages=ASKED,
        system="Be brief.",
        tools=TOOLS,
        extra_headers=case("a prompt is counted"),
    )
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens, counted
    assert message.stop_reason == "tool_use"
    assert [block.type for block in message.content] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [(call.name, call.input) for call in calls] == [("look", {"at": "é"}), ("go", {})]

    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": "There."} for call in calls
    ]
    said = [block.model_dump(exclude_none=True) for block in message.content]
    again = [*ASKED, {"role": "assistant", "content": said}, {"role": "user", "content": results}]
    message = client.messages.create(
        **{**asked, "messages": again}, extra_headers=case("a message goes on with results")
    )
    assert message.stop_reason == "tool_use"

    with client.messages.stream(**asked, extra_headers=case("a message is streamed")) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_message()
    assert {"message_start", "text", "thinking", "input_json", "message_stop"} <= kinds, kinds
    assert [block.type for block in message.content] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]
    assert message.content[2].input == {"at": "é"} and message.usage.output_tokens > 0

    message = client.messages.create(
        model=SCRIPTED,
        messages=ASKED,
        max_tokens=400,
        stop_sequences=["look"],
        extra_headers=case("a message stops at a text"),
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "look")
    message = client.messages.create(
        model=RANDOM,
        messages=ASKED,
        max_tokens=5,
        extra_body=NO_END,
        extra_headers=case("a message is cut"),
    )
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 5
    begun = [*ASKED, {"role": "assistant", "content": "Q"}]
    message = client.messages.create(
        model=SMALL,
        messages=begun,
        max_tokens=5,
        extra_body=NO_END,
        extra_headers=case("a begun answer is continued"),
    )
    assert message.stop_reason == "max_tokens"


def schemas():
    tool = {"name": "find", "input_schema": STONE, "strict": True}
    message = client.messages.create(
        model=RANDOM,
        messages=ASKED,
        max_tokens=400,
        tools=[tool],
        tool_choice={"type": "tool", "name": "find"},
        extra_body=FEW_BLANKS,
        extra_headers=case("a named tool is called"),
    )
    call = message.content[-1]
    assert call.name == "find" and call.input["color"] in ("red", "blue")
    message = client.messages.create(
        model=RANDOM,
        messages=ASKED,
        max_tokens=400,
        extra_body={
            **FEW_BLANKS,
            "output_config": {"format": {"type": "json_schema", "schema": STONE}},
        },
        extra_headers=case("a message answers with a schema"),
    )
    assert message.stop_reason == "end_turn" and message.content[0].text.startswith("{")


def fails(kind, status, call):
    try:
        call()
    except kind as error:
        assert error.status_code == status, error
        return error
    raise AssertionError(f"no {kind.__name__}")


def errors():
    def ask(name, **more):
        asked = {**dict(model=SMALL, messages=ASKED, max_tokens=5), **more}
        return client.messages.create(**asked, extra_headers=case(name))

    fails(anthropic.NotFoundError, 404, lambda: ask("an unknown model", model="no/such"))
    stranger = client.with_options(api_key="wrong")
    fails(
        anthropic.AuthenticationError,
        401,
        lambda: stranger.messages.create(
            model=SMALL, messages=ASKED, max_tokens=5, extra_headers=case("a wrong key")
        ),
    )
    long = [{"role": "user", "content": "stone " * 800}]
    fails(anthropic.BadRequestError, 400, lambda: ask("a prompt that is too long", messages=long))
    fails(
        anthropic.BadRequestError,
        400,
        lambda: ask("a temperature below 0", extra_body={"temperature": -1}),
    )
    image = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    fails(
        anthropic.BadRequestError,
        400,
        lambda: ask("an image", messages=[{"role": "user", "content": [image]}]),
    )


def endless(headers=None):
    return client.messages.create(
        model=RANDOM,
        messages=ASKED,
        max_tokens=ENDLESS,
        stream=True,
        extra_body=NO_END,
        extra_headers=headers,
    )


def cancelled():
    # More than may run at once: if one were still running, a later one would be told to wait.
    for number in range(80):
        stream = endless(case("a client goes away") if number == 0 else None)
        for _ in zip(range(5), stream):
            pass
        stream.close()


def too_many():
    running = [endless() for _ in range(64)]
    fails(anthropic.RateLimitError, 429, lambda: endless(case("too many at once")))
    for stream in running:
        stream.close()
    message = client.with_options(max_retries=8).messages.create(
        model=SCRIPTED, messages=ASKED, max_tokens=400, extra_headers=case("room again")
    )
    assert message.stop_reason == "end_turn"


async def parallel():
    async with AsyncAnthropic(base_url=URL, api_key=KEY, max_retries=0) as many:
        asked = [
            many.messages.create(
                model=RANDOM,
                messages=ASKED,
                max_tokens=8,
                extra_body=NO_END,
                extra_headers=case("one of many at once"),
            )
            for _ in range(32)
        ]
        answers = await asyncio.gather(*asked)
    assert all(answer.usage.output_tokens == 8 for answer in answers)


for check in (models, messages, schemas, errors, cancelled, too_many):
    check()
asyncio.run(parallel())
print(f"anthropic {anthropic.__version__}: every answer was as its types say")
