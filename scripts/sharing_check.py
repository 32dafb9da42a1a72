#!/usr/bin/env python3
"""Servers that share conversations, as processes on this machine, with a real Redis.

    scripts/sharing_check.py [--program build/release/peregrine] [--transport auto] [--talks 8]

Plays a conversation of 20 turns round three servers and compares every answer with one server's;
then many conversations while Redis is paused, Redis is killed and restarted empty, a server knows
another secret, and an owner is killed. Prefill is exact, so that what is computed anew is equal: no
answer may differ or fail. Prints one line a part and a table of times to the first token with
sharing and without; ends with 1 if anything is wrong.
"""

import argparse
import concurrent.futures
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONG = "Once upon a time there was a little town by the sea. "


class Server:
    def __init__(self, options, folder, *more):
        self.command = [options.program, "serve", "--model", str(ROOT / "models/tiny"), "--port",
                        "0", "--threads", "1", "--kv-bytes", "134217728", "--prefill", "exact",
                        "--prefix-cache", "exact", *more]
        self.log = open(Path(folder) / "log", "a")
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log,
                                        text=True)
        line = self.process.stdout.readline()
        match = re.search(r":(\d+)\s*$", line)
        if not match:
            raise SystemExit(f"the server did not start: {' '.join(self.command)}")
        self.url = f"http://127.0.0.1:{match.group(1)}"

    def ask(self, body, session=None, path="/v1/chat/completions"):
        request = urllib.request.Request(self.url + path,
                                         json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        if session:
            request.add_header("X-Session-ID", session)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)

    def metrics(self):
        text = urllib.request.urlopen(self.url + "/metrics", timeout=60).read().decode()
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def announced(self):
        m = self.metrics()
        return m["peregrine_sharing_claims_total"] + m["peregrine_sharing_unpublished_total"]

    def ask_and_wait(self, body, session):
        """The answer, once its state was announced."""
        before = self.announced()
        answer = self.ask(body, session)
        while self.announced() <= before:
            time.sleep(0.002)
        return answer

    def kill(self):
        self.process.kill()
        self.process.wait()


class Redis:
    def __init__(self, folder):
        self.socket = f"{folder}/redis"
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", self.socket, "--save", "",
             "--appendonly", "no"], stdout=subprocess.DEVNULL)
        while subprocess.run(["redis-cli", "-s", self.socket, "ping"], capture_output=True,
                             text=True).stdout.strip() != "PONG":
            time.sleep(0.01)

    def kill(self):
        self.process.kill()
        self.process.wait()


def body_of(max_tokens=120):
    return {"messages": [], "temperature": 0.7, "seed": 5, "max_tokens": max_tokens,
            "thinking": {"type": "disabled"}}


def question(turn, salt=""):
    return f"Question {turn}{salt}: tell me more about it. " + (LONG * 12 if turn == 0 else "")


def sharing_options(options, redis, folder, secret):
    path = Path(folder) / secret
    path.write_text(secret * 4)
    return ["--kv-directory", f"unix:{redis.socket}", "--kv-listen", "127.0.0.1:0",
            "--kv-secret-file", str(path), "--kv-transport", options.transport]


def count(servers, name):
    return sum(s.metrics().get(name, 0) for s in servers)


def round_robin(servers, alone):
    """Wrong answers, computed again, prompt tokens after the first turn."""
    body, wrong, again, prompts, before = body_of(), 0, 0, 0, 0
    for turn in range(20):
        body["messages"].append({"role": "user", "content": question(turn)})
        want = alone.ask(body)
        got = servers[turn % len(servers)].ask_and_wait(body, "round")
        wrong += got["choices"] != want["choices"]
        usage = got["usage"]
        if turn > 0:
            again += max(0, before - 1 - usage["prompt_tokens_details"]["cached_tokens"])
            prompts += usage["prompt_tokens"]
        before = usage["prompt_tokens"] + usage["completion_tokens"]
        body["messages"].append({"role": "assistant",
                                 "content": got["choices"][0]["message"]["content"]})
    return wrong, again, prompts


class Talk:
    """A conversation in token ids, which no server renders in its own way."""

    def __init__(self, alone, name):
        self.alone, self.name, self.turn, self.wrong = alone, name, 0, 0
        self.body = {"prompt": [], "temperature": 0.7, "seed": 5, "max_tokens": 40}

    def ids(self, text):
        return self.alone.ask({"prompt": text, "add_special_tokens": False},
                              path="/tokenize")["tokens"]

    def play(self, servers):
        """A turn on each of the servers."""
        path = "/v1/completions"
        for server in servers:
            self.body["prompt"] += self.ids(question(self.turn, self.name))
            got = server.ask(self.body, self.name, path)["choices"]
            self.wrong += got != self.alone.ask(self.body, path=path)["choices"]
            self.body["prompt"] += self.ids(got[0]["text"])
            self.turn += 1


def under_load(options, alone, before, during, part, fault):
    """Wrong answers of conversations that play their turns before and during the fault."""
    talks = [Talk(alone, f"{part}{i}") for i in range(options.talks)]
    with concurrent.futures.ThreadPoolExecutor(options.talks) as pool:
        list(pool.map(lambda t: t.play(before), talks))
        running = [pool.submit(t.play, during) for t in talks]
        time.sleep(0.3)
        fault()
        for result in running:
            result.result()
    return sum(t.wrong for t in talks)


def first_token_ms(server, body, session):
    begin = time.monotonic()
    server.ask({**body, "max_tokens": 1}, session)
    return (time.monotonic() - begin) * 1e3


def latencies(servers):
    """Rows of (prompt tokens, ms with sharing, ms without)."""
    rows = []
    for repeats in (75, 300, 620, 1150):
        body = body_of(8)
        body["messages"] = [{"role": "user", "content": LONG * repeats}]
        session = f"long{repeats}"
        got = servers[0].ask_and_wait(body, session)
        body["messages"] += [{"role": "assistant",
                              "content": got["choices"][0]["message"]["content"]},
                             {"role": "user", "content": "And then?"}]
        recompute = first_token_ms(servers[2], body, None)
        rows.append((got["usage"]["prompt_tokens"], first_token_ms(servers[1], body, session),
                     recompute))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(ROOT / "build/release/peregrine"))
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--talks", type=int, default=8)
    options = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        redis = Redis(folder)
        shared = sharing_options(options, redis, folder, "secret-of-all")
        alone = Server(options, folder)
        servers = [Server(options, folder, *shared) for _ in range(3)]
        everyone = [alone, *servers]
        try:
            wrong, again, prompts = round_robin(servers, alone)
            fetched = count(servers, 'peregrine_sharing_requests_total{state="remote"}')
            print(f"round: {wrong} of 20 answers differ, {again} of {prompts} prompt tokens "
                  f"computed again, {fetched:.0f} states fetched", flush=True)
            bad += wrong + (again >= 0.02 * prompts) + (fetched < 19)

            print("\nprompt tokens | first token, shared | first token, computed")
            for tokens, with_sharing, without in latencies(servers):
                print(f"{tokens:13} | {with_sharing:16.1f} ms | {without:18.1f} ms", flush=True)
            print()

            def paused():
                redis.process.send_signal(signal.SIGSTOP)
                time.sleep(5)
                redis.process.send_signal(signal.SIGCONT)

            def restarted():
                redis.kill()
                time.sleep(0.5)
                redis.start()

            def report(name, before, during, fault, who):
                remote = 'peregrine_sharing_requests_total{state="remote"}'
                start = count(who, remote)
                wrong = under_load(options, alone, before, during, name, fault)
                print(f"{name}: {wrong} answers differ, {count(who, remote) - start:.0f} states "
                      "fetched", flush=True)
                return wrong, count(who, remote) - start

            bad += report("Redis paused 5 s", servers, servers, paused, servers)[0]
            bad += report("Redis restarted empty", servers, servers, restarted, servers)[0]
            outsider = Server(options, folder,
                              *sharing_options(options, redis, folder, "secret-of-one"))
            everyone.append(outsider)
            wrong, given = report("another secret", [servers[0]], [outsider, servers[0]] * 2,
                                  lambda: None, [outsider])
            bad += wrong + given
            first, *others = servers
            bad += report("owner killed", [first], others * 2, first.kill, others)[0]
        finally:
            for server in everyone:
                server.kill()
            redis.kill()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
