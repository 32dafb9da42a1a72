#!/usr/bin/env python3
"""Checks that each folder of src/ includes only itself and the folders before it.

A quoted include that starts with a folder of src/ ("base/fail.h") counts; apps/, tests/ and
benchmarks/ may include anything. include/peregrine/ is the public surface: it includes itself and
system headers only. `--self-test` plants violations and demands that each is reported.
"""

import re
import sys
import tempfile
from pathlib import Path

ORDER = ("base formats checkpoint text backend cache model sampling engine parallel kvshare "
         "server").split()
PUBLIC = "peregrine"
SUFFIXES = {".cc", ".c", ".h", ".cu", ".cuh", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<(peregrine/[^>]+)>)')


def includes(file):
    """Yields (line number, path) of the file's project includes."""
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) or match.group(2)


def source_files(folder):
    return sorted(f for f in folder.rglob("*") if f.suffix in SUFFIXES)


def check_source(root):
    errors = []
    for file in source_files(root / "src"):
        name = file.relative_to(root)
        owner = name.parts[1]
        if owner not in ORDER:
            errors.append(f"{name}: src/{owner} is not one of the layers {', '.join(ORDER)}")
            continue
        for number, path in includes(file):
            target = path.split("/")[0]
            if "/" not in path or target not in ORDER:
                if target != PUBLIC:
                    errors.append(f'{name}:{number}: "{path}" does not start with a layer or '
                                  f"with {PUBLIC}/")
            elif ORDER.index(target) > ORDER.index(owner):
                errors.append(f'{name}:{number}: {owner} includes "{path}", but {target} comes '
                              "after it in the order of layers")
    return errors


def check_public(root):
    return [f'{file.relative_to(root)}:{number}: a public header includes "{path}"; it may '
            f"include {PUBLIC}/ and system headers only"
            for file in source_files(root / "include")
            for number, path in includes(file) if path.split("/")[0] != PUBLIC]


def check(root):
    return check_source(root) + check_public(root)


def self_test():
    """Returns what the check misses or reports wrongly; planted cases, one a file."""
    cases = {  # file: (content, is it an error?)
        "src/base/up.h": ('#include "engine/engine.h"', True),
        "src/model/up.cc": ('#include <vector>\n  #  include "server/http.h"', True),
        "src/model/down.cc": ('#include "base/fail.h"\n#include "model/block.h"', False),
        "src/server/public.cc": ('#include <peregrine/error.h>\n#include "peregrine/x.h"', False),
        "src/cache/comment.cc": ('// #include "engine/engine.h"', False),
        "src/backend/sibling.cc": ('#include "sibling.h"', True),
        "src/unknown/file.cc": ("", True),
        "include/peregrine/leak.h": ('#include "base/fail.h"', True),
        "include/peregrine/fine.h": ('#include <string>\n#include "peregrine/error.h"', False),
    }
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, (content, _) in cases.items():
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content + "\n")
        reported = {error.split(":")[0] for error in check(root)}
    return [f"self-test: {name} is {'an error' if wrong else 'correct'}, but was "
            f"{'reported' if name in reported else 'accepted'}"
            for name, (_, wrong) in cases.items() if (name in reported) != wrong]


def main():
    if sys.argv[1:] == ["--self-test"]:
        errors = self_test()
    elif not sys.argv[1:]:
        errors = check(Path(__file__).resolve().parent.parent)
    else:
        sys.exit("usage: check_layers.py [--self-test]")
    print("\n".join(errors), end="\n" if errors else "")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
