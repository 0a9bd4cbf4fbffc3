"""Run a shell command and answer with what it prints, both streams as one.

Of very long output the begin and the end are kept. What the command leaves in the
background is ended with the call; job-start is for what shall run on.
"""

import json
import subprocess
import sys
import threading

HALF = 4 << 20  # bytes that are kept of each end


class Output:
    def __init__(self):
        self.head, self.tail, self.total = bytearray(), bytearray(), 0

    def add(self, data):
        self.total += len(data)
        room = HALF - len(self.head)
        self.head += data[:room]
        self.tail += data[max(room, 0):]
        if len(self.tail) > HALF:
            del self.tail[:len(self.tail) - HALF]

    def text(self):
        lost = self.total - len(self.head) - len(self.tail)
        gap = b"\n[... %d bytes left out ...]\n" % lost if lost else b""
        return (bytes(self.head) + gap + bytes(self.tail)).decode("utf-8", "replace")


def run(args, context):
    limit = args.get("timeout_s", 60)
    left = context.get("timeout_ms")
    if left is not None:
        limit = min(limit, max(left / 1000 - 1, 0.1))
    output = Output()
    process = subprocess.Popen(
        ["sh", "-c", args["cmd"]], cwd=context.get("jail") or context["cwd"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def read():
        while data := process.stdout.read1(65536):
            output.add(data)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        return False, output.text() + "\n[ended after %g s]" % limit, "ended after %g s" % limit
    reader.join(0.3)  # something in the background may hold the pipe open
    if code < 0:
        return False, output.text() + "\n[killed by signal %d]" % -code, "killed by signal %d" % -code
    if code:
        return False, output.text() + "\n[exit code %d]" % code, "exit code %d" % code
    return True, output.text(), None


def main():
    call = json.load(sys.stdin)
    ok, output, summary = run(call["args"], call["context"])
    result = {"ok": ok, "output": output}
    if summary:
        result["summary"] = summary
    print(json.dumps(result), flush=True)


main()
