"""What the app's parts tell each other."""

from textual.message import Message


class RosterChanged(Message):
    """Sessions or workers changed; `ids` are the sessions', empty where only workers or the link did."""

    def __init__(self, ids: frozenset[str]) -> None:
        super().__init__()
        self.ids = ids


class OutboxChanged(Message):
    """What is on its way to a session changed."""

    def __init__(self, session: str) -> None:
        super().__init__()
        self.session = session
