"""Show the last lines of a job's log."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import joblib  # noqa: E402: it lies beside the plugins


def serve(args, context):
    job = joblib.Job(context, args["id"])
    return job.tail(args.get("lines", 64)), job.status()


joblib.main(serve)
