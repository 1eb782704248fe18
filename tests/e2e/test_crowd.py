"""A hundred runs at once over several sessions and interpreters: each happens once, in its order, and none waits."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest

from tests.e2e.driving import Stage, driver, judge, stage
from tests.e2e.rehearsing import results, script, uses

SESSIONS: Final = 5
RUNS: Final = 20


@pytest.fixture
def here() -> Iterator[Stage]:
    with stage() as made:
        codes = [
            {"code": f"echo $$.{n} >>ran; echo went {n}; (exit {n})"}
            if n % 2
            else {
                "code": f"import os; open('ran', 'a').write(f'{{os.getpid()}}.{n}\\n'); {n}",
                "interpreter": "python",
            }
            for n in range(RUNS)
        ]
        made.script("crowd", script(uses("run", *codes), {"text": "Done."}))
        yield made


async def test_a_hundred_runs_of_five_sessions_at_once_happen_once_each_and_in_order(here: Stage) -> None:
    async with driver(here) as on:
        made = [await on.session("Go.", model="rehearsal/crowd") for _ in range(SESSIONS)]
        for session in made:
            found = await on.closes(session)
            judge(found)
            for n, said in enumerate(results(found)):
                assert not said.header.failed, said.text()
                assert said.text() == (f"went {n}" if n % 2 else str(n))
                assert said.header.exit == (n if n % 2 else 0)
        ran = [word.split(".") for word in here.ran()]
        assert Counter(map(tuple, ran)).most_common(1)[0][1] == 1
        assert len(ran) == SESSIONS * RUNS
        by_shell: dict[str, list[int]] = {}
        for shell, number in ran:
            by_shell.setdefault(shell, []).append(int(number))
        assert len(by_shell) == 2 * SESSIONS, "a shell and a python for each session"
        assert all(numbers == sorted(numbers) for numbers in by_shell.values())
