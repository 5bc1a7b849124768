"""Objects in an S3 bucket under keys that no store of hubless would write."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

NAMES = ("updates//x", "updates/../x", "./a", "/lead", "two\nlines", "del\x7f", "updates/a//")
"""What some server takes, and obstore does not list."""


def put(url: str, options: Mapping[str, str], names: Sequence[str] = NAMES) -> list[str]:
    """Put an object below an address under each of these names; which the server has taken."""
    with warnings.catch_warnings():
        # its own use of what Python is giving up
        warnings.simplefilter("ignore")
        import boto3
        from botocore.config import Config
        from botocore.exceptions import ClientError

        client = boto3.client(
            "s3",
            endpoint_url=options["endpoint"],
            aws_access_key_id=options["access_key_id"],
            aws_secret_access_key=options["secret_access_key"],
            region_name=options.get("region", "us-east-1"),
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
        )
        place = urlsplit(url)
        taken = []
        for name in names:
            key = f"{place.path.lstrip('/')}/{name}"
            try:
                client.put_object(Bucket=place.netloc, Key=key, Body=b"x")
            except ClientError:
                continue
            taken.append(name)
        client.close()
    return taken
