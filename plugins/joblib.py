"""What the job-* plugins share: commands that run in the background.

A job is a directory <state>/jobs/<id> with cmd, launcher, pid, log, exit and signal.
It outlives the call that started it, the device and its link; nothing ends it but
itself or job-kill. Its log keeps the last 8 to 16 MiB. Whether it lives is told by a
lock that its processes hold, so that a number of a process that was given to another
one is never taken for it.
"""

import fcntl
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time

LOG_PART = 8 << 20  # bytes; the log is one part, and log.1 the part before
KEEP = 100  # jobs that have ended, of which the directories are kept
TAIL_LINES, TAIL_BYTES = 200, 48 << 10

# The shell that leads the job's process group. It and the shell that waits for the
# command live on when the group gets SIGTERM, to write down how the command ended.
LAUNCHER = """#!/bin/sh
trap : TERM INT HUP
{
  trap : TERM INT HUP
  sh "$1/cmd" </dev/null
  echo $? >"$1/exit.new"
  mv "$1/exit.new" "$1/exit"
} 2>&1 | "$2" "$3" log "$1"
"""


class Refused(Exception):
    pass


def main(serve):
    """Read the call, serve it, write the result."""
    call = json.load(sys.stdin)
    try:
        output, summary = serve(call["args"], call["context"])
        result = {"ok": True, "output": output, "summary": summary}
    except Refused as refusal:
        result = {"ok": False, "output": str(refusal)}
    except OSError as error:
        result = {"ok": False, "output": "an error of the system: %s" % error.strerror}
    print(json.dumps(result))


def jobs_dir(context):
    # Devices of others may not say where plugins can keep things.
    state = context.get("state") or os.path.expanduser("~/.local/share/agent-relay-device")
    return os.path.join(state, "jobs")


class Job:
    def __init__(self, context, name):
        if not re.fullmatch(r"job-[0-9a-f]{8}", name):
            raise Refused("an id is job- and eight hexadecimal digits")
        self.name, self.dir = name, os.path.join(jobs_dir(context), name)
        if not os.path.isdir(self.dir):
            raise Refused("there is no job %s" % name)

    def path(self, name):
        return os.path.join(self.dir, name)

    def read(self, name):
        try:
            with open(self.path(name)) as file:
                return file.read().strip()
        except FileNotFoundError:
            return None

    def alive(self):
        """Whether a process of the job holds its lock."""
        try:
            with open(self.path("lock")) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True

    def code(self):
        text = self.read("exit")
        return int(text) if text else None

    def ended(self):
        return self.code() is not None or not self.alive()

    def status(self):
        code = self.code()
        if code is None and self.alive():
            return "running"
        code = self.code()  # it may have ended between the two looks
        name = self.read("signal")
        if name and (code is None or code == 128 + getattr(signal, name)):
            return "killed by %s" % name
        if code is None:
            return "not running, and left no exit code"
        return "exited with %d" % code

    def tail(self, lines):
        """The last lines of the log, read from its end."""
        lines = min(lines, TAIL_LINES)
        data = b""
        for name in ("log", "log.1"):
            if data.count(b"\n") > lines or len(data) >= TAIL_BYTES:
                break
            data = read_end(self.path(name), TAIL_BYTES - len(data), lines) + data
        last = data.splitlines(keepends=True)[-lines:]
        return b"".join(last).decode("utf-8", "replace")


def read_end(path, most, lines):
    try:
        with open(path, "rb") as file:
            at = file.seek(0, os.SEEK_END)
            data = b""
            while at > 0 and len(data) < most and data.count(b"\n") <= lines:
                step = min(8192, at, most - len(data))
                at -= step
                file.seek(at)
                data = file.read(step) + data
            return data
    except FileNotFoundError:
        return b""


def start(context, cmd):
    os.makedirs(jobs_dir(context), mode=0o700, exist_ok=True)
    sweep(context)
    name = "job-" + secrets.token_hex(4)
    path = os.path.join(jobs_dir(context), name)
    os.mkdir(path, 0o700)
    for file, text in (("cmd", cmd + "\n"), ("launcher", LAUNCHER)):
        with open(os.path.join(path, file), "w") as out:
            out.write(text)
    # The lock is handed on to all processes of the job.
    lock = os.open(os.path.join(path, "lock"), os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with open(os.path.join(path, "launcher.log"), "wb") as said:
        process = subprocess.Popen(
            ["/bin/sh" if os.path.exists("/bin/sh") else "sh", os.path.join(path, "launcher"), path, sys.executable, os.path.abspath(__file__)],
            cwd=context.get("jail") or context["cwd"], stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            start_new_session=True, pass_fds=[lock])
    with open(os.path.join(path, "pid"), "w") as out:
        out.write("%d\n" % process.pid)
    os.close(lock)
    return name


def sweep(context):
    """Forget the oldest jobs that have ended."""
    ended = []
    for name in os.listdir(jobs_dir(context)):
        try:
            job = Job(context, name)
            if job.ended() and not job.alive():
                ended.append((os.path.getmtime(job.dir), job))
        except (Refused, OSError):
            continue
    ended.sort(key=lambda entry: entry[0])
    for _, job in ended[:max(0, len(ended) - KEEP)]:
        for file in os.listdir(job.dir):
            os.unlink(job.path(file))
        os.rmdir(job.dir)


def wait(job, seconds):
    until = time.monotonic() + seconds
    while not job.ended() and time.monotonic() < until:
        time.sleep(0.05)


def kill(job, grace):
    if job.ended():
        return False
    group = int(job.read("pid") or 0)
    if group <= 1:
        raise Refused("the job has just been started: try again")
    note(job, "SIGTERM")
    send(group, signal.SIGTERM)
    wait(job, grace)
    if not job.ended():
        note(job, "SIGKILL")
        send(group, signal.SIGKILL)
        wait(job, 5)
    return True


def note(job, name):
    with open(job.path("signal.new"), "w") as out:
        out.write(name + "\n")
    os.replace(job.path("signal.new"), job.path("signal"))


def send(group, number):
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


def left(context, seconds, rest=2):
    """Seconds clamped to what the call may take."""
    most = context.get("timeout_ms", 110000) / 1000 - rest
    return max(0, min(seconds, most))


def log(path):
    """Write standard input to the log, of which the last parts are kept."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what is printed while the job ends counts too
    name, size = os.path.join(path, "log"), 0
    out = open(name, "wb", buffering=0)
    while data := os.read(0, 65536):
        if size + len(data) > LOG_PART:
            out.close()
            os.replace(name, name + ".1")
            out, size = open(name, "wb", buffering=0), 0
        try:
            out.write(data)
        except OSError:
            pass  # a full disk ends the log, not the command
        size += len(data)


if __name__ == "__main__" and sys.argv[1:2] == ["log"]:
    log(sys.argv[2])
