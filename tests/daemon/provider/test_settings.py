import pytest

from daemon.provider.anthropic import Anthropic
from daemon.provider.base import Provider
from daemon.provider.bedrock import Bedrock
from daemon.provider.google import Google
from daemon.provider.openai_chat import OpenAIChat
from daemon.provider.rehearsal import Rehearsal
from daemon.provider.settings import temperature


@pytest.mark.parametrize(
    ("provider", "params"),
    [
        (Anthropic(), {"temperature": 0.5}),
        (OpenAIChat("chat", url="http://x/v1"), {"temperature": 0.5}),
        (Google(), {"generationConfig": {"temperature": 0.5}}),
        (Bedrock(), {"inferenceConfig": {"temperature": 0.5}}),
        (Rehearsal([], folder=None), {}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_temperature_is_set_where_each_wire_has_it(provider: Provider, params: object) -> None:
    found = temperature(provider, 0.5)
    assert found == params
    assert provider.check_params(found) == ""
