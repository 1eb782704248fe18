import re
from pathlib import Path

import pytest
from msgspec import Struct, structs

from daemon.protocol.records import CallBody, Config, ErrorBody, Header, Limits, Usage, WorkerRef

PAGE = Path(__file__).parents[3] / "docs" / "state-file.md"


@pytest.mark.parametrize("type", [Header, Usage, Config, WorkerRef, Limits, CallBody, ErrorBody])
def test_the_page_names_every_field(type: type[Struct]) -> None:
    named = set(re.findall(r"[`\"](\w+)[`\"]", PAGE.read_text()))
    assert {field.encode_name for field in structs.fields(type)} <= named
