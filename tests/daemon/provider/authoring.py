"""Sessions as data says them: answers of any wire, calls, results, crashes; for the property tests of every wire.

A wire's own tests take `Author` and let `answer` write what that wire decodes, too; see `everyone.py` for all at once.
"""

from typing import Any

import msgspec
from hypothesis import strategies as st

from daemon.chain import fold
from daemon.protocol.records import NO_EXTRA, CallBody, Kind, draft
from daemon.provider.chat import FIELDS, REASONING
from daemon.provider.messages import BLOCK
from tests.daemon.book import Book
from tests.daemon.provider.contexts import picture

PNG = picture()
TEXTS = st.sampled_from(["words", "", " \n", "ü\u2028😀", "Go on.", "\0"])
ARGUMENTS = st.sampled_from(["", "{}", '{"a": 1}', '{"a', "[1]", "null", '{"a":"\\ud83d"}', "[" * 3000])
MODELS = ["claude-x", "claude-y"]
PROVIDERS = st.sampled_from(["anthropic", "chat", "chat", "anthropic", "other"])
RAWS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "thinking", "thinking": "", "signature": "sig"},
        {"type": "thinking", "thinking": "unsigned"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []},
        {"type": "text", "text": "cited", "citations": [{"type": "char_location"}]},
        {"type": "text", "text": " ", "citations": [{"type": "char_location"}]},
        {"type": "novel", "x": 1},
    ]
)
DETAIL = {"type": "reasoning.text", "text": "hm", "signature": "sig"}
KEPT: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"text": "hm", "field": "reasoning_content"},
        {"text": "hm", "field": "reasoning"},
        {"text": "hm", "field": "reasoning", "details": [DETAIL]},
        {"text": "hm"},
        {"text": 7},
        {},
    ]
)


class Author:
    """Writes a session as the harness would, step by step, as the data says. Each signature is another one."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.book = Book()
        self.serial = 0

    def one_of(self, *choices: Any) -> Any:
        return self.data.draw(st.sampled_from(choices))

    def act(self) -> None:
        match self.one_of(
            "message", "image", "answer", "answer", "answer", "broken try", "error", "summary", "note"
        ):
            case "message":
                self.book.message(self.data.draw(TEXTS))
            case "image":
                image = self.one_of(PNG, PNG[:30], b"BM" + bytes(50), b"")
                self.book.add("message", image, "image/png", via="me")
            case "answer":
                self.answer(closed=True)
            case "broken try":
                self.answer(closed=False)
            case "error":
                self.book.error(self.data.draw(TEXTS))
            case "summary":
                self.book.summary(self.data.draw(st.integers(3, self.book.n)), self.data.draw(TEXTS) or "-")
            case _:
                self.book.add("system", self.data.draw(TEXTS), source="workers")

    def answer(self, *, closed: bool) -> None:
        self.serial += 1
        step, upto, calls = f"s{self.serial}", self.book.n, []
        provider, model = self.data.draw(PROVIDERS), self.one_of(*MODELS)
        for number in range(self.data.draw(st.integers(0, 5))):
            match self.one_of("text", "call", "raw"):
                case "text":
                    self.book.text(step, self.data.draw(TEXTS))
                case "call":
                    id = self.one_of(
                        f"toolu_{step}_{number}",
                        f"functions.run:{self.serial}.{number}",
                        "x" * 70 + str(number) + step,
                    )
                    extra = self.one_of(NO_EXTRA, NO_EXTRA, msgspec.Raw(b'{"extra_content":{"s":1}}'))
                    body = CallBody(self.one_of("run", "functions.run", ""), self.data.draw(ARGUMENTS), extra)
                    encoded = msgspec.json.encode(body)
                    self.book.keep(draft("call", encoded, "application/json", id=id, step=step))
                    calls.append(id)
                case _ if provider == "chat":
                    encoded = msgspec.json.encode(self.signed(self.data.draw(KEPT), number))
                    type = self.one_of(REASONING, REASONING, FIELDS)
                    self.book.keep(draft("thinking", encoded, type, step=step, provider=provider))
                case _:
                    block = self.signed(self.data.draw(RAWS), number)
                    kind: Kind = "text" if block["type"] == "text" else "thinking"
                    encoded = msgspec.json.encode(block)
                    self.book.keep(draft(kind, encoded, BLOCK, step=step, provider=provider))
        if not closed:
            return
        self.book.step(step, upto, provider=provider, model=model)
        for call in self.data.draw(st.permutations(calls)):
            if self.one_of("message", "", "", ""):
                self.book.message(self.data.draw(TEXTS))
            match self.one_of("text", "text", "image", "blank", "none"):
                case "text":
                    self.book.result(call, "done", failed=self.one_of(True, False))
                case "image":
                    image = self.one_of(PNG, PNG[:30])
                    self.book.keep(draft("result", image, "image/png", for_=call, worker="w"))
                case "blank":
                    self.book.result(call, " ")
                case _:
                    continue

    def signed(self, block: dict[str, Any], number: int) -> dict[str, Any]:
        """The block with a signature of its own, where it has one."""
        own = f"s{self.serial}.{number}ü😀+/=="
        if "signature" in block:
            return {**block, "signature": own}
        if details := block.get("details"):
            return {**block, "details": [self.signed(detail, number) for detail in details]}
        return block

    def crash(self) -> None:
        """Cut the file after any record, as a daemon that dies leaves it; `settle` follows where one starts again."""
        begun = 3  # start, config and system text, which are written at once
        self.book.records[:] = self.book.records[: self.data.draw(st.integers(begun, self.book.n))]

    def settle(self) -> None:
        """Give a result to each call that has none, as a daemon does before it asks again."""
        for call in fold(self.book.records).orphans:
            text = self.one_of("done", "interrupted, effect unknown")
            self.book.result(call.id, text, failed=self.one_of(True, False))
