"""A local S3 server, and what stands on it."""

import logging
import os
from contextlib import contextmanager
from unittest.mock import patch

import identilens as idl

BUCKET = "runs"


def audit(**run):
    """A small audit of the bundled encoder, in three parts."""
    texts = [[101, 2023, 2003 + number, 102] for number in range(70)]
    return idl.audit(idl.load("bundled"), texts, layers=0, certain_rows=0, examples=2, **run)


@contextmanager
def s3_server():
    """A server of this process with one bucket; the environment leads there. Yields a client."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    given = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    with patch.dict(os.environ, given):
        client = boto3.client("s3")
        client.create_bucket(Bucket=BUCKET)
        try:
            yield client
        finally:
            server.stop()


def objects(client, under):
    """Every object of a run by its name beneath, but for those that say when and by what it was made."""
    listed = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{under}/")
    keys = [one["Key"] for page in listed for one in page.get("Contents", [])]
    return {
        key.removeprefix(f"{under}/"): client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        for key in keys
        if key.rpartition("/")[2] not in ("provenance.json", "manifest.txt")
    }
