#!/usr/bin/env python3
"""Checks the words of the project's own files: no path of one machine, no unfinished-work marker,
no file above 800 lines that does not say why in its opening, and the licence in place.

Data (tests/data, models, fuzz corpora) is not the project's prose and is left out.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A walk and not `git ls-files`, so that an unpacked archive is checked as well.
FOLDERS = (".ci apps benchmarks cmake docs examples fuzz include scripts src tests").split()
DATA = ("tests/data/", "fuzz/corpus/")
PICTURES = {".png"}  # of the documentation
CODE = {".cc", ".c", ".h", ".cu", ".cuh", ".py", ".sh"}
MAX_LINES = 800
OPENING_LINES = 25

MACHINE_PATH = re.compile(r"(?<![\w.}])/(?:work|root|home|Users)/")
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E)\b")


def project_files():
    files = [f for f in ROOT.iterdir() if f.is_file() and f.name != ".git"]
    for folder in FOLDERS:
        files += [f for f in (ROOT / folder).rglob("*") if f.is_file()]
    return sorted(f for f in files
                  if not f.relative_to(ROOT).as_posix().startswith(DATA)
                  and "__pycache__" not in f.parts and f.suffix not in PICTURES)


def check_file(file):
    name = file.relative_to(ROOT)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return [f"{name}: not UTF-8 text; binary files belong into tests/data or models"]
    errors = []
    for number, line in enumerate(lines, 1):
        if MACHINE_PATH.search(line):
            errors.append(f"{name}:{number}: a path of one machine: {line.strip()}")
        if UNFINISHED.search(line):
            errors.append(f"{name}:{number}: unfinished work: {line.strip()}")
    if file.suffix in CODE and len(lines) > MAX_LINES:
        if f"{MAX_LINES} lines" not in "\n".join(lines[:OPENING_LINES]):
            errors.append(f"{name}: {len(lines)} lines; a file above {MAX_LINES} lines says in its "
                          f'opening why it is ("above {MAX_LINES} lines because ...")')
    return errors


def check_licence():
    licence = ROOT / "LICENSE"
    text = licence.read_text() if licence.exists() else ""
    if "Apache License" in text and "Version 2.0" in text:
        return []
    return ["LICENSE: missing, or not the Apache License, Version 2.0"]


def main():
    errors = check_licence()
    for file in project_files():
        errors += check_file(file)
    print("\n".join(errors), end="\n" if errors else "")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
