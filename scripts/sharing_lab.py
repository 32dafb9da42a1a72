"""Servers that share conversations and their Redis, as processes on this machine.

Used by sharing_check.py. A lab keeps everything in one temporary folder and ends what it started.
With `namespaces` every server has a network of its own: three interfaces, for clients, for other
servers and for Redis, each of which cut() takes away and mend() gives back. The namespaces belong
to the lab's own process, see enter_own_network(), and vanish with it.
"""

import ctypes
import json
import os
import re
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENTS, PEERS, REDIS = 1, 2, 3  # networks 10.77.N.0/24; the lab itself is .254
ANSWER_SECONDS = 60  # an answer that takes longer counts as a hang


def enter_own_network():
    """Moves this process into network and mount namespaces of its own; a reason why not, or None.

    From here on nothing that the lab does to networks or mounts is seen outside."""
    libc = ctypes.CDLL(None, use_errno=True)
    clone_newns, clone_newnet = 0x00020000, 0x40000000
    if libc.unshare(clone_newns | clone_newnet) != 0:
        return f"no namespaces of its own ({os.strerror(ctypes.get_errno())})"
    for command in (["mount", "--make-rprivate", "/"], ["ip", "link", "set", "lo", "up"],
                    ["mkdir", "-p", "/run/netns"], ["mount", "-t", "tmpfs", "lab", "/run/netns"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"{' '.join(command)}: {done.stderr.strip()}"
    return None


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class Server:
    """A peregrine serve of the tiny model. Exact prefill, so that answers do not depend on what was
    computed where; no prefix cache, so that states come from sharing or from nowhere."""

    def __init__(self, lab, number, prefix, more, model=None):
        self.number = number
        host = lab.address(CLIENTS, number)
        self.command = [*prefix, lab.program, "serve", "--model", str(model or ROOT / "models/tiny"),
                        "--host", host, "--port", "0", "--threads", "1", "--kv-bytes", "134217728",
                        "--prefill", "exact", "--prefix-cache", "off", *more]
        self.log_path = Path(lab.folder) / f"log{number}"
        with open(self.log_path, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=log,
                                            text=True, start_new_session=True)
        line = self.process.stdout.readline()
        match = re.search(r":(\d+)\s*$", line)
        if not match:
            raise SystemExit(f"the server did not start: {' '.join(self.command)}\n"
                             + self.log_path.read_text(encoding="utf-8")[-2000:])
        self.url = f"http://{host}:{match.group(1)}"

    def ask(self, body, session=None, path="/v1/chat/completions", seconds=ANSWER_SECONDS):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        if session:
            request.add_header("X-Session-ID", session)
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return json.load(answer)

    def metrics(self):
        text = urllib.request.urlopen(self.url + "/metrics", timeout=60).read().decode()
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def metric(self, name):
        return self.metrics().get("peregrine_sharing_" + name, 0)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def log(self):
        return self.log_path.read_text(encoding="utf-8")

    def flip_bits_in_memory(self):
        """Changes a bit in every saved state in the server's memory; how many there were."""
        flipped = 0
        with open(f"/proc/{self.process.pid}/maps", encoding="ascii") as maps, \
                open(f"/proc/{self.process.pid}/mem", "r+b", buffering=0) as memory:
            for line in maps:
                span, rights, _, _, inode = line.split()[:5]
                if not rights.startswith("rw") or inode != "0":
                    continue
                begin, end = (int(x, 16) for x in span.split("-"))
                for page in range(begin, end, 4096):
                    memory.seek(page)
                    try:
                        head = memory.read(96)
                    except OSError:
                        break
                    if head[:8] != b"PGRNKVST":
                        continue
                    manifest = int.from_bytes(head[72:80], "little")
                    image = int.from_bytes(head[80:88], "little")
                    at = page + (manifest + 4095) // 4096 * 4096
                    if not at < page + image <= end:
                        continue
                    memory.seek(at)
                    byte = memory.read(1)[0]
                    memory.seek(at)
                    memory.write(bytes([byte ^ 16]))
                    flipped += 1
        return flipped

    def kill(self):
        self.process.kill()
        self.process.wait()


class Lab:
    def __init__(self, program, transport, namespaces):
        self.program, self.transport, self.namespaces = program, transport, namespaces
        self.holder = tempfile.TemporaryDirectory()
        self.folder = self.holder.name
        self.servers, self.mounts = [], []
        self.redis = None
        if namespaces:
            for net in (CLIENTS, PEERS, REDIS):
                run("ip", "link", "add", f"br{net}", "type", "bridge")
                run("ip", "addr", "add", f"10.77.{net}.254/24", "dev", f"br{net}")
                run("ip", "link", "set", f"br{net}", "up")
        self.start_redis()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.kill()
        self.stop_redis()
        for mount in self.mounts:
            run("umount", mount)
        self.holder.cleanup()

    # -- networks
    def address(self, net, number):
        return f"10.77.{net}.{number}" if self.namespaces else "127.0.0.1"

    def make_host(self, number):
        name = f"lab{number}"
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        for net in (CLIENTS, PEERS, REDIS):
            here, there = f"n{net}s{number}", f"eth{net}"
            run("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
            run("ip", "link", "set", here, "master", f"br{net}", "up")
            run("ip", "-n", name, "addr", "add", f"10.77.{net}.{number}/24", "dev", there)
            run("ip", "-n", name, "link", "set", there, "up")

    def cut(self, net, number):
        run("ip", "link", "set", f"n{net}s{number}", "down")

    def mend(self, net, number):
        run("ip", "link", "set", f"n{net}s{number}", "up")

    def slow(self, net, number, rate):
        """Bounds what a server sends on a network: "40mbit"."""
        run("ip", "netns", "exec", f"lab{number}", "tc", "qdisc", "add", "dev", f"eth{net}",
            "root", "tbf", "rate", rate, "burst", "64kb", "latency", "400ms")

    # -- Redis
    def start_redis(self):
        where = (["--bind", "10.77.3.254", "--port", "6379", "--protected-mode", "no"]
                 if self.namespaces else ["--port", "0"])
        socket = f"{self.folder}/redis"
        self.redis = subprocess.Popen(
            ["redis-server", *where, "--unixsocket", socket, "--save", "", "--appendonly", "no",
             "--dir", self.folder], stdout=subprocess.DEVNULL)
        while subprocess.run(["redis-cli", "-s", socket, "ping"], capture_output=True, text=True,
                             check=False).stdout.strip() != "PONG":
            time.sleep(0.01)

    def stop_redis(self):
        self.redis.kill()
        self.redis.wait()

    def directory(self):
        return "redis://10.77.3.254:6379" if self.namespaces else f"unix:{self.folder}/redis"

    # -- servers
    def alone(self, model=None):
        """A server that shares nothing: what the others are compared with."""
        server = Server(self, 254, [], [], model)
        self.servers.append(server)
        return server

    def add(self, *more, secret="secret-of-all", around=(), transport=None, model=None):
        """`more`: further options; `around`: a command that runs the server."""
        number = len(self.servers) + 1
        prefix = list(around)
        if self.namespaces:
            self.make_host(number)
            prefix = ["ip", "netns", "exec", f"lab{number}", *around]
        path = Path(self.folder) / secret
        path.write_text(secret * 4, encoding="ascii")
        server = Server(self, number, prefix,
                        ["--kv-directory", self.directory(), "--kv-listen",
                         f"{self.address(PEERS, number)}:0", "--kv-secret-file", str(path),
                         "--kv-transport", transport or self.transport, *more], model)
        self.servers.append(server)
        return server

    def small_disk(self, size):
        """A folder on a file system of that size."""
        path = f"{self.folder}/disk{len(self.mounts)}"
        os.mkdir(path)
        run("mount", "-t", "tmpfs", "-o", f"size={size}", "lab", path)
        self.mounts.append(path)
        return path

    def fresh_folder(self):
        return tempfile.mkdtemp(dir=self.folder)
