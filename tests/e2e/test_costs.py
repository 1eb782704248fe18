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


def test_a_cost_that_is_not_known_is_said_to_be() -> None:
    with place() as there:
        file = there.home / ".config/outrider/outrider.toml"
        file.write_text(f'{PRICES}[providers.played]\nkind = "rehearsal"\n')
        there.up()
        for model in ("played/echo", "rehearsal/tour"):
            there.ok("run", "--model", model, "go")
        there.kill(there.json("up")["pid"])
        file.write_text(PRICES)  # who served the first is gone, and with it what it asked
        there.up()
        priced, unpriced = there.json("ls")
        assert "cost" not in unpriced
        head, *rows = there.ok("ls").splitlines()
        shown = {row.split()[0]: row[head.index("COST") :].split()[0] for row in rows}
        assert shown[unpriced["id"]] == "?"
        assert shown[priced["id"]].startswith("~$")
        said = there.ok("info", unpriced["id"])
        assert re.search(r"^cost +not known: a model that it used has no price", said, re.MULTILINE)
        assert re.search(r"^cost +~\$", there.ok("info", priced["id"]), re.MULTILINE)
