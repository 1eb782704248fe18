"""All agents of a daemon: the definitions in the files and folders that are named, each name once."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from daemon.definition.agent import Agent, BadAgent, load

ENDINGS: Final = (".yaml", ".yml")


def load_all(paths: Sequence[Path]) -> tuple[Mapping[str, Agent], Sequence[str]]:
    """(The agents by name, what is wrong with the files that cannot be used, a line each). Blocks."""
    found: dict[str, Agent] = {}
    source: dict[str, Path] = {}
    bad: list[str] = []
    for path in paths:
        try:
            files = list(_files(path))
        except OSError as error:
            bad.append(f"{path}: {error.strerror}")
            continue
        for file in files:
            try:
                agent = load(file)
            except BadAgent as error:
                bad += str(error).split("\n")
                continue
            if agent.name in found:
                bad.append(f"{file}: metadata.name: {agent.name!r} is the name of {source[agent.name]} too")
                continue
            found[agent.name], source[agent.name] = agent, file
    return found, bad


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for file in sorted(path.iterdir()):
        if file.suffix in ENDINGS and not file.name.startswith("."):
            yield file
