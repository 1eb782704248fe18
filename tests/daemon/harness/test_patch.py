"""The patch that applies in one way or not at all."""

from difflib import SequenceMatcher
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.harness.patch import (
    Add,
    Change,
    Delete,
    Hunk,
    PatchError,
    Update,
    parse,
    paths,
    plan,
    summary,
    undo,
)

Files = dict[str, bytes | None]


def begun(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def changes_of(text: str, **files: bytes) -> list[Change]:
    """Changes to files whose names are `a_py` for `a.py`; the others of the patch are absent."""
    sections = parse(text)
    there: Files = {name.replace("_", "."): data for name, data in files.items()}
    return plan(sections, {path: there.get(path) for path in paths(sections)})


def updated(before: bytes, *lines: str) -> bytes | None:
    """What an update of one file, given as the lines of its section, makes of it."""
    [change] = changes_of(begun("*** Update File: a", *lines), a=before)
    return change.after


def refusal(before: bytes, *lines: str) -> str:
    with pytest.raises(PatchError) as caught:
        updated(before, *lines)
    return str(caught.value)


# Reading the text


def test_every_kind_of_section_is_read() -> None:
    text = begun(
        "*** Add File: new.txt",
        "+one",
        "+",
        "+two",
        "*** Delete File: old.txt",
        "*** Update File: src/a.py",
        "*** Move to: src/b.py",
        "@@ class A:",
        "@@     def f(self):",
        " kept",
        "",
        "-out",
        "+in",
        "*** End of File",
        "*** Update File: c",
        "-x",
    )
    assert parse(text) == [
        Add("new.txt", "one\n\ntwo\n"),
        Delete("old.txt"),
        Update(
            "src/a.py",
            (Hunk(("class A:", "    def f(self):"), (" kept", "", "-out", "+in"), end=True, at=9),),
            "src/b.py",
        ),
        Update("c", (Hunk((), ("-x",), at=17),)),
    ]
    assert paths(parse(text)) == ["new.txt", "old.txt", "src/a.py", "src/b.py", "c"]


PLAIN = "*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n*** End Patch"


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        f"\n\n{PLAIN}\n\n",
        f"```\n{PLAIN}\n```",
        f"```patch\n{PLAIN}\n```\n",
        f"<<'EOF'\n{PLAIN}\nEOF\n",
        f"apply_patch <<PATCH\n{PLAIN}\nPATCH",
        f'apply_patch <<"X1"\n{PLAIN}\nX1\n',
        f"```bash\napply_patch <<'EOF'\n{PLAIN}\nEOF\n```",
        f"apply_patch\n{PLAIN}",
        f"{PLAIN}\nEOF",
        "\ufeff" + PLAIN,
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "\r\n") + "\r\n",
        PLAIN.replace("*** Begin", "  *** Begin").replace("*** End", "  *** End"),
        PLAIN.replace("*** Begin Patch\n", ""),
        PLAIN.replace("*** ", "***"),
        PLAIN.replace("Update File: a", "update file:   a  "),
        PLAIN.replace("Patch", "Patch ***"),
        PLAIN.replace("@@\n", ""),
        PLAIN.replace("@@\n", "\n@@\n"),
        PLAIN.replace("@@", "@@ -1,3 +1,3 @@"),
        PLAIN.replace("@@", "@@ -1 +1"),
        PLAIN.replace("@@", "@@ ... @@"),
        PLAIN.replace(" a\n", " ./a\n"),
    ],
)
def test_what_models_write_around_a_patch_changes_nothing_of_it(text: str) -> None:
    [change] = changes_of(text, a=b"x\n")
    assert (change.path, change.after) == ("a", b"y\n")


def test_the_heading_behind_line_numbers_and_closing_signs_is_a_header() -> None:
    for line in ("@@ -10,2 +10,2 @@ def f():", "@@ def f(): @@", "@@ def f():", "@@def f():"):
        [section] = parse(begun("*** Update File: a", line, "-x"))
        assert isinstance(section, Update)
        assert section.hunks[0].headers == ("def f():",)


def test_two_patches_after_each_other_are_one() -> None:
    text = begun("*** Add File: a", "+x") + "\n\n" + begun("*** Add File: b", "+y")
    assert parse(text) == [Add("a", "x\n"), Add("b", "y\n")]


def test_marker_text_inside_a_file_is_content() -> None:
    lines = ("*** Begin Patch", "*** End Patch", "*** Delete File: x", "@@", "```", "EOF")
    assert parse(begun("*** Add File: a", *("+" + line for line in lines))) == [
        Add("a", "\n".join(lines) + "\n")
    ]
    [section] = parse(begun("*** Update File: a", "@@", *(" " + line for line in lines), "+x"))
    assert isinstance(section, Update)
    assert section.hunks[0].lines == (*(" " + line for line in lines), "+x")


def test_a_new_file_keeps_blank_lines_that_lack_their_sign_and_drops_the_gap_after_it() -> None:
    assert parse(begun("*** Add File: a", "+x", "", "+y", "", "*** Delete File: b")) == [
        Add("a", "x\n\ny\n"),
        Delete("b"),
    ]


def test_a_new_file_may_be_empty_and_may_lack_its_last_newline() -> None:
    assert parse(begun("*** Add File: a", "*** Add File: b", "+x", "\\ No newline at end of file")) == [
        Add("a", ""),
        Add("b", "x"),
    ]


def test_carriage_returns_of_a_new_file_are_kept_unless_the_whole_patch_has_them() -> None:
    text = begun("*** Add File: a", "+x\r", "+y\r")
    assert parse(text) == [Add("a", "x\r\ny\r\n")]
    assert parse(text.replace("\r", "").replace("\n", "\r\n")) == [Add("a", "x\ny\n")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the patch is empty"),
        ("```\n```", "the patch is empty"),
        ("Here it is:\n" + PLAIN, "line 1 of the patch: a patch is .*; this line is `Here it is:`"),
        ("cd sub && apply_patch <<'EOF'\n" + PLAIN + "\nEOF", "line 1 of the patch"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", "looks like a unified diff"),
        (PLAIN + "\nAll done!", "line 7 of the patch: nothing may follow .* `All done!`"),
        (PLAIN.removesuffix("*** End Patch"), "cut off"),
        ("*** Begin Patch\n*** End Patch", "no section"),
        (begun("@@", "-x"), "line 2 of the patch: here a section begins"),
        (
            begun("*** Add File: a", "x"),
            "line 3 of the patch: in the new file a every line begins with `\\+`",
        ),
        (begun("*** Delete File: a", "-x"), "line 3 of the patch: here a section begins"),
        (begun("*** Rename File: a", "-x"), "line 2 of the patch"),
        (begun("*** Update File: a"), "changes nothing"),
        (begun("*** Update File: a", "@@", " x"), "changes nothing"),
        (
            begun("*** Update File: a", "@@", "@@ def f():"),
            "hunk 1 of a \\(line 3 of the patch\\) has no lines",
        ),
        (begun("*** Update File: a", "-x", "@@", ""), "hunk 2 of a \\(line 4 of the patch\\) has no lines"),
        (
            begun("*** Update File: a", "-x", "def f():"),
            "line 4 .* in hunk 1 of a a line begins with .* `def f\\(\\):`",
        ),
        (begun("*** Update File: a", "-x", "*** Move to: b"), "marker is out of place"),
        (begun("*** Update File: a", "-x", "*** Frobnicate"), "no such marker"),
        (begun("*** Update File: a", "-x", "*** End of File", "-y"), "hunk 2 of a begins with a line `@@`"),
        (begun("*** Update File:", "-x"), "a path to a file is missing"),
        (begun("*** Delete File: a/"), "a path to a file is missing"),
        (begun("*** Delete File: ."), "a path to a file is missing"),
        (begun("*** Delete File: a/../b"), "without `..` after a name"),
        (begun("*** Delete File: a/.."), "without `..` after a name"),
        (begun("*** Delete File: a\0b"), "NUL"),
        (begun("*** Add File: a", "+\ud83d"), "line 3 of the patch holds half of a character"),
    ],
)
def test_a_patch_that_is_not_one_is_refused_by_its_line(text: str, said: str) -> None:
    with pytest.raises(PatchError, match=said):
        parse(text)


def test_paths_are_kept_absolute_or_above_and_lose_empty_parts() -> None:
    sections = parse(begun(*(f"*** Delete File: {p}" for p in ("/x//y", "../a", "./b/./c", "sp ace", "//z"))))
    assert paths(sections) == ["/x/y", "../a", "b/c", "sp ace", "/z"]


# Where a hunk stands


def test_hunks_apply_in_order() -> None:
    assert updated(b"a\nb\nc\na\n", "@@", "-b", "+B", "@@", "-a", "+A") == b"a\nB\nc\nA\n"


def test_headers_narrow_down_to_a_block() -> None:
    source = (
        b"class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 1\n\n"
        b"class B:\n    def f(self):\n        return 1\n"
    )
    change = ("-        return 1", "+        return 2")
    lines = source.split(b"\n")

    def at(number: int) -> bytes:
        return b"\n".join([*lines[: number - 1], b"        return 2", *lines[number:]])

    assert updated(source, "@@ class A:", "@@     def f(self):", *change) == at(3)
    assert updated(source, "@@ def g(self):", *change) == at(6)
    assert updated(source, "@@ class B", "@@ def f", *change) == at(10)
    assert updated(source, "@@ class B:", *change) == at(10)
    assert "stand at lines 3, 10" in refusal(source, "@@ def f(self):", *change)
    assert "stand at lines 3, 6" in refusal(source, "@@ class A:", *change)
    assert "no line of the file is `def h(self):`" in refusal(source, "@@ def h(self):", *change)


def test_a_place_outside_the_block_that_a_header_names_is_not_taken() -> None:
    source = b"def f():\n    return 0\n\ndef g():\n    return 1\n"
    assert "stand at line 5, outside the block of its `@@` line `def f():`" in refusal(
        source, "@@ def f():", "-    return 1", "+    return 2"
    )


def test_a_header_may_be_given_again_for_a_later_hunk_and_as_context() -> None:
    source = b"def f():\n    a\n    b\n    c\n"
    assert (
        updated(source, "@@ def f():", "-    a", "+    A", "@@ def f():", "-    c", "+    C")
        == b"def f():\n    A\n    b\n    C\n"
    )
    assert updated(source, "@@ def f():", " def f():", "-    a") == b"def f():\n    b\n    c\n"


def test_what_is_added_at_the_end_of_a_block_stands_in_it() -> None:
    source = b"def f():\n    x\n\ndef g():\n    x\n\ndef h():\n    y\n"
    assert (
        updated(source, "@@ def f():", "     x", "", "+def new():", "+    z", "+", " def g():")
        == b"def f():\n    x\n\ndef new():\n    z\n\ndef g():\n    x\n\ndef h():\n    y\n"
    )


def test_braces_do_not_end_a_block_and_a_flat_header_opens_the_rest_of_the_file() -> None:
    source = b"void f()\n{\n  a;\n}\nvoid g()\n{\n  a;\n}\n"
    assert updated(source, "@@ void g()", "-  a;", "+  b;") == source[:-7] + b"  b;\n}\n"
    assert updated(b"# 1\nx\n# 2\nx\n", "@@ # 2", "-x", "+y") == b"# 1\nx\n# 2\ny\n"


def test_several_places_are_refused_with_their_lines() -> None:
    said = refusal(b"x\na\nx\nx\n", "@@", "-x")
    assert said.startswith(
        "a, the hunk (line 3 of the patch): its lines stand at lines 1, 3, 4: give more lines"
    )


def test_several_loose_places_are_refused_even_if_only_one_is_left_after_it() -> None:
    assert "lines 1, 2 (surrounding whitespace ignored)" in refusal(b"  x\n\tx\n", "@@", "-x", "+y")


def test_a_strict_place_goes_before_a_loose_one() -> None:
    assert updated(b"  x\nx\n", "@@", "-x", "+y") == b"  x\ny\n"


def test_only_places_after_the_hunk_before_count() -> None:
    assert updated(b"x\nm\nx\n", "@@", "-m", "+M", "@@", "-x", "+y") == b"x\nM\ny\n"
    said = refusal(b"x\nm\n", "@@", "-m", "+M", "@@", "-x", "+y")
    assert (
        "hunk 2 of 2 (line 6 of the patch): its lines stand at line 1, but the hunk before it reaches" in said
    )


def test_context_may_be_shared_by_two_hunks_but_a_change_may_not() -> None:
    source = b"a\nb\nc\nd\ne\n"
    assert updated(source, "@@", "-b", "+B", " c", "@@", " c", "-d", "+D") == b"a\nB\nc\nD\ne\n"
    assert "hunk before it" in refusal(source, "@@", "-b", "+B", "@@", "-b", "+X")


def test_a_hunk_of_context_alone_says_where_the_next_ones_stand() -> None:
    assert updated(b"x\nm\nx\n", "@@", " m", "@@", "-x", "+y") == b"x\nm\ny\n"


def test_trailing_whitespace_and_typographic_punctuation_of_kept_lines_stay() -> None:
    source = "a \t\n“b” – it’s…\u00a0c\nd\n".encode()
    assert updated(source, "@@", " a", ' "b" - it\'s... c', "-d", "+D") == source[:-2] + b"D\n"


def test_composed_and_decomposed_letters_match() -> None:
    assert updated("cafe\u0301\nx\n".encode(), "@@", " caf\u00e9", "-x") == "cafe\u0301\n".encode()


def test_the_end_of_the_file_can_be_named() -> None:
    assert updated(b"x\ny\nx\n", "@@", "-x", "+z", "*** End of File") == b"x\ny\nz\n"
    assert updated(b"x\ny\nx\n\n", "@@", " x", "+z", "*** End of File") == b"x\ny\nx\nz\n\n"
    assert "line 1, which is not the end of the file (2 lines)" in refusal(
        b"x\ny\n", "@@", "-x", "+z", "*** End of File"
    )


def test_added_lines_without_context_need_a_place() -> None:
    assert updated(b"x\n", "@@", "+y", "", "+z", "*** End of File") == b"x\ny\n\nz\n"
    assert updated(b"", "@@", "+y") == b"y\n"
    assert "it only adds lines" in refusal(b"x\n", "@@", "+y")
    assert "it only adds lines" in refusal(b"x\n\n", "", "+y", "")


def test_empty_lines_around_a_hunk_may_be_gaps_or_lines() -> None:
    assert updated(b"a\nb\n", "", "@@", "-a", "+A", "", "", "@@", "-b", "+B", "") == b"A\nB\n"
    assert updated(b"\na\n\nb\na\n", "@@", "", "-a", "", "+A") == b"\n\nA\nb\na\n"


@pytest.mark.parametrize(
    ("lines", "after"),
    [
        (("-a", "+b"), b"        b\n"),  # all were given without it
        (("-    a", "+    b"), b"        b\n"),
        (("-          a", "+          b"), b"        b\n"),
        (("-    a", "+    b", "+      c"), b"        b\n          c\n"),
    ],
)
def test_added_lines_take_the_indentation_of_the_file(lines: tuple[str, ...], after: bytes) -> None:
    assert updated(b"        a\n", "@@", *lines) == after


def test_spaces_become_the_tabs_of_the_file_where_each_level_is_known() -> None:
    source = b"\tif x:\n\t\ta\n"
    assert updated(source, "@@", "     if x:", "-        a", "+        b") == b"\tif x:\n\t\tb\n"
    assert "how `            b` is to be indented" in refusal(
        source, "@@", "-    if x:", "-        a", "+            b"
    )


def test_a_missing_first_space_of_context_says_nothing_of_the_indentation() -> None:
    assert updated(b"    a\n    c\n", "@@", "    a", "+    b") == b"    a\n    b\n    c\n"


def test_the_nearest_place_is_told() -> None:
    source = b"def f(x):\n    one\n    two\n    three\n"
    assert (
        "its lines are not in the file; they nearly match at line 1, 3 of 4 the same: line 3 of the file is `    two` "
        "where the hunk has `    2`"
        in refusal(source, "@@", " def f(x):", "     one", "-    2", "     three")
    )
    assert "line 3 of the file is `    two` where the hunk has `twoo`" in refusal(source, "@@", "-    twoo")
    assert "the file has lines 1 to 4 only" in refusal(source, "@@", "-    three", "-    four")
    assert "read the file again" in refusal(source, "@@", "-zzz")
    assert "(and as well at line 3)" in refusal(b"a\nb\na\nc\n", "@@", " a", "-d")


def test_a_patch_that_was_applied_before_is_told() -> None:
    assert "its new ones are, at line 2: it may have been applied before" in refusal(
        b"a\nB\n", "@@", "-b", "+B"
    )


def test_bytes_that_are_not_utf8_match_what_a_model_sees_of_them_but_are_never_written_as_that() -> None:
    source = b"caf\xe9\nx\n"
    assert updated(source, "@@", " caf\ufffd", "-x", "+y") == b"caf\xe9\ny\n"
    assert updated(source, "@@", "-caf\ufffd", "+cafe", " x") == b"cafe\nx\n"
    assert "line 1 of the file holds bytes that are not UTF-8" in refusal(
        source, "@@", "-caf\ufffd", "+CAF\ufffd"
    )


# What is kept


@pytest.mark.parametrize(
    ("before", "lines", "after"),
    [
        (b"a\r\nb\r\nc", ("-b", "+B", "+B2"), b"a\r\nB\r\nB2\r\nc"),
        (b"a\r\nb\r\nc", ("-c", "+C", "+D"), b"a\r\nb\r\nC\r\nD"),
        (b"a\r\nb\nc\r\n", ("-b", "+B", "+X"), b"a\r\nB\nX\nc\r\n"),
        (b"a\r\nb\nc\r\n", ("-a", "-b", "+A", "+B"), b"A\r\nB\nc\r\n"),
        (b"a\r\nb\nc\r\n", (" a", "+x"), b"a\r\nx\r\nb\nc\r\n"),
        (b"a\r\n", ("+x", " a"), b"x\r\na\r\n"),
        (b"a\nb", (" b", "+c"), b"a\nb\nc"),
        (b"a\nb", ("-b",), b"a"),
        (b"a", ("-a", "+b", "+c"), b"b\nc"),
        (b"a\n", ("-a",), b""),
        (b"a", ("-a",), b""),
        (b"a\n\n", ("-a", "+b"), b"b\n\n"),
        (b"a\n\n", ("-a", "+b", ""), b"b\n\n"),
        (b"\xef\xbb\xbfa\r\nb\r\n", ("-a", "+A"), b"\xef\xbb\xbfA\r\nb\r\n"),
        (b"\xff\n x\rb \n\xf0", ("-\x20x\rb", "+y"), b"\xff\ny\n\xf0"),
        (b"a\r\r\nb\r\n", ("-b", "+c"), b"a\r\r\nc\r\n"),
        (b"a\n", ("-a\r", "+b\r"), b"b\n"),
        ("a\u2028b\u0085c\x0bd\ne\n".encode(), ("-e", "+f"), "a\u2028b\u0085c\x0bd\nf\n".encode()),
        (b"a\nb", ("-b", "\\ No newline at end of file", "+B"), b"a\nB\n"),
        (b"a\nb\n", ("-b", "+B", "\\ No newline at end of file"), b"a\nB"),
        (
            b"a\nb",
            (" a", "-b", "\\ No newline at end of file", "+B", "\\ No newline at end of file"),
            b"a\nB",
        ),
    ],
)
def test_line_ends_marks_and_bytes_stay(before: bytes, lines: tuple[str, ...], after: bytes) -> None:
    assert updated(before, "@@", *lines) == after


# Several sections and files


def test_sections_on_one_file_apply_in_order_through_a_move() -> None:
    text = begun(
        *("*** Update File: a", "-1", "+one"),
        *("*** Update File: a", "*** Move to: b", "-2", "+two"),
        *("*** Update File: b", "-3", "+three"),
    )
    changes = changes_of(text, a=b"1\n2\n3\n")
    assert changes == [
        Change("b", None, b"one\ntwo\nthree\n", "a", (1, 2, 3)),
        Change("a", b"1\n2\n3\n", None),
    ]
    assert summary(changes) == "R a -> b (lines 1, 2, 3)"


def test_a_file_can_be_written_anew_and_two_can_change_places() -> None:
    changes = changes_of(begun("*** Delete File: a", "*** Add File: a", "+new"), a=b"old\n")
    assert changes == [Change("a", b"old\n", b"new\n")]
    moves = (("a", "c"), ("b", "a"), ("c", "b"))
    text = begun(*(line for x, y in moves for line in (f"*** Update File: {x}", f"*** Move to: {y}")))
    assert changes_of(text, a=b"1", b=b"2") == [Change("a", b"1", b"2"), Change("b", b"2", b"1")]


def test_line_numbers_are_those_of_the_file_as_it_is_in_the_end() -> None:
    text = begun("*** Update File: a", "-5", "+five", "*** Update File: a", " 1", "+x", "+y", "@@", "-3")
    [change] = changes_of(text, a=b"1\n2\n3\n4\n5\n")
    assert change.after == b"1\nx\ny\n2\n4\nfive\n"
    assert change.lines == (2, 5, 6)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("*** Add File: a", "+x"), "a: `*** Add File` on a file that exists: use `*** Update File`"),
        (("*** Delete File: no",), "no: `*** Delete File` on a file that does not exist"),
        (
            ("*** Update File: no", "-x"),
            "no: `*** Update File` on a file that does not exist: use `*** Add File`",
        ),
        (("*** Update File: a", "*** Move to: b"), "a: `*** Move to: b` onto a file that exists"),
        (("*** Delete File: a", "*** Update File: a", "-x"), "on a file that does not exist"),
        (("*** Update File: a", "*** Move to: a"), "changes nothing"),
        (("*** Update File: a", "-x", "+x"), "changes nothing"),
        (("*** Add File: n", "+x", "*** Add File: n/m", "+x"), "n: it cannot be a file and a folder"),
    ],
)
def test_sections_that_do_not_fit_the_files_are_refused(lines: tuple[str, ...], said: str) -> None:
    with pytest.raises(PatchError) as caught:
        changes_of(begun(*lines), a=b"x\n", b=b"y\n")
    assert said in str(caught.value)


def test_every_hunk_that_fails_is_told_and_nothing_is_changed() -> None:
    text = begun(
        *("*** Update File: a", "-x", "+X"),
        *("*** Update File: b", "-y", "+Y", "@@", "-q", "@@", "-r"),
        *("*** Update File: b", "-s"),
        *("*** Add File: a", "+x"),
    )
    with pytest.raises(PatchError) as caught:
        changes_of(text, a=b"x\n", b=b"y\n")
    assert [line.split(":")[0] for line in str(caught.value).split("\n")] == [
        "b, hunk 2 of 3 (line 8 of the patch)",
        "b, hunk 3 of 3 (line 10 of the patch)",
        "a",
    ]


@pytest.mark.parametrize(
    "lines",
    [
        [f"*** Delete File: {number}" for number in range(25)],
        ["*** Update File: a", *(line for number in range(25) for line in ("@@", f"-{number}"))],
    ],
)
def test_of_many_problems_the_first_are_told(lines: list[str]) -> None:
    with pytest.raises(PatchError) as caught:
        changes_of(begun(*lines), a=b"x\n")
    assert str(caught.value).count("\n") == 10
    assert str(caught.value).endswith("\nwhat follows was not checked")


def test_a_file_may_make_room_for_a_folder() -> None:
    changes = changes_of(
        begun("*** Add File: a/b", "+x", "*** Delete File: a", "*** Delete File: c"), a=b"x", c=b"y"
    )
    assert [(change.path, change.after is None) for change in changes] == [
        ("a", True),
        ("a/b", False),
        ("c", True),
    ]


def test_a_relative_and_an_absolute_path_to_what_may_be_one_file_are_refused() -> None:
    sections = parse(begun("*** Update File: s/a", "-x", "*** Update File: /home/me/s/a", "-y"))
    with pytest.raises(PatchError, match="s/a and /home/me/s/a may be the same file"):
        plan(sections, {"s/a": b"x\ny\n", "/home/me/s/a": b"x\ny\n"})
    assert len(plan(sections, {"s/a": b"x\n", "/home/me/s/a": b"x\ny\n"})) == 2


def test_the_summary_has_a_line_for_each_file() -> None:
    text = begun(
        *("*** Add File: new", "+x", "*** Delete File: gone", "*** Update File: a", " 1", "-2", "+3"),
        *("*** Update File: b", "*** Move to: c"),
    )
    changes = changes_of(text, gone=b"", a=b"1\n2\n", b=b"z")
    assert summary(changes).split("\n") == ["A new", "M a (line 2)", "R b -> c", "D gone"]


# Properties

LINE = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=6)
FEW = st.sampled_from(["a", "b", "  b", "", "}", " ", "\ta", "@@", "*** End Patch"])
PIECE = st.sampled_from(
    [
        *("*** Begin Patch", "*** End Patch", " *** End Patch", "*** Add File: n", "*** Delete File: a"),
        *("*** Update File: a", "*** Update File: b", "*** Move to: b", "*** Move to: n", "*** End of File"),
        *(
            "@@",
            "@@ a",
            "@@ }",
            "@@ -1 +1 @@ a",
            "-a",
            "+a",
            " a",
            "",
            " ",
            "- b",
            "+\ufffd",
            "\\ No newline",
            "+x\r",
        ),
        *("```", "<<EOF", "EOF", "x", "*** ?", "-", "+", "\r", "\t"),
    ]
)


@given(st.one_of(st.text(), st.lists(st.one_of(PIECE, PIECE, LINE), max_size=14).map("\n".join)), st.data())
def test_whatever_is_given_only_one_error_is_raised(text: str, data: Any) -> None:
    files = {name: data.draw(st.one_of(st.none(), st.binary(max_size=12), FILE)) for name in ("a", "b", "n")}
    for given_text in (text, begun(text), begun("*** Update File: a", text)):
        try:
            sections = parse(given_text)
            changes = plan(sections, {path: files.get(path) for path in paths(sections)})
        except PatchError as error:
            str(error).encode()
        else:
            assert summary(changes)


FILE = st.lists(FEW, max_size=8).map(lambda lines: "\n".join(lines).encode())


def sections_of(old: list[str], new: list[str], context: int) -> list[str]:
    """The hunks that make `new` of `old`, with some lines of context."""
    lines = []
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(context):
        lines.append("@@")
        for kind, i, j, k, m in group:
            if kind == "equal":
                lines += [" " + line for line in old[i:j]]
            else:
                lines += ["-" + line for line in old[i:j]] + ["+" + line for line in new[k:m]]
    return lines


def joined(lines: list[str], end: str, final: bool) -> bytes:
    return (end.join(lines) + (end if final and lines else "")).encode()


@given(
    st.lists(st.one_of(FEW, LINE), max_size=12),
    st.lists(st.one_of(FEW, LINE), max_size=12),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(0, 4),
)
def test_an_edit_given_as_a_patch_makes_exactly_the_edited_file_or_is_refused(
    old: list[str], new: list[str], end: str, context: int
) -> None:
    if old == new:
        return
    before, after = joined(old, end, True), joined(new, end, True)
    try:
        changed = updated(before, *sections_of(old, new, context))
    except PatchError:
        assert context == 0 or len(set(old)) < len(old) or len(old) < 2
    else:
        assert changed == (after if old else joined(new, "\n", True))


@given(st.lists(LINE, max_size=12, unique=True), st.lists(LINE, max_size=12), st.booleans(), st.data())
def test_an_edit_of_a_file_of_lines_that_differ_always_applies(
    old: list[str], new: list[str], final: bool, data: Any
) -> None:
    old = [f"{number} {line}" for number, line in enumerate(old)]
    new = [data.draw(st.sampled_from([*old, line])) for line in new]
    if not final and not (old and new and old[-1] and new[-1]):
        return  # there is no such file
    if old != new:
        hunks = sections_of(old, new, 3)
        assert updated(joined(old, "\n", final), *hunks) == joined(new, "\n", final)


@given(
    st.lists(
        st.tuples(st.binary(max_size=5), st.sampled_from([b"\n", b"\r\n", b"\r\r\n"])), min_size=1, max_size=9
    ),
    st.binary(max_size=5),
    st.data(),
)
def test_bytes_of_lines_not_asked_for_never_change(
    lines: list[tuple[bytes, bytes]], last: bytes, data: Any
) -> None:
    at = data.draw(st.integers(0, len(lines) - 1))
    pieces = [text.replace(b"\n", b"") + end for text, end in lines]
    pieces[at] = b"the mark" + lines[at][1]
    tail = b"".join(pieces[at + 1 :]) + last.replace(b"\n", b"")
    changed = updated(b"".join(pieces[: at + 1]) + tail, "@@", "-the mark", "+new")
    end = lines[at][1].removeprefix(b"\r") if lines[at][1] == b"\r\r\n" else lines[at][1]
    assert changed == b"".join(pieces[:at]) + b"new" + end + tail


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["add", "delete", "update", "move"]), st.sampled_from("abc"), st.sampled_from("abc")
    ),
    max_size=8,
)


@given(MOVES, st.lists(st.booleans(), min_size=3, max_size=3))
def test_sections_do_what_they_would_do_one_after_another_and_undo_puts_all_back(
    moves: list[tuple[str, str, str]], there: list[bool]
) -> None:
    files: Files = {
        path: path.encode() + b"\n" if is_there else None for path, is_there in zip("abc", there, strict=True)
    }
    now, text, legal = dict(files), [], True
    for number, (kind, path, to) in enumerate(moves):
        content = now[path]
        match kind:
            case "add":
                text += [f"*** Add File: {path}", f"+{number}"]
                legal &= content is None
                now[path] = f"{number}\n".encode()
            case "delete":
                text.append(f"*** Delete File: {path}")
                legal &= content is not None
                now[path] = None
            case _:
                legal &= content is not None
                text.append(f"*** Update File: {path}")
                now[path] = f"{number}\n".encode()
                if kind == "move":
                    text.append(f"*** Move to: {to}")
                    legal &= to == path or now[to] is None
                    now[path], now[to] = (now[path], now[path]) if to == path else (None, now[path])
                text += [f"-{(content or b'?').decode().strip()}", f"+{number}"]
        if not legal:
            break
    legal &= now != files
    try:
        sections = parse(begun(*text))
        changes = plan(sections, {path: files[path] for path in paths(sections)})
    except PatchError:
        assert not legal
        return
    assert legal
    written = dict(files)
    for change in changes:
        assert written[change.path] == change.before != change.after
        written[change.path] = change.after
    assert written == now
    for change in undo(changes):
        assert written[change.path] == change.before
        written[change.path] = change.after
    assert written == files
