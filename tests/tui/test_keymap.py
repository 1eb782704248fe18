import pytest

from tui import keymap, places
from tui.keymap import BadKeys, Place, key

TABLE = [
    Place("Here", (key("here.stop", "x", "stop", "Stop"), key("here.open", "enter,l", "open", "Open"))),
    Place("There", (key("there.stop", "x", "stop", "Stop"),)),
]


def test_keys_are_changed_added_and_taken_out_by_their_ids() -> None:
    made = keymap.checked({"here.stop": "ctrl+t", "here.open": ("o", "?"), "there.stop": ()}, TABLE)
    assert made == {"here.stop": "ctrl+t", "here.open": "o,question_mark", "there.stop": keymap.REMOVED}
    assert [(one.id, one.keys) for one in keymap.shown(TABLE[0], made)] == [
        ("here.stop", "ctrl+t"),
        ("here.open", "o ?"),
    ]
    assert keymap.shown(TABLE[1], made)[0].keys == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"here.stopp": "x"},
            ("'here.stopp'", "did you mean 'here.stop'?", "there are here.open, here.stop"),
        ),
        ({"nowhere.stop": "x"}, ("'nowhere.stop'", "there.stop", "here.open")),
        ({"here.stop": "ctl+x"}, ("tui.keys.here.stop", "'ctl+x' is not a key", "ctrl+t")),
        ({"here.stop": "ctrl+"}, ("is not a key",)),
        ({"here.stop": "entr"}, ("is not a key",)),
        ({"here.stop": "l"}, ("'l' would be both", "here.open", "here.stop", "Here")),
    ],
)
def test_what_cannot_be_is_refused_with_what_there_is(given: dict[str, str], words: tuple[str, ...]) -> None:
    with pytest.raises(BadKeys) as refused:
        keymap.checked(given, TABLE)
    assert all(word in str(refused.value) for word in words)


def test_two_keys_can_change_places() -> None:
    made = keymap.checked({"here.stop": "enter", "here.open": "x"}, TABLE)
    assert made == {"here.stop": "enter", "here.open": "x"}


def test_every_binding_of_ours_has_an_id_a_description_and_none_stands_twice() -> None:
    found = [binding for place in places.places() for binding in place.bindings]
    by_id: dict[str | None, object] = {}
    for binding in found:
        assert binding.description, binding
        assert by_id.setdefault(binding.id, binding) is binding, binding.id


def test_no_key_does_two_things_in_one_place_as_shipped() -> None:
    for place in places.places():
        taken: dict[str, str] = {}
        for binding in place.bindings:
            for one in binding.key.split(","):
                assert taken.setdefault(one, binding.id or "") == binding.id, (place.name, one)
