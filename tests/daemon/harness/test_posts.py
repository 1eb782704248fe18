import pytest

from daemon.harness import posts
from daemon.harness.errors import Unsupported
from daemon.protocol import api
from daemon.protocol.records import TEXT


@pytest.mark.parametrize(
    "type",
    [
        TEXT,
        "text/markdown; charset=utf-8; variant=GFM",
        "application/json",
        'application/ld+json; profile="a b"',
        "image/png",
        "image/heic; x=1",
    ],
)
def test_texts_json_and_pictures_can_be_posted(type: str) -> None:
    posts.check_parts([api.Part(TEXT, b"x"), api.Part(type, b"{}")])


@pytest.mark.parametrize(
    "type",
    [
        "application/pdf",
        "application/zip; x=json",
        "application/octet-stream",
        "audio/wav",
        "video/mp4",
        "multipart/mixed",
        "model/gltf+json",
        "nonsense",
        "",
    ],
)
def test_what_no_model_is_ever_sent_is_refused_with_what_to_do(type: str) -> None:
    with pytest.raises(Unsupported) as caught:
        posts.check_parts([api.Part(TEXT, b"x"), api.Part(type, b"{}")])
    assert str(caught.value).startswith(f"Content-Type: {type.partition(';')[0]!r} cannot be posted")
    assert "name the path" in str(caught.value)
