#!/usr/bin/env python3
"""Servers that share conversations, as processes on this machine, with a real Redis.

    scripts/sharing_check.py [--namespaces] [--transport auto] [--talks 32] [--only WORD]

Plays a conversation of 20 turns round two and three servers and compares every answer with one
server's; then many conversations at once through one fault after another. Prefill is exact, so that
what is computed anew is equal: no answer may differ, fail or take longer than a minute, and
afterwards no server may hold anything for a request that is gone. Prints one line a part, and a
table of times to the first token with sharing and without; ends with 1 if anything is wrong.

With --namespaces every server has a network of its own, so that servers can be cut off from each
other and from Redis; that, and the part with a full disk, needs root.
"""

import argparse
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from sharing_lab import PEERS, REDIS, ROOT, Lab, enter_own_network

LONG = "Once upon a time there was a little town by the sea. "
SETTLE_SECONDS = 20  # for servers to give back what ended requests held; fetches end after 5


def body_of(max_tokens=120):
    return {"messages": [], "temperature": 0.7, "seed": 5, "max_tokens": max_tokens,
            "thinking": {"type": "disabled"}}


def question(turn, salt=""):
    return f"Question {turn}{salt}: tell me more about it. " + (LONG * 12 if turn == 0 else "")


def add_turn(body, role, text):
    body["messages"].append({"role": role, "content": text})


def text_of(answer):
    return answer["choices"][0]["message"]["content"]


class Oracle:
    """A server that shares nothing. Conversations of all parts are the same, so it computes each
    answer once."""

    def __init__(self, server):
        self.server, self.known = server, {}

    def ids(self, text):
        if text not in self.known:
            self.known[text] = self.server.ask({"prompt": text, "add_special_tokens": False},
                                               path="/tokenize")["tokens"]
        return self.known[text]

    def choices(self, body):
        key = tuple(body["prompt"])
        if key not in self.known:
            self.known[key] = self.server.ask(body, path="/v1/completions")["choices"]
        return self.known[key]


class Talk:
    """A conversation in token ids, which no server renders in its own way."""

    def __init__(self, oracle, part, number):
        self.oracle, self.name, self.salt, self.turn = oracle, f"{part}{number}", number, 0
        self.wrong, self.errors, self.longest = 0, [], 0.0
        self.body = {"prompt": [], "temperature": 0.7, "seed": 5, "max_tokens": 24}

    def play(self, servers):
        """A turn on each of the servers."""
        for server in servers:
            self.body["prompt"] += self.oracle.ids(question(self.turn, self.salt))
            want = self.oracle.choices(self.body)
            begin = time.monotonic()
            try:
                got = server.ask(self.body, self.name, "/v1/completions")["choices"]
                self.wrong += got != want
            except OSError as error:
                self.errors.append(f"{self.name}, turn {self.turn}: {error}")
            self.longest = max(self.longest, time.monotonic() - begin)
            self.body["prompt"] += self.oracle.ids(want[0]["text"])
            self.turn += 1


def held(server):
    """What the server holds for requests and readers; 0 when there are none."""
    m = server.metrics()
    return sum(m["peregrine_sharing_" + name]
               for name in ("prepared", "fetch_memory_bytes", "reads", "pinned"))


class Check:
    def __init__(self, lab, options):
        self.lab, self.options, self.bad = lab, options, 0
        self.oracle = Oracle(lab.alone())
        self.servers = [lab.add() for _ in range(3)]
        # Memory for about half of the conversations, whose states have some 130 KB.
        self.half = str(65_000 * options.talks)

    def say(self, text, bad):
        self.bad += bool(bad)
        print(("WRONG " if bad else "") + text, flush=True)

    def round_robin(self, count):
        """A conversation of chat messages; every state is announced before its answer ends."""
        body, wrong, again, prompts, before = body_of(), 0, 0, 0, 0
        name = 'requests_total{state="remote"}'
        start = sum(s.metric(name) for s in self.servers)
        for turn in range(20):
            add_turn(body, "user", question(turn, f" of {count}"))
            want = self.oracle.server.ask(body)
            got = self.servers[turn % count].ask(body, f"round{count}")
            wrong += got["choices"] != want["choices"]
            cached = got["usage"]["prompt_tokens_details"]["cached_tokens"]
            if turn > 0:
                again += max(0, before - 1 - cached)
                prompts += got["usage"]["prompt_tokens"]
            before = got["usage"]["prompt_tokens"] + got["usage"]["completion_tokens"]
            add_turn(body, "assistant", text_of(got))
        fetched = sum(s.metric(name) for s in self.servers) - start
        self.say(f"20 turns round {count} servers: {wrong} answers differ, {again} of {prompts} "
                 f"prompt tokens computed again, {fetched:.0f} states fetched",
                 wrong or again >= 0.02 * prompts or fetched < 19)

    def settled(self, servers):
        """Whether the servers hold nothing any more."""
        end = time.monotonic() + SETTLE_SECONDS
        while any(held(s) for s in servers):
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def under_load(self, part, before, during, fault=None, between=None, counts=(), alive=None):
        """Plays a turn of every conversation on each of `before`, then on each of `during` while
        `fault` happens. `counts`: (servers, metric, least growth) that must be seen; `alive`: the
        servers that are there at the end."""
        if self.options.only and self.options.only not in part:
            return
        alive = alive or list({s.number: s for s in (*before, *during)}.values())
        descriptors = {s.number: s.descriptors() for s in alive}
        start = [sum(s.metric(name) for s in servers) for servers, name, _ in counts]
        talks = [Talk(self.oracle, part.replace(" ", "-"), i) for i in range(self.options.talks)]
        with concurrent.futures.ThreadPoolExecutor(self.options.talks) as pool:
            list(pool.map(lambda t: t.play(before), talks))
            note = between() if between else None
            running = [pool.submit(t.play, during) for t in talks]
            if fault:
                time.sleep(0.3)
                note = fault()
            for result in running:
                result.result()
        wrong = sum(t.wrong for t in talks)
        errors = [e for t in talks for e in t.errors]
        notes = [] if note is None else [note]
        missing = False
        for (servers, name, least), first in zip(counts, start):
            grown = sum(s.metric(name) for s in servers) - first
            missing |= grown < least
            notes.append(f"{name} {grown:.0f}")
        if not self.settled(alive):
            errors.append("a server still holds " + str([held(s) for s in alive]))
        opened = max(s.descriptors() - descriptors[s.number] for s in alive)
        if opened > 200:
            errors.append(f"{opened} more descriptors are open than before")
        self.say(f"{part}: {wrong} answers differ, {len(errors)} errors, longest turn "
                 f"{max(t.longest for t in talks):.1f} s" + "".join(f", {n}" for n in notes),
                 wrong or errors or missing)
        for error in errors[:5]:
            print("    " + error, flush=True)

    # -- faults

    def redis_faults(self):
        def paused():
            self.lab.redis.send_signal(signal.SIGSTOP)
            time.sleep(5)
            self.lab.redis.send_signal(signal.SIGCONT)

        def restarted():
            self.lab.stop_redis()
            time.sleep(0.5)
            self.lab.start_redis()

        everybody = self.servers
        remote = (everybody, 'requests_total{state="remote"}', 1)
        self.under_load("no fault", everybody[:1], everybody, counts=[remote])
        self.under_load("Redis paused 5 s", everybody[:1], everybody, paused, counts=[remote])
        self.under_load("Redis restarted empty", everybody[:1], everybody, restarted, counts=[remote])

    def partitions(self):
        lab, everybody = self.lab, self.servers

        def cut(net, servers):
            for server in servers:
                lab.cut(net, server.number)

        def mend(net, servers, seconds):
            time.sleep(seconds)
            for server in servers:
                lab.mend(net, server.number)

        remote = (everybody, 'requests_total{state="remote"}', 1)
        self.under_load("a server cut off from the others", everybody[:1], everybody[1:] * 2,
                        lambda: mend(PEERS, everybody[1:2], 7),
                        lambda: cut(PEERS, everybody[1:2]),
                        counts=[remote, (everybody, 'fetch_failures_total{cause="paused"}', 1)])
        self.under_load("two servers cut off from Redis", everybody[:1], everybody[1:] * 2,
                        lambda: mend(REDIS, everybody[:2], 4),
                        lambda: cut(REDIS, everybody[:2]),
                        counts=[remote, (everybody[:2], "directory_failures_total", 1)])

    def strangers(self):
        first = self.servers[0]
        none = 'requests_total{state="none"}'
        outsider = self.lab.add(secret="secret-of-one")
        self.under_load("another secret", [first], [outsider, first],
                        counts=[([outsider], 'fetch_failures_total{cause="refused"}', 1),
                                ([first], "peers_refused_total", 1), ([outsider], none, 1)])
        self.say(f"another secret: {outsider.metric('fetched_bytes_total'):.0f} bytes fetched",
                 outsider.metric("fetched_bytes_total"))
        outsider.kill()
        # The longest sequence is part of the fingerprint and changes no answer.
        other = self.lab.add("--context", "8192")
        self.under_load("another fingerprint", [first], [other, first],
                        counts=[([other], 'fetch_failures_total{cause="other_engine"}', 1),
                                ([other], none, 1)])
        self.say(f"another fingerprint: {other.metric('fetched_bytes_total'):.0f} bytes fetched",
                 other.metric("fetched_bytes_total"))
        other.kill()

    def skewed_clock(self):
        ahead = ["unshare", "--time", "--monotonic", "400000", "--boottime", "400000", "--fork",
                 "--kill-child"]
        if subprocess.run([*ahead, "true"], capture_output=True, check=False).returncode != 0:
            print("clock ahead by days: left out, time namespaces are not allowed here")
            return
        skewed = self.lab.add(around=ahead)
        first = self.servers[0]
        self.under_load("clock ahead by days", [first], [skewed, first], counts=[
            ([skewed, first], 'requests_total{state="remote"}', self.options.talks)])
        skewed.kill()

    def evicting_owner(self):
        small = self.lab.add("--kv-memory", self.half)
        other = self.servers[0]
        self.under_load("an owner that evicts", [small], [other, small],
                        counts=[([small], "evictions_total", 1),
                                ([other], 'requests_total{state="remote"}', 1)])
        small.kill()

    def flipped_memory(self):
        owner = self.lab.add()
        other = self.servers[0]
        self.under_load("bits flipped in memory, read by others", [owner], [other],
                        between=lambda: f"{owner.flip_bits_in_memory()} states changed",
                        counts=[([other], 'fetch_failures_total{cause="damaged"}', 1)])
        self.under_load("bits flipped in memory, used at home", [owner], [owner],
                        between=lambda: f"{owner.flip_bits_in_memory()} states changed",
                        counts=[([owner], "damaged_in_memory_total", self.options.talks)])
        owner.kill()

    def bad_files(self):
        def every_file(change):
            def fault():
                files = list(Path(folder).glob("*.kvstate"))
                for path in files:
                    change(path)
                return f"{len(files)} files changed"
            return fault

        def flip(path):
            with open(path, "r+b") as file:
                file.seek(path.stat().st_size * 3 // 4)
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 1]))

        for part, change in (("bits flipped on disk", flip),
                             ("files cut short",
                              lambda path: os.truncate(path, path.stat().st_size // 2))):
            folder = self.lab.fresh_folder()
            owner = self.lab.add("--kv-memory", self.half, "--kv-dir", folder)
            self.under_load(part, [owner], [self.servers[0], owner], between=every_file(change),
                            counts=[([owner], "vault_failures_total", 1)])
            owner.kill()

    def full_disk(self):
        try:
            folder = self.lab.small_disk("512k")
        except subprocess.CalledProcessError:
            print("full disk: left out, file systems cannot be mounted here")
            return
        owner = self.lab.add("--kv-memory", self.half, "--kv-dir", folder)
        other = self.servers[0]
        self.under_load("full disk", [owner], [other, owner],
                        counts=[([owner], "vault_failures_total", 1),
                                ([other], 'requests_total{state="remote"}', 1)])
        owner.kill()

    def killed_owner(self):
        owner, others = self.lab.add(transport="tcp"), self.servers
        if self.options.namespaces:
            self.lab.slow(PEERS, owner.number, "40mbit")

        def killed():
            end = time.monotonic() + 10
            while self.options.namespaces and time.monotonic() < end:
                reads = owner.metric("reads")
                if reads > 0:
                    owner.kill()
                    return f"{reads:.0f} states were being read"
            owner.kill()
            return None

        self.under_load("owner killed", [owner], others, killed, alive=others)


def long_model(folder):
    """The tiny model with room for 32K tokens; it was trained for fewer, which costs no time."""
    source = ROOT / "models/tiny"
    target = Path(folder) / "long"
    target.mkdir()
    for path in source.iterdir():
        if path.name != "config.json":
            (target / path.name).symlink_to(path)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["text_config"]["max_position_embeddings"] = 40960
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return target


def latencies(lab):
    """Rows of (prompt tokens, ms with sharing, ms without): the first token of a second turn at a
    server that has not seen the conversation, against one that shares nothing."""
    model = long_model(lab.folder)
    alone = lab.alone(model)
    servers = [lab.add(model=model) for _ in range(2)]

    def first_token_ms(server, body, session):
        begin = time.monotonic()
        server.ask({**body, "max_tokens": 1}, session, seconds=300)
        return (time.monotonic() - begin) * 1e3

    rows = []
    for repeats in (73, 292, 585, 1170, 2340):
        body = body_of(8)
        add_turn(body, "user", LONG * repeats)
        got = servers[0].ask(body, f"long{repeats}", seconds=300)
        add_turn(body, "assistant", text_of(got))
        add_turn(body, "user", "And then?")
        recompute = first_token_ms(alone, body, None)
        shared = first_token_ms(servers[1], body, f"long{repeats}")
        rows.append((got["usage"]["prompt_tokens"], shared, recompute))
        print(f"{rows[-1][0]:13} | {shared:16.1f} ms | {recompute:18.1f} ms", flush=True)
    for server in (alone, *servers):
        server.kill()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(ROOT / "build/release/peregrine"))
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--talks", type=int, default=32)
    parser.add_argument("--namespaces", action="store_true")
    parser.add_argument("--only", help="of the parts with many conversations: those with this word")
    options = parser.parse_args()
    if options.namespaces and (problem := enter_own_network()):
        sys.exit(f"--namespaces: {problem}")
    with Lab(options.program, options.transport, options.namespaces) as lab:
        check = Check(lab, options)
        if not options.only:
            check.round_robin(2)
            check.round_robin(3)
        check.redis_faults()
        if options.namespaces:
            check.partitions()
        for part in (check.strangers, check.skewed_clock, check.evicting_owner,
                     check.flipped_memory, check.bad_files, check.full_disk, check.killed_owner):
            part()
        for server in lab.servers:
            server.kill()
        if not options.only:
            print("\nprompt tokens | first token, shared | first token, computed")
            latencies(lab)
    print("all as it should be" if check.bad == 0 else f"{check.bad} parts went wrong")
    sys.exit(1 if check.bad else 0)


if __name__ == "__main__":
    main()
