#!/usr/bin/env python3
"""Draws a stretch of a Chrome trace (peregrine bench throughput --trace) as an SVG: host above device.

usage: trace_picture.py TRACE.json OUT.svg [--from MS] [--for MS]
"""
import argparse
import json

COLOURS = {"plan": "#5b8def", "post-process": "#f2a33c", "step": "#4caf7a"}
WIDTH, LANE, TOP, LEFT = 1000, 46, 34, 70


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("out")
    parser.add_argument("--from", dest="begin", type=float, default=None, help="milliseconds; default: the middle")
    parser.add_argument("--for", dest="length", type=float, default=20.0, help="milliseconds (default: 20)")
    options = parser.parse_args()
    spans = [e for e in json.load(open(options.trace)) if e["ph"] == "X"]
    end = max(e["ts"] + e["dur"] for e in spans)
    begin = options.begin * 1000 if options.begin is not None else end / 2
    length = options.length * 1000
    scale = (WIDTH - LEFT - 10) / length
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{TOP + 2 * LANE + 40}" '
             'font-family="sans-serif" font-size="12">',
             '<rect width="100%" height="100%" fill="white"/>']
    for lane, name in ((1, "host"), (2, "device")):
        parts.append(f'<text x="8" y="{TOP + (lane - 1) * LANE + 24}">{name}</text>')
    for e in spans:
        left, right = max(e["ts"], begin), min(e["ts"] + e["dur"], begin + length)
        if right <= left:
            continue
        x, width = LEFT + (left - begin) * scale, max((right - left) * scale, 0.6)
        y = TOP + (e["tid"] - 1) * LANE
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.2f}" height="{LANE - 12}" '
                     f'fill="{COLOURS.get(e["name"], "#999")}" stroke="white" stroke-width="0.5"/>')
    for i in range(int(options.length) + 1):
        if i % max(1, int(options.length // 10)) == 0:
            x = LEFT + i * 1000 * scale
            parts.append(f'<text x="{x:.1f}" y="{TOP + 2 * LANE + 16}" text-anchor="middle">{i} ms</text>')
    x = LEFT
    for name, colour in COLOURS.items():
        parts.append(f'<rect x="{x}" y="10" width="12" height="12" fill="{colour}"/><text x="{x + 16}" y="20">{name}</text>')
        x += 110
    parts.append("</svg>")
    open(options.out, "w").write("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
