"""What a session costs, from the operator's own prices to where it is shown, and the limit of it."""

import re

from tests.running import place

PRICES = "[providers.rehearsal.models.tour]\nprice = {input = 100, output = 500, cache_read = 10}\n"


def test_a_session_shows_what_it_cost_and_ends_at_the_limit_of_it() -> None:
    with place() as there:
        (there.home / ".config/outrider/outrider.toml").write_text(PRICES)
        there.up()
        done = there.outrider("run", "--model", "rehearsal/tour", "--limit", "cost=0.2", "go")
        assert done.returncode == 1
        assert re.search(r"limits\.cost is reached: about \$0\.\d{4} of \$0\.2\b", done.stdout)
        (info,) = there.json("ls")
        used = info["usage"]
        cost = (used["input"] * 100 + used["output"] * 500 + used.get("cache_read", 0) * 10) / 1e6
        assert abs(info["cost"] - cost) < 1e-6
        shown = f"~${cost:.2f}"
        assert shown in there.ok("ls")
        assert re.search(rf"^cost +{re.escape(shown)}$", there.ok("info", info["id"]), re.MULTILINE)
        assert re.search(r"^limits +\$0\.2 cost$", there.ok("info", info["id"]), re.MULTILINE)
        there.ok("config", info["id"], "--limit", "cost=0")
        there.kill(there.json("up")["pid"])
        (there.home / ".config/outrider/outrider.toml").write_text("")
        there.up()
        assert there.json("ls")[0]["cost"] == 0, "prices are as they are now"
        assert "COST" not in there.ok("ls")
