#!/usr/bin/env python3
"""Makes the corpus of requests whose prompts the project compares with deepseek-recipe's.

300 requests of the three chat protocols, drawn with a fixed seed, and the prompt that
deepseek-recipe (the vendor's own library, PyPI) renders for each. The corpus is stored in
tests/data/recipe_prompts.jsonl, which a C++ test replays without the library; the client tests
make it again and compare. `recipe_corpus.py --write` stores it.

Left out, because the two differ on purpose:
- a conversation that ends with the assistant's turn: the library opens a second turn behind it,
  here Messages continue it (prefill) and the other protocols refuse it;
- free-form tools other than apply_patch, which the library refuses, and apply_patch itself, whose
  description the library replaces by a text of its own;
- agent_message items, which the library drops and which are user text here;
- a choice of tool that forces a call, which the library refuses in thinking mode;
- the role "developer" in chat, which the library refuses and is "system" here;
- thinking enabled with effort "none", of which the library obeys the first and this project the
  second;
- output_config.format in Messages, which the library keeps out of the prompt;
- calls in Responses whose ids are not in order: the library sorts the calls of a turn by their
  ids, here they stay in the order in which the model made them;
- documents in Messages, which become a note in the library and are refused here.
"""

import json
import random
import sys
from pathlib import Path

CORPUS = Path(__file__).resolve().parent.parent / "data" / "recipe_prompts.jsonl"
MODEL = "DeepSeek-V4.1-Flash"
REQUESTS_OF_A_PROTOCOL = 100

WORDS = ("the fox river 12 3.50 naïve 世界 🙂 \"quoted\" back\\slash new\nline tab\t <b> & "
         "<tool_result> [TOKEN] café don't").split(" ")
EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Maker:
    """Draws the parts that the protocols share."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.calls = 0

    def call_id(self):
        self.calls += 1
        return f"call_{self.calls:03}"

    def maybe(self, chance):
        return self.random.random() < chance

    def text(self, most=8):
        return " ".join(self.random.choice(WORDS) for _ in range(self.random.randint(1, most)))

    def value(self, depth=0):
        kind = self.random.randrange(7 if depth < 2 else 5)
        if kind == 0:
            return self.text(3)
        if kind == 1:
            return self.random.choice([0, -7, 12345678901234567890, 3.25, 1e-7, 100.0])
        if kind == 2:
            return self.maybe(0.5)
        if kind == 3:
            return None
        if kind == 4:
            return self.text(1)
        if kind == 5:
            return [self.value(depth + 1) for _ in range(self.random.randrange(3))]
        return {self.text(1): self.value(depth + 1) for _ in range(self.random.randrange(3))}

    def arguments(self):
        return {f"p{i}": self.value() for i in range(self.random.randrange(4))}

    def schema(self):
        properties = {}
        for i in range(self.random.randrange(3)):
            properties[f"p{i}"] = {"type": self.random.choice(["string", "number", "boolean"])}
            if self.maybe(0.4):
                properties[f"p{i}"]["description"] = self.text(4)
        schema = {"type": "object", "properties": properties}
        if self.maybe(0.5):
            schema["required"] = list(properties)[:1]
        return schema

    def tools(self):
        """Names, descriptions and schemas; the protocols wrap them."""
        return [{"name": f"tool_{i}", "description": self.text(5), "schema": self.schema()}
                for i in range(self.random.randint(1, 3))]

    def turns(self, with_tools):
        """User turns with the assistant's between them, the last one a user's or results."""
        turns = [{"user": self.text()}]
        for _ in range(self.random.randrange(3)):
            turn = {"assistant": self.text() if self.maybe(0.8) else "",
                    "reasoning": self.text() if self.maybe(0.5) else "", "calls": []}
            if with_tools and self.maybe(0.6):
                for _ in range(self.random.randint(1, 3)):
                    turn["calls"].append({"id": self.call_id(),
                                          "name": f"tool_{self.random.randrange(3)}",
                                          "arguments": self.arguments(), "result": self.text()})
            if not turn["assistant"] and not turn["calls"]:
                turn["assistant"] = self.text()
            turns.append(turn)
            if not turn["calls"] or self.maybe(0.3):
                turns.append({"user": self.text()})
        return turns


def shuffled(maker, items):
    items = list(items)
    maker.random.shuffle(items)
    return items


def chat_request(maker):
    with_tools = maker.maybe(0.4)
    messages = []
    for _ in range(maker.random.choice([0, 1, 1, 2])):
        messages.append({"role": "system", "content": maker.text()})
    for turn in maker.turns(with_tools):
        if "user" in turn:
            parts = [{"type": "text", "text": turn["user"]}, {"type": "text", "text": maker.text()}]
            messages.append({"role": "user",
                             "content": parts if maker.maybe(0.3) else turn["user"]})
            continue
        message = {"role": "assistant", "content": turn["assistant"]}
        if turn["reasoning"]:
            message["reasoning_content"] = turn["reasoning"]
        if turn["calls"]:
            message["tool_calls"] = [
                {"id": c["id"], "type": "function",
                 "function": {"name": c["name"], "arguments": json.dumps(c["arguments"])}}
                for c in turn["calls"]]
        messages.append(message)
        for call in shuffled(maker, turn["calls"]):
            messages.append({"role": "tool", "tool_call_id": call["id"],
                             "content": call["result"]})
    body = {"model": MODEL, "messages": messages}
    if with_tools:
        body["tools"] = [{"type": "function",
                          "function": {"name": t["name"], "description": t["description"],
                                       "parameters": t["schema"]}} for t in maker.tools()]
        if maker.maybe(0.2):
            body["tool_choice"] = maker.random.choice(["auto", "none"])
    if maker.maybe(0.3):
        body["thinking"] = {"type": maker.random.choice(["enabled", "disabled"])}
    elif maker.maybe(0.4):
        body["reasoning_effort"] = maker.random.choice(EFFORTS)
    if maker.maybe(0.15):
        body["response_format"] = {"type": "json_schema",
                                   "json_schema": {"name": "n", "schema": maker.schema()}}
    return body


def messages_request(maker):
    with_tools = maker.maybe(0.4)
    messages = []
    for turn in maker.turns(with_tools):
        if "user" in turn:
            blocks = [{"type": "text", "text": turn["user"]}]
            if maker.maybe(0.3):
                blocks.append({"type": "text", "text": maker.text()})
            # Results stand at the head of the turn that answers calls.
            if messages and messages[-1]["role"] == "user":
                messages[-1]["content"] += blocks
            else:
                messages.append({"role": "user", "content": blocks})
            continue
        blocks = []
        if turn["reasoning"]:
            blocks.append({"type": "thinking", "thinking": turn["reasoning"], "signature": "s"})
        if turn["assistant"]:
            blocks.append({"type": "text", "text": turn["assistant"]})
        for call in turn["calls"]:
            blocks.append({"type": "tool_use", "id": call["id"], "name": call["name"],
                           "input": call["arguments"]})
        messages.append({"role": "assistant", "content": blocks})
        if turn["calls"]:
            messages.append({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": call["id"],
                 "content": (call["result"] if maker.maybe(0.5)
                             else [{"type": "text", "text": call["result"]},
                                   {"type": "text", "text": "more"}])}
                for call in shuffled(maker, turn["calls"])]})
    body = {"model": MODEL, "max_tokens": 100, "messages": messages}
    if maker.maybe(0.5):
        body["system"] = (maker.text() if maker.maybe(0.5) else
                          [{"type": "text", "text": maker.text()} for _ in range(2)])
    if with_tools:
        body["tools"] = [{"name": t["name"], "description": t["description"],
                          "input_schema": t["schema"]} for t in maker.tools()]
        if maker.maybe(0.2):
            body["tool_choice"] = {"type": maker.random.choice(["auto", "none"])}
    if maker.maybe(0.4):
        body["thinking"] = maker.random.choice(
            [{"type": "enabled", "budget_tokens": 50}, {"type": "disabled"}, {"type": "adaptive"}])
    config = {}
    if maker.maybe(0.3):
        config["effort"] = maker.random.choice(["low", "medium", "high", "max"])
    if config:
        body["output_config"] = config
    return body


def responses_request(maker):
    with_tools = maker.maybe(0.4)
    items = []
    for turn in maker.turns(with_tools):
        if "user" in turn:
            items.append({"type": "message", "role": "user",
                          "content": [{"type": "input_text", "text": turn["user"]}]})
            continue
        if turn["reasoning"]:
            items.append({"type": "reasoning", "id": "rs_1", "summary": [],
                          "content": [{"type": "reasoning_text", "text": turn["reasoning"]}]})
        if turn["assistant"]:
            items.append({"type": "message", "role": "assistant",
                          "content": [{"type": "output_text", "text": turn["assistant"]}]})
        for call in turn["calls"]:
            item = {"type": "function_call", "call_id": call["id"], "name": call["name"],
                    "arguments": json.dumps(call["arguments"])}
            if maker.maybe(0.3):
                item["namespace"] = "space"
            items.append(item)
        for call in shuffled(maker, turn["calls"]):
            items.append({"type": "function_call_output", "call_id": call["id"],
                          "output": call["result"]})
    if maker.maybe(0.3):
        items.insert(0, {"role": "developer", "content": maker.text()})
    body = {"model": MODEL, "input": items if maker.maybe(0.9) else maker.text()}
    if maker.maybe(0.5):
        body["instructions"] = maker.text()
    if with_tools:
        tools = [{"type": "function", "name": t["name"], "description": t["description"],
                  "parameters": t["schema"]} for t in maker.tools()]
        if maker.maybe(0.4):
            tools = [{"type": "namespace", "name": "space", "description": maker.text(3),
                      "tools": tools}, {"type": "web_search"}]
        body["tools"] = tools
        if maker.maybe(0.2):
            body["tool_choice"] = maker.random.choice(["auto", "none"])
    if maker.maybe(0.4):
        body["reasoning"] = {"effort": maker.random.choice(EFFORTS)}
    if maker.maybe(0.15):
        body["text"] = {"format": {"type": "json_schema", "name": "n", "schema": maker.schema()}}
    return body


def build_corpus():
    """The lines of the corpus file, made with deepseek-recipe."""
    import deepseek_recipe as recipe

    protocols = [("chat", chat_request, recipe.ChatCompletionRequest),
                 ("messages", messages_request, recipe.MessagesRequest),
                 ("responses", responses_request, recipe.ResponsesRequest)]
    lines = []
    for number, (protocol, make, parse) in enumerate(protocols):
        for index in range(REQUESTS_OF_A_PROTOCOL):
            body = make(Maker(f"{number}.{index}"))
            converted = parse(json.dumps(body)).convert(recipe.ConversionOptions())
            rendered = recipe.DeepseekV41Encoding().render_conversation(converted.conversation)
            lines.append(json.dumps({"protocol": protocol, "request": body,
                                     "prompt": rendered.prompt}, ensure_ascii=False))
    return lines


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: recipe_corpus.py --write")
    CORPUS.write_text("\n".join(build_corpus()) + "\n", encoding="utf-8")
