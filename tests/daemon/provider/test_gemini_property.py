"""Whatever a session's file holds, Gemini's API takes the request that is built from it."""

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.chain import Call, Raw, fold
from daemon.protocol.records import JSON, NO_EXTRA, CallBody, draft
from daemon.provider import models
from daemon.provider.base import Model, Query, Wire
from daemon.provider.gemini import FIELDS, PART
from daemon.provider.gemini_contents import SKIP
from daemon.provider.google import Google
from daemon.provider.models import TEXT_AND_IMAGES
from tests.daemon.provider.authoring import ARGUMENTS, TEXTS, Author
from tests.daemon.provider.contexts import TOOL
from tests.daemon.provider.test_google import validated

GOOGLE = Google()
SHOWN = b"iVBORw0KGgo"  # how a PNG begins in base64
MODELS = ("gemini-3.8-flash", "gemini-2.5-pro", "gemini-flash-latest")
PARTS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"text": "hm", "thought": True},
        {"text": "hm", "thought": True, "thoughtSignature": "c2ln"},
        {"text": "", "thoughtSignature": "c2ln"},
        {"text": " ", "thoughtSignature": "c2ln"},
        {"text": "said", "thoughtSignature": "c2ln"},
        {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "c2ln"},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"inlineData": {"mimeType": "image/png", "data": "iVBO"}},
    ]
)
EXTRAS = (
    NO_EXTRA,
    msgspec.Raw(b'{"thoughtSignature":"c2ln"}'),
    msgspec.Raw(b'{"thoughtSignature":"c2ln","partMetadata":{"x":1}}'),
)


class GeminiAuthor(Author):
    """Writes answers of Google's too, of several models."""

    def answer(self, *, closed: bool) -> None:
        if self.one_of(True, True, False):
            self.google(closed=closed)
        else:
            super().answer(closed=closed)

    def google(self, *, closed: bool) -> None:
        self.serial += 1
        step, upto, calls = f"s{self.serial}", self.book.n, []
        for number in range(self.data.draw(st.integers(0, 5))):
            match self.one_of("text", "part", "call", "fields"):
                case "text":
                    self.book.text(step, self.data.draw(TEXTS))
                case "part":
                    part = self.data.draw(PARTS)
                    kind: Any = "text" if part.get("text") and not part.get("thought") else "thinking"
                    body = msgspec.json.encode(part)
                    self.book.keep(draft(kind, body, PART, step=step, provider="google"))
                case "call":
                    id = self.one_of(
                        f"call_{step}_{number}", f"f.run:{step}{number}", "ü" * 70 + step + str(number)
                    )
                    name = self.one_of("run", "functions.run", "9", "")
                    call = CallBody(name, self.data.draw(ARGUMENTS), self.one_of(*EXTRAS))
                    self.book.keep(
                        draft("call", msgspec.json.encode(call), JSON, id=id, step=step, provider="google")
                    )
                    calls.append(id)
                case _:
                    body = b'{"groundingMetadata":[{}]}'
                    self.book.keep(draft("thinking", body, FIELDS, step=step, provider="google"))
        if not closed:
            return
        self.book.step(step, upto, provider="google", model=self.one_of(*MODELS))
        for call_id in self.data.draw(st.permutations(calls)):
            if self.one_of("message", "", "", ""):
                self.book.message(self.data.draw(TEXTS))
            if self.one_of("result", "result", "none") == "result":
                self.book.result(call_id, self.data.draw(TEXTS), failed=self.one_of(True, False))


def query(author: Author, model: str, sees: bool = True) -> Query:
    facts = models.find(model, models.GOOGLE)
    known = Model(model, facts.context, facts.output, TEXT_AND_IMAGES if sees else ("text/plain",))
    return Query(known, fold(author.book.records, "id").context(), [TOOL], {}, "id")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_request_of_any_session_keeps_the_rules_of_the_wire(data: st.DataObject) -> None:
    """Also of one that goes on with another model or provider at any step, and of every kept form."""
    author = GeminiAuthor(data)
    sees = data.draw(st.booleans())
    wires = {model: Wire() for model in MODELS}
    for _ in range(data.draw(st.integers(1, 8))):
        author.act()
        for model in MODELS:
            asked = query(author, model, sees)
            before = list(wires[model].turns)
            request = GOOGLE.compile(asked, wires[model])
            assert GOOGLE.problems(request) == []
            assert request.body == GOOGLE.compile(asked, Wire()).body, "the kept form is the one made anew"
            assert sees or SHOWN not in request.body
            kept = wires[model].turns
            assert kept[: len(before)] == before or asked.context.epoch, "what is kept stays as it is"
            for turn in kept[: len(asked.context.settled)]:
                assert turn in request.body


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_copy_of_any_session_made_anywhere_goes_on(data: st.DataObject) -> None:
    author = GeminiAuthor(data)
    for _ in range(data.draw(st.integers(1, 8))):
        author.act()
    upto = data.draw(st.integers(1, author.book.n))
    for model in MODELS:
        found = fold(author.book.records[:upto], "copy").context()
        asked = Query(models.find(model, models.GOOGLE), found, [TOOL], {}, "copy")
        assert GOOGLE.problems(GOOGLE.compile(asked, Wire())) == []


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_vendors_own_types_read_every_request(data: st.DataObject) -> None:
    author = GeminiAuthor(data)
    for _ in range(data.draw(st.integers(1, 8))):
        author.act()
    for model in MODELS:
        validated(json.loads(GOOGLE.compile(query(author, model), Wire()).body))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_signatures_go_to_the_model_that_made_them_alone(data: st.DataObject) -> None:
    author = GeminiAuthor(data)
    for _ in range(data.draw(st.integers(1, 8))):
        author.act()
    for provider in (GOOGLE, Google("other-google")):
        for model in MODELS:
            asked = query(author, model)
            contents = json.loads(provider.compile(asked, Wire()).body)["contents"]
            signed = [
                part for c in contents for part in c["parts"] if part.get("thoughtSignature", SKIP) != SKIP
            ]
            settled = asked.context.settled
            parts = [part for turn in settled for part in turn.parts]
            own = [part for part in parts if isinstance(part, Call | Raw) and part.model == model]
            raws = [
                part.extra if isinstance(part, Call) else part.body
                for part in own
                if part.provider == provider.name
            ]
            made = sum(b"thoughtSignature" in raw for raw in raws)
            assert len(signed) == made
            calls = sum(isinstance(part, Call) for part in parts)
            assert sum("functionCall" in part for c in contents for part in c["parts"]) == calls
