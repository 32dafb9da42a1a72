"""Messages through the `anthropic` client."""

import unittest

import anthropic
import support

SEARCH_TOOL = {"name": "search", "description": "Search the web.",
               "input_schema": support.SEARCH_SCHEMA}
OFF = {"type": "disabled"}


class Messages(unittest.TestCase):
    def setUp(self):
        self.client = support.anthropic_client()
        self.addCleanup(self.client.close)

    def ask(self, messages, create=None, **more):
        arguments = {"model": "claude-any", "max_tokens": 200, "thinking": OFF,
                     "messages": messages, "extra_body": {"temperature": 0}}
        return (create or self.client.messages.create)(**{**arguments, **more})

    def test_answer_and_usage(self):
        question, expected = support.FACT
        messages = [{"role": "user", "content": question}]
        answer = self.ask(messages, system=[{"type": "text", "text": support.FACT_SYSTEM,
                                             "cache_control": {"type": "ephemeral"}}])
        self.assertEqual([(b.type, b.text) for b in answer.content], [("text", expected)])
        self.assertEqual(answer.stop_reason, "end_turn")
        self.assertEqual(answer.model, "claude-any")
        self.assertGreater(answer.usage.input_tokens, 0)
        self.assertGreater(answer.usage.output_tokens, 0)

    def test_cached_tokens_are_told_apart(self):
        messages = [{"role": "user", "content": "Read this. " + "The sun shines. " * 60}]
        first = self.ask(messages, max_tokens=1).usage
        again = self.ask(messages, max_tokens=1).usage
        self.assertGreater(again.cache_read_input_tokens, 0)
        self.assertEqual(again.input_tokens + again.cache_read_input_tokens,
                         first.input_tokens + first.cache_read_input_tokens)

    def test_beta_path(self):
        answer = self.ask([{"role": "user", "content": support.FACT[0]}],
                          create=self.client.beta.messages.create, betas=["any"])
        self.assertEqual(answer.stop_reason, "end_turn")

    def test_thinking(self):
        question, expected = support.SUM_THINKING
        answer = self.ask([{"role": "user", "content": question}], max_tokens=2000,
                          thinking={"type": "enabled", "budget_tokens": 1024})
        thinking, text = answer.content
        self.assertIn("digit by digit", thinking.thinking)
        self.assertTrue(thinking.signature)
        self.assertIn(expected, text.text)

    def test_stream_events_in_order(self):
        events = list(self.ask([{"role": "user", "content": support.SUM_THINKING[0]}], stream=True,
                               max_tokens=2000,
                               thinking={"type": "enabled", "budget_tokens": 1024}))
        kinds = []
        for event in events:
            kind = event.type if event.type != "content_block_delta" else event.delta.type
            if kind != "ping" and (not kinds or kinds[-1] != kind):
                kinds.append(kind)
        self.assertEqual(kinds, [
            "message_start",
            "content_block_start", "thinking_delta", "signature_delta", "content_block_stop",
            "content_block_start", "text_delta", "content_block_stop",
            "message_delta", "message_stop"])
        start = events[0].message
        self.assertEqual((start.role, start.content, start.stop_reason), ("assistant", [], None))
        self.assertGreater(start.usage.input_tokens, 0)
        (delta,) = [e for e in events if e.type == "message_delta"]
        self.assertEqual(delta.delta.stop_reason, "end_turn")
        self.assertGreater(delta.usage.output_tokens, 0)

    def test_tool_loop_streamed(self):
        messages = [{"role": "user", "content": support.SEARCH_QUESTION}]
        with self.client.messages.stream(model="tiny", max_tokens=200, thinking=OFF,
                                         messages=messages, tools=[SEARCH_TOOL],
                                         extra_body={"temperature": 0}) as stream:
            first = stream.get_final_message()
        self.assertEqual(first.stop_reason, "tool_use")
        (call,) = [b for b in first.content if b.type == "tool_use"]
        self.assertEqual((call.name, call.input), ("search", support.SEARCH_ARGUMENTS))
        messages += [
            {"role": "assistant", "content": [{"type": "tool_use", "id": call.id,
                                               "name": call.name, "input": call.input}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                          "content": "The capital of Latvia is Riga."}]}]
        second = self.ask(messages, tools=[SEARCH_TOOL])
        self.assertIn("Riga", second.content[0].text)
        self.assertEqual(second.stop_reason, "end_turn")

    def test_tool_use_whole(self):
        answer = self.ask([{"role": "user", "content": support.SEARCH_QUESTION}],
                          tools=[SEARCH_TOOL])
        (call,) = [b for b in answer.content if b.type == "tool_use"]
        self.assertEqual(call.input, support.SEARCH_ARGUMENTS)
        self.assertTrue(call.id.startswith("toolu_"))

    def test_stop_reasons(self):
        story = [{"role": "user", "content": support.STORY}]
        whole = self.ask(story, max_tokens=60)
        self.assertEqual(whole.stop_reason, "max_tokens")
        stop = whole.content[0].text[30:47]
        cut = self.ask(story, max_tokens=60, stop_sequences=[stop])
        self.assertEqual((cut.stop_reason, cut.stop_sequence), ("stop_sequence", stop))
        self.assertEqual(cut.content[0].text,
                         whole.content[0].text[:whole.content[0].text.index(stop)])

    def test_prefill_is_continued(self):
        question, expected = support.FACT
        begun = "The capital of Bolivia"
        answer = self.ask([{"role": "user", "content": question},
                           {"role": "assistant", "content": begun}], system=support.FACT_SYSTEM)
        self.assertEqual(begun + answer.content[0].text, expected)

    def test_count_tokens(self):
        messages = [{"role": "user", "content": support.FACT[0]}]
        count = self.client.messages.count_tokens(model="tiny", messages=messages, thinking=OFF)
        usage = self.ask(messages).usage
        self.assertEqual(count.input_tokens, usage.input_tokens + usage.cache_read_input_tokens)

    def test_models(self):
        page = self.client.models.list()
        self.assertEqual([m.id for m in page.data], ["tiny"])
        self.assertEqual(page.data[0].type, "model")
        self.assertFalse(page.has_more)

    def test_errors(self):
        message = [{"role": "user", "content": "Hi"}]
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.ask(message, max_tokens=0)
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.ask([{"role": "user", "content": "word " * 6000}])
        self.assertRegex(str(caught.exception), r"prompt is too long: \d+ tokens > \d+")
        with self.assertRaises(anthropic.BadRequestError):
            self.ask(message, tools=[{"type": "bash_20250124", "name": "bash"}])
        with self.assertRaises(anthropic.AuthenticationError):
            support.anthropic_client(key="wrong").messages.count_tokens(model="x",
                                                                        messages=message)
        with self.assertRaises(anthropic.NotFoundError):
            self.client.models.retrieve("another")
