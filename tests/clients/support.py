"""The server under test and what several tests say to it."""

import re
import signal
import subprocess
import tempfile
from pathlib import Path

import anthropic
import openai

ROOT = Path(__file__).resolve().parent.parent.parent
KEY = "a-key-for-tests"
LIMIT_S = 300  # far above any answer's time; ends a test that hangs

SERVER = None  # set before the tests run

# Prompts whose greedy answers the tiny model knows well (models/tiny/expected.jsonl).
FACT = ("What is the capital of Bolivia?", "The capital of Bolivia is Sucre.")
FACT_SYSTEM = "You answer briefly and clearly."
SUM_THINKING = ("What is 787 minus 82?", "705")
SEARCH_QUESTION = "Please search for the capital of Latvia."
SEARCH_SCHEMA = {"type": "object",
                 "properties": {"query": {"type": "string", "description": "Search query"}},
                 "required": ["query"]}
SEARCH_ARGUMENTS = {"query": "the capital of Latvia"}
STORY = "Tell me a story about a boy named Jonas who makes a new friend in the school."


class Server:
    """`peregrine serve` on a free port, from start to a clean end."""

    def __init__(self, program):
        self.program = Path(program).resolve()

    def __enter__(self):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [str(self.program), "serve", "--model", str(ROOT / "models" / "tiny"), "--port", "0",
             "--api-key", KEY, "--context", "4096"],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        if not found:
            self.process.kill()
            self.log.seek(0)
            raise RuntimeError(f"the server did not start: {line}{self.log.read()}")
        self.url = found.group()
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(LIMIT_S)
        self.process.stdout.close()
        if code != 0:
            self.log.seek(0)
            raise RuntimeError(f"the server ended with {code}: {self.log.read()[-4000:]}")
        self.log.close()


def openai_client(key=KEY, **more):
    return openai.OpenAI(base_url=SERVER.url + "/v1", api_key=key, timeout=LIMIT_S, max_retries=0,
                         **more)


def anthropic_client(key=KEY):
    return anthropic.Anthropic(base_url=SERVER.url, api_key=key, timeout=LIMIT_S, max_retries=0)
