"""Wait for the end of a job, or for the time to be up."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import joblib  # noqa: E402: it lies beside the plugins


def serve(args, context):
    job = joblib.Job(context, args["id"])
    joblib.wait(job, joblib.left(context, args.get("timeout_s", 30)))
    status = job.status()
    return status + "\n" + job.tail(64), status


joblib.main(serve)
