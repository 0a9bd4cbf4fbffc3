"""Start a command in the background: {cmd} gives an id."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import joblib  # noqa: E402: it lies beside the plugins


def serve(args, context):
    name = joblib.start(context, args["cmd"])
    return name + "\njob-poll says whether it runs, job-tail shows what it prints", name


joblib.main(serve)
