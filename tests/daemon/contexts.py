"""What every provider asks of a context, checked on the turns themselves."""

from daemon.chain import Call, Context, Media, Result, Text, Turn


def turns(context: Context) -> list[Turn]:
    """All turns of a context, the one that waits included."""
    return [*context.settled, *([context.last] if context.last is not None else [])]


def check(context: Context) -> None:
    """Turns alternate and the user begins; results come first, complete and in order; nothing is blank."""
    calls: list[str] = []
    every_call: list[str] = []
    for at, turn in enumerate(turns(context)):
        assert turn.role == ("assistant" if at % 2 else "user")
        assert turn.parts, "a turn says something"
        results = [part.call for part in turn.parts if isinstance(part, Result)]
        assert results == calls, "each call has its one result, each result its call"
        assert all(isinstance(part, Result) for part in turn.parts[: len(results)]), "results come first"
        for part in turn.parts:
            match part:
                case Text(text):
                    assert text.strip()
                case Media(data=data):
                    assert data
                case Result(content=content):
                    assert content
                    assert all(part.text.strip() for part in content if isinstance(part, Text))
                case _:
                    pass
        calls = [part.id for part in turn.parts if isinstance(part, Call)]
        assert turn.role == "assistant" or not calls
        every_call += calls
    assert len(set(every_call)) == len(every_call)
    assert context.last is not None or not calls, "no request ends in a call without its result"
