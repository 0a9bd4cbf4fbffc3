"""Say how a job is: running, exited with N, killed by a signal, or not running."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import joblib  # noqa: E402: it lies beside the plugins


def serve(args, context):
    status = joblib.Job(context, args["id"]).status()
    return status, status


joblib.main(serve)
