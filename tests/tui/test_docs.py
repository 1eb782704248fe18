from pathlib import Path

from tui import keymap, places

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tui.md"


def test_the_docs_name_every_binding_with_its_keys() -> None:
    page = PAGE.read_text()
    missing = []
    for place in places.places():
        assert f"### {place.name}\n" in page
        for one in keymap.shown(place, {}):
            keys = " ".join(f"`{key}`" for key in one.keys.split(" "))
            if (row := f"| `{one.id}` | {keys} | {one.description} |") not in page:
                missing.append(row)
    assert missing == []
