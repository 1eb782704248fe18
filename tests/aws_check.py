"""Work a request's SigV4 signature out as AWS does, from what arrived: by the specification, apart from botocore.

"Create a signed AWS API request", IAM user guide.
"""

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import quote, urlsplit


def signature(
    method: str, url: str, headers: Mapping[str, str], body: bytes, access: str, secret: str, region: str
) -> str:
    """The signature in hexadecimal. `url`: as it was asked for, its path not decoded; header names in lower case."""
    said = headers["authorization"]
    signed = said.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    moment = headers["x-amz-date"]
    scope = f"{moment[:8]}/{region}/bedrock/aws4_request"
    if f"Credential={access}/{scope}," not in said:
        return f"another scope than {access}/{scope}"
    parts = urlsplit(url)
    values = {"host": parts.netloc, **headers}
    canonical = "\n".join(
        [
            method,
            quote(parts.path, safe="/-_.~"),
            parts.query,
            *(f"{name}:{' '.join(values[name].split())}" for name in signed),
            "",
            ";".join(signed),
            hashlib.sha256(body).hexdigest(),
        ]
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for step in (moment[:8], region, "bedrock", "aws4_request"):
        key = hmac.digest(key, step.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"
    return hmac.digest(key, text.encode(), "sha256").hex()
