#!/usr/bin/env python3
"""Builds and runs the test suite; ./test is its command line and explains the options.

Every test program is a GoogleTest program build/<preset>/tests/*_tests; one more, "clients", is
tests/clients/run.py: Python tests that use public client libraries. Results come from the
JSON report each writes at its end: a program that leaves none has crashed, and one that exits
with an error although all its tests passed (a leak, a data race) counts one failure for itself.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONCURRENT_TESTS = ROOT / "tests" / "concurrent_tests.txt"
PROGRAMS_AT_ONCE = 2
PROGRAM_LIMIT_S = 1200  # far above any program's time; ends one that hangs

CHECKS = {
    "layers": ["python3", "scripts/check_layers.py"],
    "layers_self_test": ["python3", "scripts/check_layers.py", "--self-test"],
    "format": ["scripts/check_format.sh"],
    "text": ["python3", "scripts/check_text.py"],
}

SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1",
    "LSAN_OPTIONS": f"suppressions={ROOT}/tests/lsan_suppressions.txt:print_suppressions=0",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "second_deadlock_stack=1",
}


@dataclass
class Result:
    """What one program or check contributes; `output` is shown when something failed."""
    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    remark: str = ""
    output: str = ""

    def report(self):
        line = f"{self.name}: {self.passed} passed, {self.failed} failed"
        if self.skipped:
            line += f", {self.skipped} skipped"
        line += f" ({self.seconds:.1f} s)"
        if self.remark:
            line += f"; {self.remark}"
        print(line)
        if self.failed:
            print(self.output.rstrip() or "(no output)")
        sys.stdout.flush()


def run_command(command, environment=None):
    """Runs to the end or the limit; returns (exit code or None when ended, output, seconds)."""
    start = time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                              timeout=PROGRAM_LIMIT_S, check=False)
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as expired:
        code, output = None, expired.stdout or b""
    return code, output.decode(errors="replace"), time.monotonic() - start


def run_check(name, command):
    code, output, seconds = run_command(command)
    passed = code == 0
    return Result(f"checks/{name}", int(passed), int(not passed), 0, seconds, "", output)


def sanitizer_prefix(preset):
    """Sanitizers map their shadow at fixed addresses, which kernels with many random address bits
    collide with ("unexpected memory mapping"); a fixed layout avoids it where it is allowed."""
    if preset == "release" or not shutil.which("setarch"):
        return []
    prefix = ["setarch", os.uname().machine, "-R"]
    allowed = subprocess.run(prefix + ["true"], capture_output=True, check=False).returncode == 0
    return prefix if allowed else []


def list_tests(program, prefix, gtest_filter):
    """Returns the full names of a program's tests, or None when it cannot even list them."""
    command = prefix + [str(program), "--gtest_list_tests", f"--gtest_filter={gtest_filter}"]
    code, output, _ = run_command(command)
    if code != 0:
        return None
    names, suite = [], ""
    for line in output.splitlines():
        name = line.split("#")[0].rstrip()
        if name.startswith("  "):
            names.append(suite + name.strip())
        elif name.endswith("."):
            suite = name
    return names


def count_report(report):
    """Sums a GoogleTest JSON report to (passed, failed, skipped)."""
    passed = failed = skipped = 0
    for suite in report["testsuites"]:
        for test in suite["testsuite"]:
            if test.get("status") == "NOTRUN":  # disabled or filtered out
                continue
            if test.get("failures"):
                failed += 1
            elif test.get("result") == "SKIPPED":
                skipped += 1
            else:
                passed += 1
    return passed, failed, skipped


def failures_only(output):
    """Drops the lines of the tests that passed; keeps the whole of every other test's output."""
    kept, current = [], []
    for line in output.splitlines():
        if line.startswith("[ RUN      ]"):
            kept += current
            current = [line]
        elif line.startswith("[       OK ]"):
            current = []
        else:
            current.append(line)
    return "\n".join(kept + current)


def run_program(program, prefix, gtest_filter):
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = prefix + [str(program), f"--gtest_filter={gtest_filter}",
                            f"--gtest_output=json:{report}", "--gtest_color=no"]
        code, output, seconds = run_command(command, {**SANITIZER_OPTIONS, **os.environ})
        result = Result(program.name, seconds=seconds, output=failures_only(output))
        try:
            counts = count_report(json.loads(report.read_text()))
        except (OSError, ValueError):
            counts = None
    if code is None:
        result.failed, result.remark = 1, f"ended after {PROGRAM_LIMIT_S} s"
    elif counts is None:
        result.failed, result.remark = 1, f"crashed (exit code {code})"
    else:
        result.passed, result.failed, result.skipped = counts
        if code != 0 and result.failed == 0:
            result.failed, result.remark = 1, f"exit code {code} although every test passed"
            result.output = output
    if counts is None:
        started = re.findall(r"^\[ RUN      \] (\S+)", output, re.MULTILINE)
        result.remark += f"; last test started: {started[-1]}" if started else ""
    return result


def select_tests(program, prefix, gtest_filter, pattern):
    """Returns the gtest filter for the tests of `pattern`, or None when none matches."""
    if pattern is None:
        return gtest_filter
    names = list_tests(program, prefix, gtest_filter)
    if names is None:
        return gtest_filter  # running it reports the crash
    chosen = [name for name in names if pattern.search(f"{program.name}/{name}")]
    return ":".join(chosen) if chosen else None


def run_preset(preset, programs, pattern):
    """Builds a preset and runs `programs` ({name: gtest filter}), or all when it is None."""
    targets = sorted(programs) if programs is not None else []
    if subprocess.run(["scripts/build.sh", preset, *targets], cwd=ROOT, check=False).returncode:
        return [Result(f"build/{preset}", failed=1, remark="did not build")]
    folder = ROOT / "build" / preset / "tests"
    if programs is None:
        # A program whose sources are gone stays in the build folder; only what Ninja knows counts.
        known = subprocess.run(["ninja", "-C", f"build/{preset}", "-t", "targets", "all"],
                               cwd=ROOT, capture_output=True, text=True, check=True).stdout
        names = set(re.findall(r"^tests/(\w+_tests):", known, re.MULTILINE))
        programs = {name: "*" for name in names}
    prefix = sanitizer_prefix(preset)
    jobs = []
    for name, gtest_filter in sorted(programs.items()):
        chosen = select_tests(folder / name, prefix, gtest_filter, pattern)
        if chosen is not None:
            jobs.append((folder / name, chosen))

    def run_and_report(job):
        result = run_program(job[0], prefix, job[1])
        if preset != "release":
            result.name = f"{preset} {result.name}"
        return result

    results = []
    with ThreadPoolExecutor(PROGRAMS_AT_ONCE) as pool:
        for result in pool.map(run_and_report, jobs):
            result.report()
            results.append(result)
    return results


def run_clients(pattern):
    """The tests that use public client libraries, against the release program."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = ["python3", "tests/clients/run.py", "--program", "build/release/peregrine",
                   "--report", str(report)]
        if pattern is not None:
            command += ["--filter", pattern.pattern]
        code, output, seconds = run_command(command)
        result = Result("clients", seconds=seconds, output=output)
        try:
            counts = json.loads(report.read_text())
        except (OSError, ValueError):
            result.failed, result.remark = 1, f"ended without its report (exit code {code})"
        else:
            result.passed, result.failed = counts["passed"], counts["failed"]
            result.skipped = counts["skipped"]
    return result


def concurrent_programs():
    """Reads tests/concurrent_tests.txt: a program and, optionally, a gtest filter a line."""
    programs = {}
    for line in CONCURRENT_TESTS.read_text().splitlines():
        words = line.split("#")[0].split()
        if words:
            programs[words[0]] = words[1] if len(words) > 1 else "*"
    return programs


def run_suite(sanitizers, pattern):
    results = []
    if sanitizers:
        results += run_preset("asan", None, pattern)
        concurrent = concurrent_programs()
        if concurrent:
            results += run_preset("tsan", concurrent, pattern)
        return results
    for name, command in CHECKS.items():
        if pattern is None or pattern.search(f"checks/{name}"):
            result = run_check(name, command)
            result.report()
            results.append(result)
    results += run_preset("release", None, pattern)
    if not any(result.name.startswith("build/") for result in results):
        clients = run_clients(pattern)
        if clients.passed + clients.failed + clients.skipped:
            clients.report()
            results.append(clients)
    return results


def main():
    parser = argparse.ArgumentParser(prog="./test", add_help=False)
    parser.add_argument("--sanitizers", action="store_true")
    parser.add_argument("--filter", metavar="REGEX")
    arguments = parser.parse_args()
    try:
        pattern = re.compile(arguments.filter) if arguments.filter is not None else None
    except re.error as error:
        parser.error(f'--filter "{arguments.filter}" is not a regular expression: {error}')

    results = run_suite(arguments.sanitizers, pattern)
    passed = sum(result.passed for result in results)
    failed = sum(result.failed for result in results)
    skipped = sum(result.skipped for result in results)
    bad = [result.name for result in results if result.failed]
    if bad:
        print("failed: " + ", ".join(bad))
    if skipped:
        print(f"{skipped} skipped")
    if passed + failed == 0:
        print("no test ran")
    print(f"{passed} passed, {failed} failed")
    return 0 if passed > 0 and failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
