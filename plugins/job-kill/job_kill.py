"""End a job's process group."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import joblib  # noqa: E402: it lies beside the plugins


def serve(args, context):
    job = joblib.Job(context, args["id"])
    if not joblib.kill(job, joblib.left(context, args.get("grace_s", 5), 8)):
        return "it had ended before: " + job.status(), job.status()
    status = job.status()
    if status == "running":
        raise joblib.Refused("it does not end, even after SIGKILL")
    return status, status


joblib.main(serve)
