import json
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from daemon import cli
from daemon.verbs import reach
from daemon.verbs.reach import VerbError
from tests.daemon.api import certificates
from tests.daemon.cli.saying import Said, terminal
from tests.running import Place, place

SECRET = "sk-not-a-real-key"
REFUSED = """
[[steps]]
text = "Never."
faults = [{ kind = "status", status = 401, type = "authentication_error", message = "Who are you?" }]
"""
SCRIPTS = {"refused": REFUSED}


@pytest.fixture
def without_a_provider(there: Place) -> Iterator[None]:
    """The daemon has no provider of its own before a test and after it."""
    yield
    for provider in there.json("providers"):
        if provider["kind"] != "rehearsal":
            nothing = ("--no-key", "--url", "", "--kind", "", "--region", "")
            there.ok("providers", "set", provider["name"], *nothing)


# Providers and models.


@pytest.mark.usefixtures("without_a_provider")
def test_a_providers_key_comes_from_stdin_and_is_never_shown(there: Place) -> None:
    out = there.ok("providers", "set", "anthropic", input=f"{SECRET}\n")
    assert re.fullmatch(r"anthropic \(anthropic\) has a key and \d+ models; it holds from now on\n", out)
    table = there.ok("providers")
    assert re.search(r"^anthropic +anthropic +yes +\d+ +the vendor's own$", table, re.MULTILINE)
    assert re.search(r"^rehearsal +rehearsal +- +\d+ +built in$", table, re.MULTILINE)
    models = there.json("models")
    assert {model["name"].partition("/")[0] for model in models} == {"anthropic", "rehearsal"}
    assert [model["name"] for model in models if model["default"]] == [models[0]["name"]]
    assert re.search(
        r"^anthropic/claude-\S+ +1\.0M +128k +text, images +\$\S+ in, \$\S+ out +yes$",
        there.ok("models"),
        re.MULTILINE,
    )
    assert SECRET not in out + table + there.ok("providers", "--json")


@pytest.mark.usefixtures("without_a_provider")
def test_providers_that_could_be_set_up_are_named(there: Place) -> None:
    names = ["anthropic", "openai", "openai-chat", "google", "bedrock"]
    said = there.outrider("providers").stderr
    assert said.startswith(f"not set up yet: {', '.join(names)}; `outrider providers set NAME`")
    there.ok("providers", "set", "openai", input=SECRET)
    assert "not set up yet: anthropic, openai-chat, google, bedrock;" in there.outrider("providers").stderr


@pytest.mark.usefixtures("without_a_provider")
def test_a_providers_key_is_typed_unseen_on_a_terminal(there: Place) -> None:
    with terminal(there, "providers", "set", "anthropic") as shown:
        shown.until("Key of anthropic (not shown): ")
        shown.type(f"{SECRET}\r")
        assert shown.end() == 0
    assert SECRET not in shown.text
    assert there.json("providers")[0]["has_key"]


def test_a_key_is_not_taken_as_an_argument_and_not_repeated(said: Said) -> None:
    for arguments in ([SECRET], [f"--key={SECRET}"], ["--key", SECRET]):
        complaint = said("providers", "set", "anthropic", *arguments, code=2)
        assert SECRET not in complaint


@pytest.mark.parametrize(
    "given",
    ["", " \n", "two\nlines", "schlüssel", "x" * 10_001, "a\x1b[2J"],
    ids=["none", "blank", "lines", "letters", "long", "escape"],
)
def test_what_can_be_no_key_is_refused(there: Place, given: str) -> None:
    done = there.outrider("providers", "set", "anthropic", input=given)
    assert done.returncode == 2
    assert "that is no key" in done.stderr


@pytest.mark.usefixtures("without_a_provider")
def test_a_server_of_ones_own_is_set_up_without_a_key(there: Place, said: Said) -> None:
    made = json.loads(
        said("providers", "set", "mine", "--kind", "openai-chat", "--url", "http://127.0.0.1:9/v1", "--json")
    )
    assert (made["url"], made["has_key"], made["served"]) == ("http://127.0.0.1:9/v1", False, True)
    assert re.search(r"^mine +openai-chat +- +0 +http://127\.0\.0\.1:9/v1$", said("providers"), re.MULTILINE)
    aws = json.loads(said("providers", "set", "bedrock", "--region", "eu-west-1", "--json"))
    assert (aws["kind"], aws["served"], aws["has_key"]) == ("bedrock", True, False)
    taken_out = said("providers", "set", "mine", "--kind", "", "--url", "", "--no-key")
    assert taken_out == "nothing is set of mine any more\n"
    assert "mine" not in said("providers")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["anthropic", "--kind", "fax"], "kind: there is no 'fax'; kinds are anthropic, "),
        (["mine", "--kind", "openai-chat"], "url"),
        (["a/b", "--no-key"], "no provider"),
        (["\x1b[2J", "--no-key"], "no provider"),
    ],
)
def test_a_provider_that_cannot_be_is_refused(said: Said, arguments: list[str], words: str) -> None:
    assert words in said("providers", "set", *arguments, code=3)


def test_a_verb_of_a_group_that_is_not_there_is_wrong_usage(said: Said) -> None:
    assert "No such command 'sett'" in said("providers", "sett", "x", code=2)
    assert "No such command 'make'" in said("key", "make", code=2)


# Keys, and daemons elsewhere.


def test_a_key_is_shown_once_and_opens_the_daemon_elsewhere() -> None:
    with place() as here:
        url = f"http://{here.json('up', '--listen', '127.0.0.1:0')['listen'][0]}"
        made = here.outrider("key", "new", "laptop")
        key = made.stdout.strip()
        assert re.fullmatch(r"ork_[a-z2-7]{32}\n", made.stdout)
        assert "a key for operator, laptop" in made.stderr
        assert re.search(r"^laptop +operator +\d+ s ago$", here.ok("key"), re.MULTILINE)
        assert key not in here.ok("key", "ls", "--json")
        reader = here.json("key", "new", "reader", "--role", "viewer")["key"]
        there = {"OUTRIDER_URL": url, "OUTRIDER_DATA": "/nowhere"}

        run = here.outrider("run", "--model", "rehearsal/echo", "far", OUTRIDER_KEY=key, **there)
        assert run.returncode == 0, run.stderr
        assert "workers: local\n" in run.stdout  # no folder of this machine is named to another
        assert here.outrider("ls", OUTRIDER_KEY=reader, **there).returncode == 0
        refused = here.outrider("new", OUTRIDER_KEY=reader, **there)
        assert (refused.returncode, "viewer" in refused.stderr) == (3, True)
        assert here.outrider("key", OUTRIDER_KEY=key, **there).returncode == 3
        for wrong in ("ork_wrong", ""):
            refused = here.outrider("ls", OUTRIDER_KEY=wrong, **there)
            assert refused.returncode == 3
            assert "OUTRIDER_KEY" in refused.stderr
        doctor = here.outrider("doctor", OUTRIDER_KEY="ork_wrong", **there)
        assert doctor.returncode == 1
        assert "data folder" not in doctor.stdout
        assert "`outrider key new`" in doctor.stdout
        assert here.outrider("doctor", OUTRIDER_KEY=key, **there).returncode == 0

        assert here.ok("key", "revoke", "laptop") == "revoked laptop\n"
        assert here.outrider("ls", OUTRIDER_KEY=key, **there).returncode == 3
        assert here.outrider("key", "revoke", "laptop").returncode == 3


def test_https_goes_with_a_ca_or_a_fingerprint_and_is_refused_without(tmp_path: Path) -> None:
    files = certificates.make(tmp_path)
    with place() as here:
        config = here.home / "tls.toml"
        config.write_text(f'[tls]\ncert = "{files.cert}"\nkey = "{files.key}"\n')
        here.environ["OUTRIDER_CONFIG"] = str(config)
        url = f"https://{here.json('up', '--listen', '127.0.0.1:0')['listen'][0]}"
        there = {"OUTRIDER_URL": url, "OUTRIDER_KEY": here.json("key", "new", "a")["key"]}
        for trust in ({"OUTRIDER_CA": str(files.ca)}, {"OUTRIDER_FINGERPRINT": files.fingerprint}):
            assert here.outrider("ls", **trust, **there).returncode == 0
        refused = here.outrider("ls", **there)
        assert refused.returncode == 4
        assert "is not trusted" in refused.stderr
        assert "OUTRIDER_CA" in refused.stderr
        both = here.outrider("ls", OUTRIDER_CA="x", OUTRIDER_FINGERPRINT="y", **there)
        assert (both.returncode, "OUTRIDER_CA" in both.stderr) == (2, True)
        assert "certificate" in here.ok("doctor")


@pytest.mark.parametrize(
    "name", ["", "a b", "../x", "x" * 64, "\x1b[2J"], ids=["none", "space", "path", "long", "escape"]
)
def test_a_keys_name_that_cannot_be_is_wrong_usage(said: Said, name: str) -> None:
    assert "letters, digits" in said("key", "new", name, code=2)


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://a:b:c",
        "http://[::1",
        "http://h:99999",
        "http://a b",
        "http://\x1b",
        "unix:",
        "ftp://h",
    ],
)
def test_an_address_that_is_none_is_wrong_usage(url: str) -> None:
    with pytest.raises(reach.VerbError) as caught:
        reach.where("", url, {})
    assert caught.value.code == 2


def test_a_sockets_path_may_have_two_slashes() -> None:
    assert reach.where("", "unix:/a//b", {}).socket == Path("/a/b")


# Cordons.


def test_a_cordoned_worker_is_shown_and_takes_no_call_until_it_is_uncordoned(
    there: Place, said: Said
) -> None:
    try:
        assert said("worker", "cordon", "local") == "local takes no new calls\n"
        assert json.loads(said("worker", "cordon", "local", "--json")) == {
            "name": "local",
            "cordoned": True,
            "running": 0,
        }
        assert re.search(r"^local +connected, cordoned +linux", said("workers"), re.MULTILINE)
        assert json.loads(said("workers", "--json"))[0]["cordoned"] is True
        id = said("new", "--model", "rehearsal/echo").strip()
        assert re.search(r"^local +connected, cordoned +/", said("workers", id), re.MULTILINE)
        assert "cordoned" in said("doctor")
    finally:
        assert said("worker", "uncordon", "local") == "local takes calls again\n"
    assert "cordoned" not in said("workers") + said("workers", "--json")
    assert "there is no worker nobody" in said("worker", "cordon", "nobody", code=3)


def test_a_key_in_the_environment_that_cannot_be_one_is_told_before_it_is_sent() -> None:
    for key in ("ork_a\nb", "ork_\u00e9", "ork a"):
        with pytest.raises(VerbError, match="OUTRIDER_KEY holds no key") as caught:
            reach.where("", "http://h:1", {"OUTRIDER_KEY": key})
        assert caught.value.code == reach.USAGE


# Trying providers, and finding them.


@pytest.fixture
def models_server() -> Iterator[int]:
    """A server of models on loopback, as Ollama is; its port."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"data": [{"id": "qwen3", "owned_by": "library"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_provider_is_tried_with_one_request(said: Said) -> None:
    first, second = said("providers", "test", "rehearsal/echo").splitlines()
    assert first == "rehearsal/echo answered 'Answer with the one word: ready', as rehearsal"
    assert re.fullmatch(r"in \d\.\d s \(the first piece after \d\.\d s\), \d+ tokens in, \d+ out", second)
    got = json.loads(said("providers", "test", "rehearsal/echo", "--json"))
    assert (got["ok"], got["model"], got["usage"]["output"] > 0) == (True, "rehearsal/echo", True)


def test_a_provider_that_does_not_answer_says_why_and_what_to_do(said: Said) -> None:
    complaint = said("providers", "test", "rehearsal/refused", code=1)
    assert complaint == (
        "rehearsal/refused does not answer: Who are you? (status 401)\n"
        "→ set the provider's key (`outrider providers set rehearsal`)\n"
    )
    assert "there is no provider 'nobody'" in said("providers", "test", "nobody", code=3)


@pytest.mark.usefixtures("without_a_provider")
def test_a_scan_finds_a_local_server_and_adds_it_only_when_told(said: Said, models_server: int) -> None:
    port = str(models_server)
    (found,) = json.loads(said("providers", "scan", "--port", port, "--json"))
    url = f"http://127.0.0.1:{port}/v1"
    assert found == {
        "url": url,
        "server": "Ollama",
        "name": "ollama",
        "models": ["qwen3"],
        "added": False,
    }
    assert "not set up" in said("providers", "scan", "--port", port)
    assert "ollama is set up: its models are ollama/…" in said("providers", "scan", "--port", port, "--add")
    assert "ollama/qwen3" in said("models")
    (again,) = json.loads(said("providers", "scan", "--port", port, "--add", "--json"))
    assert (again["configured"], again["added"]) == ("ollama", False)


@pytest.mark.usefixtures("without_a_provider")
def test_a_server_that_does_not_say_its_models_is_told_of_and_holds_nobody_up(
    said: Said, capsys: pytest.CaptureFixture[str], models_server: int, unused_tcp_port: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        for name, port in (("mute", mute.getsockname()[1]), ("quick", models_server)):
            url = f"http://127.0.0.1:{port}/v1"
            said("providers", "set", name, "--kind", "openai-chat", "--url", url, "--no-key")
        assert cli.invoke(("models",)) == 0
        out, err = capsys.readouterr()
        assert "quick/qwen3" in out
        assert err == "mute has not said yet which models it has; those known of it are shown\n"
    said("providers", "set", "mute", "--url", f"http://127.0.0.1:{unused_tcp_port}/v1", "--no-key")
    assert cli.invoke(("models", "--json")) == 0
    assert capsys.readouterr().err.startswith("mute does not say which models it has: ")


def test_where_nothing_answers_a_scan_finds_nothing(said: Said, unused_tcp_port: int) -> None:
    assert said("providers", "scan", "--port", str(unused_tcp_port)) == ""
    assert said("providers", "scan", "--port", str(unused_tcp_port), "--json") == "[]\n"


@pytest.mark.usefixtures("without_a_provider")
def test_a_providers_key_can_stand_in_a_variable_of_the_daemons_environment(there: Place, said: Said) -> None:
    assert said("providers", "set", "anthropic", "--key-env", "HOME").startswith(
        "anthropic (anthropic) has a key, $HOME and "
    )
    assert re.search(r"^anthropic +anthropic +yes, \$HOME +", said("providers"), re.MULTILINE)
    refused = said("providers", "set", "anthropic", "--key-env", "NOT_THERE", code=3)
    assert "there is no $NOT_THERE in the daemon's environment" in refused
    assert [one["key_from"] for one in there.json("providers") if one["name"] == "anthropic"] == ["env:HOME"]


def test_a_key_is_read_where_a_dash_asks_for_it(there: Place) -> None:
    assert there.ok("providers", "set", "anthropic", "--key", "-", input=SECRET).startswith(
        "anthropic (anthr"
    )
    assert "has no key" in there.ok("providers", "set", "anthropic", "--no-key")


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (["rehearsal", "--url", "http://127.0.0.1:1"], "url: a provider of kind rehearsal has none", 3),
        (["mine", "--kind", "openai-chat"], "url: it is missing; write the server's address", 3),
        (["anthropic", "--key", "--no-key"], "--key, --key-env and --no-key contradict each other", 2),
        (["anthropic", "--key-env", "A", "--no-key"], "contradict each other", 2),
        (["anthropic", "--keyring", "--key-env", "A"], "contradict each other", 2),
        (["anthropic", "--key-env", "sk-1/2"], "--key-env: write a variable's name", 2),
    ],
)
def test_what_means_nothing_is_refused(said: Said, arguments: list[str], words: str, code: int) -> None:
    assert words in said("providers", "set", *arguments, code=code)
