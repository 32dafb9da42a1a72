"""Chat completions through the `openai` client."""

import json
import unittest

import openai
import support

NO_THINKING = {"thinking": {"type": "disabled"}}
SEARCH_TOOL = {"type": "function",
               "function": {"name": "search", "description": "Search the web.",
                            "parameters": support.SEARCH_SCHEMA}}


def user(text):
    return [{"role": "user", "content": text}]


class Chat(unittest.TestCase):
    def setUp(self):
        self.client = support.openai_client()
        self.addCleanup(self.client.close)

    def ask(self, messages, thinking=False, **more):
        arguments = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 200,
                     "extra_body": {} if thinking else NO_THINKING}
        return self.client.chat.completions.create(**{**arguments, **more})

    def test_answer_and_usage(self):
        question, expected = support.FACT
        answer = self.ask([{"role": "system", "content": support.FACT_SYSTEM}] + user(question))
        choice = answer.choices[0]
        self.assertEqual(choice.message.content, expected)
        self.assertEqual(choice.finish_reason, "stop")
        self.assertIsNone(choice.message.tool_calls)
        usage = answer.usage
        self.assertGreater(usage.prompt_tokens, 0)
        self.assertGreater(usage.completion_tokens, 0)
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertEqual(usage.completion_tokens_details.reasoning_tokens, 0)

    def test_stream_equals_whole_answer(self):
        whole = self.ask(user(support.STORY), max_tokens=60)
        chunks = list(self.ask(user(support.STORY), max_tokens=60, stream=True,
                               stream_options={"include_usage": True}))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual(len({c.id for c in chunks}), 1)
        finishes = [c.choices[0].finish_reason for c in chunks if c.choices]
        self.assertEqual(finishes[-1], "length")
        self.assertEqual(set(finishes[:-1]), {None})
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 60)

    def test_thinking(self):
        question, expected = support.SUM_THINKING
        answer = self.ask(user(question), thinking=True)
        message = answer.choices[0].message
        self.assertIn(expected, message.content)
        self.assertIn("digit by digit", message.reasoning_content)
        reasoning = answer.usage.completion_tokens_details.reasoning_tokens
        self.assertGreater(reasoning, 0)
        self.assertLess(reasoning, answer.usage.completion_tokens)
        pieces = [c.choices[0].delta for c in self.ask(user(question), thinking=True, stream=True)]
        reasoned = [getattr(d, "reasoning_content", None) or "" for d in pieces]
        self.assertEqual("".join(reasoned), message.reasoning_content)
        self.assertEqual("".join(d.content or "" for d in pieces), message.content)
        self.assertIsNone(getattr(self.ask(user(question), thinking=True, reasoning_effort="none")
                                  .choices[0].message, "reasoning_content", None))

    def test_tool_loop(self):
        messages = user(support.SEARCH_QUESTION)
        first = self.ask(messages, tools=[SEARCH_TOOL])
        self.assertEqual(first.choices[0].finish_reason, "tool_calls")
        (call,) = first.choices[0].message.tool_calls
        self.assertEqual(call.function.name, "search")
        self.assertEqual(json.loads(call.function.arguments), support.SEARCH_ARGUMENTS)
        messages.append(first.choices[0].message.model_dump(exclude_none=True))
        messages.append({"role": "tool", "tool_call_id": call.id,
                         "content": "The capital of Latvia is Riga."})
        second = self.ask(messages, tools=[SEARCH_TOOL])
        self.assertEqual(second.choices[0].finish_reason, "stop")
        self.assertIn("Riga", second.choices[0].message.content)
        self.assertGreater(second.usage.prompt_tokens_details.cached_tokens,
                           first.usage.prompt_tokens // 2)

    def test_tool_call_streamed(self):
        chunks = list(self.ask(user(support.SEARCH_QUESTION), tools=[SEARCH_TOOL], stream=True))
        deltas = [d for c in chunks for d in c.choices[0].delta.tool_calls or []]
        self.assertEqual({d.index for d in deltas}, {0})
        self.assertEqual(deltas[0].function.name, "search")
        self.assertTrue(deltas[0].id)
        self.assertEqual([d.id for d in deltas[1:]], [None] * (len(deltas) - 1))
        self.assertGreater(len(deltas), 2)
        self.assertEqual(json.loads("".join(d.function.arguments or "" for d in deltas)),
                         support.SEARCH_ARGUMENTS)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "tool_calls")

    def test_tool_choice(self):
        forced = self.ask(user(support.SEARCH_QUESTION), tools=[SEARCH_TOOL],
                          tool_choice={"type": "function", "function": {"name": "search"}})
        self.assertEqual(forced.choices[0].message.tool_calls[0].function.name, "search")
        none = self.ask(user(support.SEARCH_QUESTION), tools=[SEARCH_TOOL], tool_choice="none",
                        max_tokens=30)
        self.assertIsNone(none.choices[0].message.tool_calls)

    def test_logprobs(self):
        answer = self.ask(user(support.FACT[0]), logprobs=True, top_logprobs=3)
        tokens = answer.choices[0].logprobs.content
        self.assertEqual("".join(t.token for t in tokens), answer.choices[0].message.content)
        for token in tokens:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual(token.top_logprobs[0].token, token.token)  # greedy
            self.assertEqual(bytes(token.bytes).decode(), token.token)
        streamed = [t for c in self.ask(user(support.FACT[0]), logprobs=True, stream=True)
                    if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
        self.assertEqual([t.token for t in streamed], [t.token for t in tokens])

    def test_several_choices(self):
        answer = self.ask(user(support.STORY), n=3, temperature=1, seed=5, max_tokens=40)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2])
        self.assertEqual(len({c.message.content for c in answer.choices}), 3)
        streamed = ["", "", ""]
        for chunk in self.ask(user(support.STORY), n=3, temperature=1, seed=5, max_tokens=40,
                              stream=True):
            for choice in chunk.choices:
                streamed[choice.index] += choice.delta.content or ""
        self.assertEqual(streamed, [c.message.content for c in answer.choices])

    def test_stop(self):
        whole = self.ask(user(support.STORY), max_tokens=60).choices[0].message.content
        stop = whole[30:47]  # across several tokens
        cut = self.ask(user(support.STORY), max_tokens=60, stop=[stop, "never"])
        self.assertEqual(cut.choices[0].message.content, whole[:whole.index(stop)])
        self.assertEqual(cut.choices[0].finish_reason, "stop")
        streamed = "".join(c.choices[0].delta.content or ""
                           for c in self.ask(user(support.STORY), max_tokens=60, stop=stop,
                                             stream=True))
        self.assertEqual(streamed, whole[:whole.index(stop)])

    def test_seed(self):
        def draw(seed):
            return self.ask(user(support.STORY), temperature=1, seed=seed,
                            max_tokens=40).choices[0].message.content
        self.assertEqual(draw(1), draw(1))
        self.assertNotEqual(draw(1), draw(2))

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(user("Hi"), temperature=7)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(user("word " * 6000))
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.AuthenticationError):
            support.openai_client(key="wrong").models.list()
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("another")

    def test_models(self):
        (model,) = self.client.models.list().data
        self.assertEqual(model.id, "tiny")
        self.assertEqual(self.client.models.retrieve("tiny").max_model_len, 4096)

    def test_unknown_fields_are_named(self):
        answer = self.client.chat.completions.with_raw_response.create(
            model="any", messages=user("Hi"), max_tokens=1, extra_body={"wibble": 1})
        self.assertIn("wibble", answer.headers["x-peregrine-warning"])

    def test_disconnect_ends_the_generation(self):
        stream = self.ask(user(support.STORY), max_tokens=2000, stream=True,
                          logit_bias={"1": -100})
        next(iter(stream))
        stream.close()
        # The server still answers, and ends cleanly afterwards.
        self.assertEqual(self.ask(user("Thanks")).choices[0].finish_reason, "stop")


