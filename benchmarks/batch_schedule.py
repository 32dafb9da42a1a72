#!/usr/bin/env python3
"""What the schedules of `peregrine batch` are worth: one workload, every schedule, same run.

Two workloads, drawn by a seed. "length": 144 answers of 4 to 200 tokens, the longest ones late in the
file. "prefix": 16 conversations under each of --systems system prompts in turn, with a prefix cache
that holds a few of them. Beside the wall clock stand what other load does not move: processor seconds and the steps of the
model, each of which reads the weights once.

usage: benchmarks/batch_schedule.py [--program build/release/peregrine] [--repeat 3]
"""

import argparse
import json
import pathlib
import random
import re
import resource
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORDS = "Tell me what you know about foxes owls bears cats dogs and mice in short words".split()


def line(number, messages, max_tokens):
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0,
            "thinking": {"type": "disabled"}}
    return json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions",
                       "body": body})


def length_workload(requests, rng):
    limits = sorted(min(200, max(4, int(rng.lognormvariate(3, 1)))) for _ in range(requests))
    for i, limit in enumerate(limits):
        yield line(i, [{"role": "user", "content": "Tell me a story about a brave fox."}], limit)


def prefix_workload(requests, systems, rng):
    prompts = [" ".join(rng.choice(WORDS) for _ in range(250)) for _ in range(systems)]
    for i in range(requests):
        user = f"What is {rng.randrange(500)} + {rng.randrange(500)}?"
        yield line(i, [{"role": "system", "content": prompts[i % systems]},
                       {"role": "user", "content": user}], 8)


def run(program, source, target, schedule, extra):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    done = subprocess.run([program, "batch", source, target, "--overwrite", "--schedule", schedule,
                           *extra], stderr=subprocess.PIPE, text=True, check=True)
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    closing = done.stderr.strip().splitlines()[-1]
    cached = re.search(r"(\d+)% of prompts cached", closing)
    tokens = int(re.search(r"(\d+) tokens in", closing).group(1))
    steps = int(re.search(r"and (\d+) steps", closing).group(1))
    return wall, cpu, tokens, steps, int(cached.group(1)) if cached else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default=str(ROOT / "build/release/peregrine"))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--systems", type=int, default=16)
    args = parser.parse_args()
    rng = random.Random(1)
    workloads = {
        "length": (length_workload(144, rng), ["arrival", "longest"],
                   ["--max-running", "16", "--kv-bytes", "64M"]),
        "prefix": (prefix_workload(16 * args.systems, args.systems, rng), ["arrival", "prefix"],
                   ["--max-running", "2", "--kv-bytes", "1M", "--prefill", "replay",
                    "--prefix-cache", "replay"]),
    }
    print(f"{'workload':>9} {'schedule':>9} {'wall s':>8} {'cpu s':>8} {'tokens/s':>9} {'steps':>7} "
          f"{'cached':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for name, (lines, schedules, extra) in workloads.items():
            source = f"{folder}/{name}.jsonl"
            pathlib.Path(source).write_text("\n".join(lines) + "\n")
            figures = {schedule: [] for schedule in schedules}
            for _ in range(args.repeat):  # interleaved: a slow minute hits all of them
                for schedule in schedules:
                    figures[schedule].append(
                        run(args.program, source, f"{folder}/out.jsonl", schedule, extra))
            for schedule, runs in figures.items():
                wall, cpu, tokens, steps, cached = (statistics.median(column) for column in zip(*runs))
                print(f"{name:>9} {schedule:>9} {wall:8.2f} {cpu:8.2f} {tokens / wall:9.1f} "
                      f"{steps:7.0f} {cached:6.0f}%")


if __name__ == "__main__":
    main()
