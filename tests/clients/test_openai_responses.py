"""The Responses API through the `openai` client."""

import json
import unittest

import openai
import support

SEARCH_TOOL = {"type": "function", "name": "search", "description": "Search the web.",
               "parameters": support.SEARCH_SCHEMA, "strict": False}


class Responses(unittest.TestCase):
    def setUp(self):
        self.client = support.openai_client()
        self.addCleanup(self.client.close)

    def ask(self, input_items, effort="none", **more):
        arguments = {"model": "tiny", "input": input_items, "temperature": 0,
                     "max_output_tokens": 200, "reasoning": {"effort": effort}, "store": False}
        return self.client.responses.create(**{**arguments, **more})

    def test_create(self):
        question, expected = support.FACT
        answer = self.ask(question, instructions=support.FACT_SYSTEM, metadata={"a": "b"})
        self.assertEqual(answer.output_text, expected)
        self.assertEqual(answer.status, "completed")
        self.assertEqual([i.type for i in answer.output], ["message"])
        self.assertEqual(answer.metadata, {"a": "b"})
        self.assertEqual(answer.instructions, support.FACT_SYSTEM)
        usage = answer.usage
        self.assertEqual(usage.total_tokens, usage.input_tokens + usage.output_tokens)
        self.assertEqual(usage.output_tokens_details.reasoning_tokens, 0)

    def test_incomplete(self):
        answer = self.ask(support.STORY, max_output_tokens=5)
        self.assertEqual(answer.status, "incomplete")
        self.assertEqual(answer.incomplete_details.reason, "max_output_tokens")

    def test_reasoning_comes_back(self):
        question, expected = support.SUM_THINKING
        first = self.ask(question, effort="high", include=["reasoning.encrypted_content"])
        reasoning, message = first.output
        self.assertEqual(reasoning.type, "reasoning")
        self.assertIn("digit by digit", reasoning.content[0].text)
        self.assertIn(expected, message.content[0].text)
        self.assertGreater(first.usage.output_tokens_details.reasoning_tokens, 0)
        # A client without the text keeps only what was sealed.
        sealed = {"type": "reasoning", "id": reasoning.id, "summary": [],
                  "encrypted_content": reasoning.encrypted_content}
        second = self.ask([{"role": "user", "content": question}, sealed,
                           message.model_dump(exclude_none=True),
                           {"role": "user", "content": "Thanks"}], effort="high")
        self.assertEqual(second.status, "completed")

    def test_stream_events_in_order(self):
        events = list(self.ask(support.SUM_THINKING[0], effort="high", stream=True))
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        kinds = []
        for event in events:
            if not kinds or kinds[-1] != event.type:
                kinds.append(event.type)
        self.assertEqual(kinds, [
            "response.created", "response.in_progress",
            "response.output_item.added", "response.content_part.added",
            "response.reasoning_text.delta", "response.reasoning_text.done",
            "response.content_part.done", "response.output_item.done",
            "response.output_item.added", "response.content_part.added",
            "response.output_text.delta", "response.output_text.done",
            "response.content_part.done", "response.output_item.done",
            "response.completed"])
        final = events[-1].response
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        self.assertEqual(text, final.output_text)
        self.assertEqual(final.id, events[0].response.id)
        self.assertGreater(final.usage.output_tokens, 0)
        done = [e.item for e in events if e.type == "response.output_item.done"]
        self.assertEqual([i.id for i in done], [i.id for i in final.output])

    def test_summary_is_streamed_when_asked_for(self):
        events = list(self.ask(support.SUM_THINKING[0], stream=True,
                               reasoning={"effort": "high", "summary": "auto"}))
        summary = "".join(e.delta for e in events
                          if e.type == "response.reasoning_summary_text.delta")
        self.assertIn("digit by digit", summary)
        self.assertEqual(events[-1].response.output[0].summary[0].text, summary)

    def test_tool_loop(self):
        items = [{"role": "user", "content": support.SEARCH_QUESTION}]
        first = self.ask(items, tools=[SEARCH_TOOL, {"type": "web_search"}])
        (call,) = [i for i in first.output if i.type == "function_call"]
        self.assertEqual(call.name, "search")
        self.assertEqual(json.loads(call.arguments), support.SEARCH_ARGUMENTS)
        items += [i.model_dump(exclude_none=True) for i in first.output]
        items.append({"type": "function_call_output", "call_id": call.call_id,
                      "output": "The capital of Latvia is Riga."})
        self.assertIn("Riga", self.ask(items, tools=[SEARCH_TOOL]).output_text)

    def test_tool_call_streamed(self):
        events = list(self.ask(support.SEARCH_QUESTION, tools=[SEARCH_TOOL], stream=True))
        deltas = [e for e in events if e.type == "response.function_call_arguments.delta"]
        self.assertGreater(len(deltas), 2)
        (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
        self.assertEqual("".join(e.delta for e in deltas), done.arguments)
        self.assertEqual(json.loads(done.arguments), support.SEARCH_ARGUMENTS)

    def test_namespace_and_custom_tools(self):
        space = {"type": "namespace", "name": "web", "description": "The web.",
                 "tools": [SEARCH_TOOL]}
        answer = self.ask(support.SEARCH_QUESTION, tools=[space],
                          tool_choice={"type": "function", "name": "search"})
        (call,) = [i for i in answer.output if i.type == "function_call"]
        self.assertEqual((call.name, call.namespace), ("search", "web"))
        custom = {"type": "custom", "name": "note", "description": "Keeps a note."}
        events = list(self.ask("Keep a note.", tools=[custom], stream=True, max_output_tokens=60,
                               tool_choice={"type": "custom", "name": "note"}))
        (added,) = [e.item for e in events if e.type == "response.output_item.added"]
        self.assertEqual((added.type, added.name), ("custom_tool_call", "note"))
        final = events[-1].response.output[0]
        shown = "".join(e.delta for e in events if e.type == "response.custom_tool_call_input.delta")
        self.assertEqual(shown, final.input)

    def test_errors(self):
        for field, value in [("previous_response_id", "resp_1"), ("background", True)]:
            with self.assertRaises(openai.BadRequestError) as caught:
                self.ask("Hi", **{field: value})
            self.assertEqual(caught.exception.param, field)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask([{"role": "wizard", "content": "Hi"}])
        self.assertEqual(caught.exception.param, "input[0].role")
