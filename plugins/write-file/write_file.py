"""Write a file. With a jail, paths that lead out of it are refused.

A file is replaced at once or not at all; its mode stays, and a link stays a link.
"""

import json
import os
import stat
import sys
import tempfile


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


def write(args, context):
    path, data = resolve(args["path"], context), args["content"].encode()
    if args.get("create_parents", False):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        info = os.stat(path)
    except FileNotFoundError:
        info = None
    if info and not stat.S_ISREG(info.st_mode):
        raise Refused("that is no regular file")
    if args.get("append", False):
        with open(path, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return "added %d bytes" % len(data)
    if info and not os.access(path, os.W_OK):
        raise Refused("the file is read-only")
    replace(path, data, info)
    return "%s %d bytes" % ("replaced with" if info else "created with", len(data))


def replace(path, data, info):
    fd, new = tempfile.mkstemp(prefix=".write-file-", dir=os.path.dirname(path))
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), stat.S_IMODE(info.st_mode) if info else 0o666 & ~umask())
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def main():
    call = json.load(sys.stdin)
    try:
        said = write(call["args"], call["context"])
        result = {"ok": True, "output": said, "summary": said}
    except Refused as refusal:
        result = {"ok": False, "output": str(refusal)}
    except (OSError, ValueError) as error:
        result = {"ok": False, "output": "it can't be written: %s" % (getattr(error, "strerror", None) or error)}
    print(json.dumps(result))


main()
