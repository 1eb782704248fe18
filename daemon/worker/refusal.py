"""The one exception for a request that is refused or could not be carried out: a code and a sentence."""

from daemon.protocol import frames


class Refusal(Exception):
    """Nothing was run or changed. `message` is the sentence that says what would be right; `path`: see frames.Error."""

    def __init__(self, code: frames.ErrorCode, message: str, path: str = "") -> None:
        super().__init__(message)
        self.code: frames.ErrorCode = code
        self.message = message
        self.path = path


def own_rule(what: str, allowed: str, key: str) -> str:
    """The sentence for what the worker's own configuration does not allow."""
    return f"{what}: this worker's own configuration allows {allowed} (`{key}` in its [worker])"
