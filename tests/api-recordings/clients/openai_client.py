"""OpenAI's Python client against Cairn: every answer is parsed into the client's own types.

CAIRN_URL and CAIRN_KEY say where. Each call has a name, by which `make interop` records it.
"""

import asyncio
import os
from enum import Enum

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

URL = os.environ["CAIRN_URL"] + "/v1"
KEY = os.environ["CAIRN_KEY"]
client = OpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=120)

# The scripted model says the same whatever it is asked; the others are random.
SCRIPTED, RANDOM, SMALL = "scripted", "tiny-tools", "tiny-chat"
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is it?"}]
# Without an end of the answer, and with few blanks in JSON.
NO_END = {"256": -100, "258": -100}
FEW_BLANKS = {str(blank): -100 for blank in (9, 10, 13, 32)}
ENDLESS = 1_000_000


def case(name):
    return {"x-case": name}


class Color(Enum):
    red = "red"
    blue = "blue"


class Stone(BaseModel):
    color: Color
    is_flat: bool


PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "Looks.", "parameters": PARAMETERS},
    }
    for name in ("look", "go")
]
CALLS = [("look", '{"at": "é"}'), ("go", "{}")]


def models():
    names = [model.id for model in client.models.list(extra_headers=case("models are listed"))]
    assert {RANDOM, SMALL} <= set(names), names
    one = client.models.retrieve(SMALL, extra_headers=case("a model is looked up"))
    assert one.id == SMALL and one.object == "model"


def chats():
    answer = client.chat.completions.create(
        model=SCRIPTED,
        messages=ASKED,
        tools=TOOLS,
        max_completion_tokens=400,
        extra_headers=case("a chat thinks, speaks and calls"),
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "I look."
    assert choice.message.reasoning_content == "Where?"
    calls = choice.message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == CALLS
    assert (
        answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    )

    results = [{"role": "tool", "tool_call_id": call.id, "content": "There."} for call in calls]
    said = choice.message.model_dump(exclude_none=True)
    answer = client.chat.completions.create(
        model=SCRIPTED,
        messages=[*ASKED, said, *results],
        tools=TOOLS,
        max_completion_tokens=400,
        extra_headers=case("a chat goes on with the results of its calls"),
    )
    assert answer.choices[0].finish_reason == "tool_calls"

    with client.chat.completions.stream(
        model=SCRIPTED,
        messages=ASKED,
        tools=TOOLS,
        max_completion_tokens=400,
        stream_options={"include_usage": True},
        extra_headers=case("a chat is streamed with calls"),
    ) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion()
    assert {"chunk", "content.delta", "tool_calls.function.arguments.done"} <= kinds, kinds
    message = answer.choices[0].message
    assert message.content == "I look."
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls]
    assert calls == CALLS and answer.usage.completion_tokens > 0

    answer = client.chat.completions.create(
        model=SCRIPTED,
        messages=ASKED,
        stop=["look"],
        max_tokens=400,
        temperature=0,
        extra_headers=case("a chat stops at a text"),
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == "I ", answer


def predicted():
    answer = client.chat.completions.create(
        model=SCRIPTED,
        messages=ASKED,
        max_tokens=400,
        prediction={"type": "content", "content": "I look."},
        extra_headers=case("a chat is answered as predicted"),
    )
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens >= 0 and details.rejected_prediction_tokens >= 0
    assert answer.choices[0].message.content.startswith("I look."), answer


def schemas():
    asked = dict(
        model=RANDOM, messages=ASKED, seed=3, max_completion_tokens=400, logit_bias=FEW_BLANKS
    )
    answer = client.chat.completions.parse(
        **asked, response_format=Stone, extra_headers=case("a chat answers with a type")
    )
    assert isinstance(answer.choices[0].message.parsed, Stone)
    tool = openai.pydantic_function_tool(Stone, name="find")
    answer = client.chat.completions.parse(
        **asked,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        extra_headers=case("a strict tool is called with a type"),
    )
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "find" and isinstance(call.function.parsed_arguments, Stone)
    with client.chat.completions.stream(
        **asked,
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "find"}},
        extra_headers=case("a named tool is called in a stream"),
    ) as stream:
        answer = stream.get_final_completion()
    assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Stone)
    response = client.responses.parse(
        model=RANDOM,
        input="Which?",
        text_format=Stone,
        max_output_tokens=400,
        extra_body={"logit_bias": FEW_BLANKS, "seed": 3},
        extra_headers=case("a response answers with a type"),
    )
    assert isinstance(response.output_parsed, Stone)


def logprobs():
    asked = dict(
        model=RANDOM,
        messages=ASKED,
        max_tokens=6,
        logprobs=True,
        top_logprobs=4,
        temperature=0,
        logit_bias=NO_END,
    )
    answer = client.chat.completions.create(
        **asked, extra_headers=case("tokens have log-probabilities")
    )
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 6 and all(len(token.top_logprobs) == 4 for token in tokens)
    assert all(token.logprob <= 0 for token in tokens)
    streamed = client.chat.completions.create(
        **asked, stream=True, extra_headers=case("tokens have log-probabilities in a stream")
    )
    chunks = [chunk.choices[0].logprobs for chunk in streamed if chunk.choices]
    assert sum(len(logprobs.content) for logprobs in chunks if logprobs) == 6
    answer = client.completions.create(
        model=RANDOM,
        prompt="A cairn",
        max_tokens=4,
        logprobs=2,
        temperature=0,
        logit_bias=NO_END,
        extra_headers=case("a text is continued with log-probabilities"),
    )
    assert len(answer.choices[0].logprobs.token_logprobs) == 4


def texts():
    asked = dict(model=RANDOM, max_tokens=5, temperature=0, logit_bias=NO_END)
    answer = client.completions.create(
        **asked, prompt="A cairn is", extra_headers=case("a text is continued")
    )
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 5
    streamed = client.completions.create(
        **asked,
        prompt=list(b"A cairn is"),
        stream=True,
        stream_options={"include_usage": True},
        extra_headers=case("tokens are continued in a stream"),
    )
    chunks = list(streamed)
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert text == answer.choices[0].text
    assert chunks[-1].usage.completion_tokens == 5


def responses():
    tools = [
        {"type": "function", "name": name, "parameters": PARAMETERS} for name in ("look", "go")
    ]
    asked = dict(
        model=SCRIPTED,
        instructions="Be brief.",
        input="Where is it?",
        tools=tools,
        max_output_tokens=400,
    )
    response = client.responses.create(
        **asked, extra_headers=case("a response thinks, speaks and calls")
    )
    assert response.status == "completed" and response.output_text == "I look."
    assert [item.type for item in response.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert [tool.name for tool in response.tools] == ["look", "go"]
    calls = [item for item in response.output if item.type == "function_call"]
    assert [(call.name, call.arguments) for call in calls] == CALLS

    earlier = [item.model_dump(exclude_none=True) for item in response.output]
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "There."}
        for call in calls
    ]
    again = client.responses.create(
        **{**asked, "input": [{"role": "user", "content": "Where is it?"}, *earlier, *results]},
        extra_headers=case("a response goes on with the results of its calls"),
    )
    assert again.output_text == "I look."

    with client.responses.stream(**asked, extra_headers=case("a response is streamed")) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert final.output_text == "I look." and len(final.output) == 4
    response = client.responses.create(
        model=RANDOM,
        input="Where?",
        max_output_tokens=5,
        temperature=0,
        extra_body={"logit_bias": NO_END},
        extra_headers=case("a response is cut"),
    )
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"


def fails(kind, status, call, **checked):
    try:
        call()
    except kind as error:
        assert error.status_code == status, error
        for field, value in checked.items():
            assert getattr(error, field) == value, (field, getattr(error, field), error)
        return error
    raise AssertionError(f"no {kind.__name__}")


def errors():
    ask = client.chat.completions.create
    fails(
        openai.NotFoundError,
        404,
        lambda: ask(model="no/such", messages=ASKED, extra_headers=case("an unknown model")),
        code="model_not_found",
    )
    fails(
        openai.NotFoundError,
        404,
        lambda: client.models.retrieve(
            "no/such", extra_headers=case("an unknown model is looked up")
        ),
        code="model_not_found",
    )
    stranger = client.with_options(api_key="wrong")
    fails(
        openai.AuthenticationError,
        401,
        lambda: stranger.models.list(extra_headers=case("a wrong key")),
        code="invalid_api_key",
    )
    long = [{"role": "user", "content": "stone " * 800}]
    for stream in (False, True):
        fails(
            openai.BadRequestError,
            400,
            lambda: ask(
                model=SMALL,
                messages=long,
                stream=stream,
                extra_headers=case(f"a prompt that is too long{', streamed' * stream}"),
            ),
            code="context_length_exceeded",
        )
    fails(
        openai.BadRequestError,
        400,
        lambda: ask(
            model=SMALL,
            messages=ASKED,
            temperature=-1,
            extra_headers=case("a temperature below 0"),
        ),
        param="temperature",
    )
    fails(
        openai.BadRequestError,
        400,
        lambda: ask(model=SMALL, messages=ASKED, n=2, extra_headers=case("two answers")),
        param="n",
        code="unsupported_parameter",
    )
    fails(
        openai.BadRequestError,
        400,
        lambda: client.responses.create(
            model=SMALL,
            input="x",
            previous_response_id="resp_1",
            extra_headers=case("an earlier response"),
        ),
        param="previous_response_id",
    )
    some_null = {"name": "x", "schema": {"type": "array", "contains": {"type": "null"}}}
    fails(
        openai.BadRequestError,
        400,
        lambda: ask(
            model=RANDOM,
            messages=ASKED,
            response_format={"type": "json_schema", "json_schema": some_null},
            extra_headers=case("a schema that cannot be kept to"),
        ),
        param="response_format",
    )


def endless(headers=None):
    return client.chat.completions.create(
        model=RANDOM,
        messages=ASKED,
        stream=True,
        max_tokens=ENDLESS,
        logit_bias=NO_END,
        extra_headers=headers,
    )


def cancelled():
    # More than may run at once: if one were still running, a later one would be told to wait.
    for number in range(80):
        stream = endless(case("a client goes away") if number == 0 else None)
        for _ in zip(range(3), stream):
            pass
        stream.close()


def too_many():
    running = [endless() for _ in range(64)]
    error = fails(
        openai.RateLimitError,
        429,
        lambda: endless(case("too many at once")),
        code="rate_limit_exceeded",
    )
    assert int(error.response.headers["retry-after"]) >= 1
    for stream in running:
        stream.close()
    # The client tries again when it is told to wait.
    answer = client.with_options(max_retries=8).chat.completions.create(
        model=SCRIPTED, messages=ASKED, max_tokens=400, extra_headers=case("room again")
    )
    assert answer.choices[0].message.content.startswith("I look.")


async def parallel():
    async with AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0) as many:
        asked = [
            many.chat.completions.create(
                model=RANDOM,
                messages=ASKED,
                seed=number,
                max_tokens=8,
                logit_bias=NO_END,
                # Only one is recorded, and any may be the first to arrive.
                extra_headers=case("one of many at once") if number == 1 else None,
            )
            for number in range(32)
        ]
        answers = await asyncio.gather(*asked)
    assert all(answer.usage.completion_tokens == 8 for answer in answers)


for check in (
    models,
    chats,
    predicted,
    schemas,
    logprobs,
    texts,
    responses,
    errors,
    cancelled,
    too_many,
):
    check()
asyncio.run(parallel())
print(f"openai {openai.__version__}: every answer was as its types say")
