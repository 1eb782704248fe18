"""Take secrets out of a text that a provider or a proxy wrote: as they are, percent-encoded, in base64, cut short."""

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, quote, quote_plus, urlsplit

PUBLIC: Final = frozenset(
    {"accept", "content-type", "user-agent", "anthropic-version", "anthropic-beta", "x-amz-date"}
)
SECRET_FIELDS: Final = ("key", "token", "secret", "sig", "password")  # in the names of an address's query
MIN: Final = 8  # characters of a secret that is hidden; shorter ones would blacken common words
CUT: Final = 12  # characters of its beginning that are taken for one that was cut short: `sk-proj-` is none
HIDDEN: Final = "***"


def hidden(text: str, url: str, headers: Mapping[str, str]) -> str:
    """`text` without any secret of a request in any form, nor a beginning of one that may be of use to somebody."""
    for secret in secrets(url, headers):
        text = _without(text, _forms(secret))
    return text


def secrets(url: str, headers: Mapping[str, str]) -> list[str]:
    """What is secret in a request, longest first: values of private headers, a password and keys in its address."""
    found = set()
    for name, value in headers.items():
        if name.lower() not in PUBLIC:
            found |= {value, value.removeprefix("Bearer ")}
    try:
        parts = urlsplit(url)
        found |= {parts.password or "", *(v for k, v in parse_qsl(parts.query) if _secret(k))}
    except ValueError:
        pass
    return sorted((secret for secret in found if len(secret) >= MIN), key=len, reverse=True)


def _secret(name: str) -> bool:
    return any(word in name.lower() for word in SECRET_FIELDS)


def _forms(secret: str) -> list[str]:
    """The ways in which it may be written."""
    forms = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret)}
    forms |= {re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), form) for form in forms}
    data = secret.encode("utf-8", "replace")
    for encode in (b64encode, urlsafe_b64encode):
        for shift in range(3):  # where it begins within three bytes, as behind `user:`
            whole = encode(bytes(shift) + data).decode()
            end = (shift + len(data)) * 8 // 6  # what stands behind it changes the character after that
            forms.add(whole[(0, 2, 3)[shift] : end])
    return [form for form in forms if len(form) >= MIN]


def _without(text: str, forms: list[str]) -> str:
    begins = sorted({form[:CUT] for form in forms})
    made: list[str] = []
    at = 0
    for match in re.finditer("|".join(map(re.escape, begins)), text):
        if match.start() < at:
            continue  # inside of what is left out
        length = max(_same(text, match.start(), form) for form in forms)
        made += text[at : match.start()], HIDDEN
        at = match.start() + length
    return "".join([*made, text[at:]])


def _same(text: str, start: int, form: str) -> int:
    """How many characters from `start` on are those of `form`, where its beginning is there."""
    if not text.startswith(form[:CUT], start):
        return 0
    length = len(form[:CUT])
    while length < len(form) and text[start + length : start + length + 1] == form[length]:
        length += 1
    return length
