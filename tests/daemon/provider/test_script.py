import re
from pathlib import Path

import pytest

from daemon.provider import script
from daemon.provider.script import BadScript, Call, Fault, Script, Step

ROOT = Path(__file__).resolve().parents[3]


def bad(text: str) -> str:
    with pytest.raises(BadScript) as caught:
        script.parse(text.encode(), "x.toml")
    message = str(caught.value)
    assert message.startswith("x.toml: ")
    return message


def test_a_script_reads_with_its_defaults() -> None:
    assert script.parse(b'[[steps]]\ntext = "hi"', "x") == Script((Step(text="hi"),))


def test_every_field_reads() -> None:
    text = """
    title = "t"
    per = "message"
    end = "e"
    alone = "a"
    delay = 1
    pace = 0.5
    piece = 3
    chunk = 4
    [[steps]]
    thinking = "th"
    text = "te"
    stop = "refusal"
    usage = { input = 1, output = 2, cache_read = 3, cache_write = 4 }
    delay = 0.1
    lines = "cr"
    noise = true
    calls = [{ tool = "run", arguments = { a = [1] } }, { tool = "x", arguments = "{", id = "i" }]
    faults = [{ kind = "status", status = 429, headers = { a = "b" }, times = 2 }, { kind = "stall", bytes = 9 }]
    """
    found = script.parse(text.encode(), "x")
    assert found.steps[0].calls == (Call("run", {"a": [1]}), Call("x", "{", "i"))
    assert found.steps[0].faults[1] == Fault("stall", bytes=9)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["the file", "missing required field `steps`"]),
        ("steps = []", ["steps", "at least 1 items"]),
        ("[[steps]]", ["steps[0]", "give it text"]),
        ('[[steps]]\ntext = "a"\n[[steps]]\nnoise = true', ["steps[1]", "is empty"]),
        (
            '[[steps]]\ntext = "a"\ntexts = "b"',
            ["steps[0]", "unknown field `texts`", "fields here are thinking, text"],
        ),
        ("[[steps]]\ntext = 7", ["steps[0].text", "expected text, not a whole number"]),
        (
            'per = "day"\n[[steps]]\ntext = "a"',
            ["per: 'day' is none of ", "session", "message"],
        ),
        ('[[steps]]\ncalls = [{ tol = "x" }]', ["steps[0].calls[0]", "fields here are tool, arguments, id"]),
        (
            '[[steps]]\ntext = "a"\nfaults = [{ kind = "boom" }]',
            ["steps[0].faults[0].kind: 'boom' is none of ", "stall"],
        ),
        (
            '[[steps]]\ntext = "a"\nfaults = [{ kind = "cut", after = 1, bytes = 2 }]',
            ["steps[0].faults[0]", "not both"],
        ),
        (
            '[[steps]]\ntext = "a"\nfaults = [{ kind = "cut", times = 0 }]',
            ["steps[0].faults[0].times", "at least 1"],
        ),
        ('[[steps]]\ntext = "a"\nusage = { out = 1 }', ["steps[0].usage", "fields here are input, output"]),
        ("[[steps]", ["not TOML", "line 1"]),
        (f"x = {'[' * 5000}", ["not TOML", "recursion"]),
    ],
)
def test_a_bad_script_names_the_field_and_the_fix(text: str, parts: list[str]) -> None:
    message = bad(text)
    assert all(part in message for part in parts), message


def test_a_script_that_is_not_utf_8_says_where() -> None:
    with pytest.raises(BadScript, match=r"x: not UTF-8 at byte 9"):
        script.parse(b'title = "\xff"', "x")


def test_the_shipped_scripts_are_known_and_read() -> None:
    assert script.names(None) == ("tour", "echo", "chaos")
    for name in script.names(None):
        assert script.load(name, None).title


def test_a_users_script_is_found_by_name_and_wins_over_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[[steps]]\ntext = "mine"')
    (tmp_path / "echo.toml").write_text('[[steps]]\ntext = "mine too"')
    (tmp_path / "not a name.toml").write_text("")
    assert script.names(tmp_path) == ("tour", "echo", "chaos", "mine")
    assert script.load("mine", tmp_path).steps[0].text == "mine"
    assert script.load("echo", tmp_path).steps[0].text == "mine too"
    assert script.load("tour", tmp_path).title
    assert script.names(tmp_path / "none") == ("tour", "echo", "chaos")


@pytest.mark.parametrize("name", ["nope", "../secret", "", ".hidden", "a/b"])
def test_a_script_that_is_not_there_says_which_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadScript, match="there is no rehearsal"):
        script.load(name, tmp_path)


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("x")
    with pytest.raises(BadScript, match=re.escape(str(tmp_path / "mine.toml"))):
        script.load("mine", tmp_path)


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop.toml").symlink_to(tmp_path / "loop.toml")
    with pytest.raises(BadScript, match="there is no rehearsal"):
        script.load("loop", tmp_path)


def test_the_manual_names_every_field_and_its_examples_read() -> None:
    manual = (ROOT / "docs" / "rehearsal.md").read_text()
    for kind in (Script, Step, Fault, Call, script.Tokens):
        for field in kind.__struct_fields__:
            assert f"`{field}`" in manual or f"{field} =" in manual, f"{kind.__name__}.{field}"
    examples = re.findall(r"```toml\n(.*?)```", manual, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        script.parse(example.encode(), "manual")
