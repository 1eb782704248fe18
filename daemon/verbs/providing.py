"""The verbs on models and who serves them: list them, set one up, try one, find those of this machine."""

import sys
from collections.abc import Sequence
from typing import Final, Literal

import click
import msgspec
from msgspec import UNSET, Struct, UnsetType

from daemon.plain import count, line, seconds, tokens
from daemon.protocol import api
from daemon.verbs.reach import FAILED, OK, USAGE, VerbError, Where, connect, note, say, say_json
from daemon.verbs.tables import table
from daemon.view import key_in_words

MAX_KEY: Final = 10_000  # characters of a provider's key; the longest are tokens of a few thousand
LISTS: Final = 3.0  # seconds servers have to list their models, for somebody who asked for nothing else
CHAT: Final = "openai-chat"  # what servers at the usual ports speak


class Key(Struct, frozen=True):
    """What to do about a key: read one (from stdin or typed unseen), keep one that is read in the keyring, take the
    one of a `variable` of the daemon's environment, or have none.
    """

    do: Literal["read", "keyring", "env", "none"]
    variable: str = ""


async def models(place: Where, json: bool) -> int:
    """The models the daemon serves, and which is the default."""
    async with connect(place) as client:
        said = await client.providers(LISTS)
    found = [model for provider in said.providers for model in provider.models]
    for provider in said.providers:
        if provider.asking:
            note(f"{line(provider.name)} has not said yet which models it has; those known of it are shown")
        elif provider.unlisted:
            note(f"{line(provider.name)} does not say which models it has: {line(provider.unlisted, 500)}")
    if json:
        shown = [msgspec.to_builtins(model) | {"default": model.name == said.default} for model in found]
        say_json(shown)
        return OK
    table(
        ("MODEL", "CONTEXT", "OUTPUT", "TAKES", "PRICE", "DEFAULT"),
        [
            (
                model.name,
                tokens(model.context) if model.context else "",
                tokens(model.output) if model.output else "",
                _takes(model.input),
                _price(model.price),
                "yes" if model.name == said.default else "",
            )
            for model in found
        ],
        {5: {"yes": "good"}},
    )
    if all(model.name != said.default for model in found):
        note(f"the default is {line(said.default)}, which is not listed here")
    return OK


def _price(price: api.Price | None) -> str:
    """Dollars for a million tokens, read and written; more where a long prompt costs more."""
    if price is None:
        return "not known"
    if not (price.input or price.output):
        return "free"
    more = f", more over {tokens(price.over)}" if price.above is not None else ""
    return f"${price.input:g} in, ${price.output:g} out{more}"


def _takes(types: Sequence[str]) -> str:
    return ", ".join(
        dict.fromkeys({"image": "images"}.get(kind := type.partition("/")[0], kind) for type in types)
    )


async def providers(place: Where, json: bool) -> int:
    """The providers the daemon knows, and who could be set up beside them."""
    async with connect(place) as client:
        said = await client.providers()
    found = said.providers
    if json:
        say_json(found)
        return OK
    table(
        ("NAME", "KIND", "KEY", "MODELS", "ADDRESS"),
        [
            (
                provider.name,
                provider.kind,
                _key(provider),
                str(len(provider.models)) if provider.served else "not in this release",
                provider.url or ("the vendor's own" if provider.kind != "rehearsal" else "built in"),
            )
            for provider in found
        ],
        {2: {"yes": "good", "none": "note", "missing": "failed"}},
    )
    for provider in found:
        if provider.problem:
            note(f"{line(provider.name)} has no key: {line(provider.problem, 500)}")
    if said.offered:
        names = ", ".join(line(one.name) for one in said.offered)
        note(f"not set up yet: {names}; `outrider providers set NAME` asks for a key")
    return OK


def _key(provider: api.ProviderInfo) -> str:
    said = key_in_words(provider)
    return f"{said}{_whence(provider)}" if said == "yes" else said


def _whence(provider: api.ProviderInfo) -> str:
    """Where its key is, when that is no file of the daemon's."""
    kind, _, name = provider.key_from.partition(":")
    return {"env": f", ${line(name)}", "keyring": ", in the keyring"}.get(kind, "")


async def test_provider(place: Where, name: str, json: bool) -> int:
    """Have the daemon try a provider, `NAME` or `NAME/MODEL`, with one small request."""
    provider, _, model = name.partition("/")
    async with connect(place) as client:
        if not json and sys.stderr.isatty():
            note(f"asking {line(name)} …")
        got = await client.test_provider(provider, model)
    if json:
        say_json(got)
    elif got.ok:
        said = f"answered {line(got.said)!r}" if got.said else "answered, without a word"
        by = f", as {line(got.served_by)}" if got.served_by not in ("", got.model.partition("/")[2]) else ""
        first = "" if got.first is None else f" (the first piece after {seconds(got.first)})"
        say(f"{line(got.model)} {said}{by}")
        say(
            f"in {seconds(got.seconds)}{first}, {tokens(got.usage.prompt)} tokens in, {tokens(got.usage.output)} out"
        )
    else:
        note(f"{line(got.model)} does not answer: {line(got.message, 1000)}")
        if got.fix:
            note(f"→ {line(got.fix, 300)}")
    return OK if got.ok else FAILED


async def scan(place: Where, ports: Sequence[int], add: bool, json: bool) -> int:
    """Servers of models at ports of the daemon's machine, none are the usual ones.

    Those that are new are set up, with `add` or where the user says so.
    """
    async with connect(place) as client:
        found = await client.scan(ports)
        added: list[str] = []
        if not json:
            _show_found(found)
        for server in found:
            if server.configured or not (add or (not json and _wanted(server))):
                continue
            await client.set_provider(server.name, api.ProviderSetting(CHAT, server.url))
            added.append(server.name)
            if not json:
                say(f"{line(server.name)} is set up: its models are {line(server.name)}/…")
    if json:
        say_json([msgspec.to_builtins(server) | {"added": server.name in added} for server in found])
    return OK


def _show_found(found: Sequence[api.Found]) -> None:
    if not found and sys.stdout.isatty():
        say(
            "No server of models answers there; the usual ports are 11434, 1234, 8080 and 8000, --port names others."
        )
    if found:
        table(
            ("ADDRESS", "SERVER", "MODELS", "PROVIDER", "NOTE"),
            [
                (
                    server.url,
                    server.server,
                    ", ".join(server.models[:3])
                    + (f" and {len(server.models) - 3} more" if server.models[3:] else ""),
                    server.configured or "not set up",
                    server.note,
                )
                for server in found
            ],
            {3: {"not set up": "note"}},
        )


def _wanted(server: api.Found) -> bool:
    """Whether the user says to set it up; no where nobody can be asked."""
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()):
        note(f"{line(server.url)} is not set up; --add sets it up as {line(server.name)}")
        return False
    return click.confirm(f"Set up {line(server.url)} as {line(server.name)}?", default=True)


async def set_provider(
    place: Where,
    name: str,
    kind: str | None,
    url: str | None,
    region: str | None,
    key: Key | None,
    json: bool,
) -> int:
    """Set a provider's key, kind, address or region; the key where nothing else is set."""
    if key is None and kind is None and url is None and region is None:
        key = Key("read")
    secret: str | UnsetType = UNSET
    source: str | UnsetType = UNSET
    match key:
        case Key("read"):
            secret = _secret(name)
        case Key("keyring"):
            secret, source = _secret(name), f"keyring:{name}"
        case Key("env", variable):
            source = f"env:{variable}"
        case Key("none"):
            secret, source = "", ""
        case _:
            pass
    setting = api.ProviderSetting(
        UNSET if kind is None else kind,
        UNSET if url is None else url,
        secret,
        UNSET if region is None else region,
        source,
    )
    async with connect(place) as client:
        made = await client.set_provider(name, setting)
    if json:
        say_json(made)
        return OK
    if (kind, url, key) == ("", "", Key("none")):
        say(f"nothing is set of {line(made.name)} any more")
        return OK
    has = f"has a key{_whence(made)}" if made.has_key else "has no key"
    known = f" and {count(len(made.models), 'model')}" if made.models else ""
    asked = made.has_key or made.url != ""
    ask = "; `outrider models` asks it for its models" if asked and not made.models else ""
    say(f"{line(made.name)} ({line(made.kind)}) {has}{known}; it holds from now on{ask}")
    return OK


def _secret(name: str) -> str:
    """A key typed unseen, or stdin's first line. Raises VerbError."""
    if sys.stdin is not None and sys.stdin.isatty():
        text: str = click.prompt(f"Key of {line(name)} (not shown)", hide_input=True, err=True)
    else:
        data = b"" if sys.stdin is None else sys.stdin.buffer.read(MAX_KEY + 1)
        text = data.decode("ascii", "replace")
    text = text.strip()
    if not text or len(text) > MAX_KEY or not text.isascii() or not text.isprintable():
        raise VerbError(
            "that is no key: one line of printable ASCII is wanted, on stdin or typed when asked", USAGE
        )
    return text
