"""Read a part of a file. With a jail, paths that lead out of it are refused."""

import base64
import json
import os
import stat
import sys


class Refused(Exception):
    pass


def resolve(path, context):
    """The real path, which lies in the jail if there is one."""
    path = os.path.realpath(os.path.join(context["cwd"], os.path.expanduser(path)))
    jail = context.get("jail")
    if jail is not None:
        jail = os.path.realpath(jail)
        if os.path.commonpath([path, jail]) != jail:
            raise Refused("the path is outside of the directory that this device allows")
    return path


def read(args, context):
    offset, limit = args.get("offset", 0), args.get("limit", 60000)
    # Not blocking: to open a pipe that nobody writes would wait for ever.
    fd = os.open(resolve(args["path"], context), os.O_RDONLY | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise Refused("that is no regular file")
        file.seek(offset)
        data = file.read(limit)
    end = offset + len(data)
    summary = "bytes %d to %d of %d" % (offset, end, info.st_size)
    if args.get("encoding", "text") == "base64":
        return base64.b64encode(data).decode(), summary
    return decode(data, offset > 0, end < info.st_size), summary


def decode(data, cut_before, cut_after):
    """Text; characters that the borders of the part cut are left out."""
    if cut_before:
        while data and data[0] & 0xC0 == 0x80:
            data = data[1:]
    for drop in range(4 if cut_after else 1):
        try:
            return data[:len(data) - drop].decode()
        except UnicodeDecodeError:
            pass
    raise Refused("the file is not UTF-8 text: read it with encoding base64")


def main():
    call = json.load(sys.stdin)
    try:
        output, summary = read(call["args"], call["context"])
        result = {"ok": True, "output": output, "summary": summary}
    except Refused as refusal:
        result = {"ok": False, "output": str(refusal)}
    except (OSError, ValueError) as error:
        result = {"ok": False, "output": "it can't be read: %s" % (getattr(error, "strerror", None) or error)}
    print(json.dumps(result))


main()
