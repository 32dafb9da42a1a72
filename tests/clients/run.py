#!/usr/bin/env python3
"""Runs the tests that use the public Python clients against a server on the tiny model.

  tests/clients/run.py --program build/release/peregrine [--filter REGEX] [--report FILE]

The clients come from PyPI (requirements.txt) into build/venv, which is kept. The report is JSON:
{"passed": N, "failed": N, "skipped": N}. When the clients cannot be installed that is one failure
with a sentence that says so: these tests are never left out in silence.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE.parent.parent / "build" / "venv"
REQUIREMENTS = HERE / "requirements.txt"
INSTALLED = VENV / "requirements.txt"  # what the environment was made with


def install():
    """Makes the environment unless it is there; returns a sentence when that fails."""
    wanted = REQUIREMENTS.read_text()
    if INSTALLED.exists() and INSTALLED.read_text() == wanted:
        return None
    VENV.parent.mkdir(exist_ok=True)
    steps = [[sys.executable, "-m", "venv", "--clear", str(VENV)],
             [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet",
              "--disable-pip-version-check", "-r", str(REQUIREMENTS)]]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            return ("The client tests need the packages of tests/clients/requirements.txt from "
                    f"PyPI, but they could not be installed: {' '.join(step)} said:\n"
                    f"{done.stdout}{done.stderr}")
    INSTALLED.write_text(wanted)
    return None


def anything_matches(pattern):
    """Whether a test's name matches, told from the sources: they import what may not be there."""
    for file in HERE.glob("test_*.py"):
        group = ""
        for line in file.read_text().splitlines():
            if found := re.match(r"class (\w+)", line):
                group = found[1]
            elif found := re.match(r"    def (test_\w+)", line):
                if pattern.search(f"clients/{file.stem}.{group}.{found[1]}"):
                    return True
    return False


def select(suite, pattern):
    """The tests of `suite` whose name ("clients/test_chat.Chat.test_n") matches."""
    chosen = unittest.TestSuite()
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            chosen.addTest(select(test, pattern))
        elif pattern.search("clients/" + test.id()):
            chosen.addTest(test)
    return chosen


def run_tests(arguments):
    sys.path.insert(0, str(HERE))
    import support

    suite = unittest.defaultTestLoader.discover(str(HERE))
    if arguments.filter is not None:
        suite = select(suite, re.compile(arguments.filter))
    with support.Server(arguments.program) as server:
        support.SERVER = server
        result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    failed = len(result.failures) + len(result.errors)
    return {"passed": result.testsRun - failed - len(result.skipped), "failed": failed,
            "skipped": len(result.skipped)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True, type=Path)
    parser.add_argument("--filter", metavar="REGEX")
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    if arguments.filter is not None and not anything_matches(re.compile(arguments.filter)):
        counts = {"passed": 0, "failed": 0, "skipped": 0}
    elif Path(sys.prefix) != VENV:
        problem = install()
        if problem is None:
            python = str(VENV / "bin" / "python")
            os.execv(python, [python, str(Path(__file__).resolve()), *sys.argv[1:]])
        print(problem)
        counts = {"passed": 0, "failed": 1, "skipped": 0}
    else:
        counts = run_tests(arguments)
    if arguments.report:
        arguments.report.write_text(json.dumps(counts))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
