import os
from pathlib import Path

import pytest

from daemon import config
from daemon.allowance import Allowance
from daemon.config import Address, ConfigError, ModelEntry, PriceEntry, ProviderEntry, Settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".config/outrider").mkdir(parents=True)
    return tmp_path


def write(home: Path, text: str, mode: int = 0o600) -> Path:
    file = home / ".config/outrider/outrider.toml"
    file.write_text(text)
    file.chmod(mode)
    return file


def load(home: Path, **environ: str) -> Settings:
    return config.load({"HOME": str(home), **environ}, system_file=home / "etc.toml")


def test_with_nothing_configured_everything_has_its_usual_place(home: Path) -> None:
    settings = load(home)
    assert settings.data == home / ".local/share/outrider"
    assert settings.scratch == home / ".local/state/outrider/worker"
    assert settings.socket == home / ".local/share/outrider/api.sock"
    assert settings.rehearsal == home / ".config/outrider/rehearsal"
    assert settings.listen == (Address("127.0.0.1", 4600),)
    assert not settings.listen_given
    assert settings.model == ""
    assert settings.providers == {}
    assert settings.files == ()
    assert settings.warnings == ()


def test_the_xdg_folders_are_honoured_and_relative_ones_ignored(home: Path) -> None:
    settings = load(home, XDG_DATA_HOME="/d", XDG_STATE_HOME="/s", XDG_RUNTIME_DIR="/run/user/7")
    assert settings.data == Path("/d/outrider")
    assert settings.scratch == Path("/s/outrider/worker")
    assert settings.socket == Path("/run/user/7/outrider/api.sock")
    assert load(home, XDG_DATA_HOME="d", XDG_RUNTIME_DIR="r").data == home / ".local/share/outrider"


def test_another_data_folder_has_its_own_socket_and_scratch_so_that_two_daemons_do_not_meet(
    home: Path,
) -> None:
    settings = load(home, OUTRIDER_DATA="/else/where", XDG_RUNTIME_DIR="/run/user/7")
    assert settings.data == Path("/else/where")
    assert settings.socket == Path("/else/where/api.sock")
    assert settings.scratch == Path("/else/where/worker")


def test_the_command_line_wins_over_environment_and_file(home: Path) -> None:
    write(home, '[daemon]\nsocket = "/file.sock"\nlisten = ["127.0.0.1:1"]\n')
    assert load(home).socket == Path("/file.sock")
    assert load(home).listen == (Address("127.0.0.1", 1),)
    settings = config.load(
        {"HOME": str(home), "OUTRIDER_DATA": "/env"},
        data="/line",
        socket="/line.sock",
        listen=("[::1]:0",),
        system_file=home / "none",
    )
    assert settings.data == Path("/line")
    assert settings.socket == Path("/line.sock")
    assert settings.listen == (Address("::1", 0),)
    assert settings.listen_given


def test_an_empty_list_listens_on_no_tcp_port(home: Path) -> None:
    write(home, "[daemon]\nlisten = []\n")
    assert load(home).listen == ()
    assert load(home).listen_given


def test_the_users_file_lies_over_the_systems_key_by_key(home: Path) -> None:
    (home / "etc.toml").write_text(
        '[defaults]\nmodel = "a/b"\n[providers.lab]\nkind = "openai-chat"\nurl = "http://127.0.0.1:1"\n'
    )
    write(home, '[providers.lab]\nkey = "secret"\n[rehearsal]\nfolder = "/scripts"\n')
    settings = load(home)
    assert settings.model == "a/b"
    assert settings.rehearsal == Path("/scripts")
    assert settings.providers["lab"] == ProviderEntry("openai-chat", "http://127.0.0.1:1", "secret")
    assert len(settings.files) == 2


def test_variables_are_expanded_in_keys_urls_and_headers(home: Path) -> None:
    write(
        home,
        '[providers.lab]\nkind = "openai-chat"\nurl = "http://$HOST/v1"\nkey = "${LAB_KEY}"\n'
        'headers = {x-team = "$TEAM"}\n',
    )
    lab = load(home, HOST="h", LAB_KEY="k", TEAM="t").providers["lab"]
    assert (lab.url, lab.key, lab.headers) == ("http://h/v1", "k", {"x-team": "t"})


def test_a_variable_that_is_not_set_is_a_warning_not_an_end(home: Path) -> None:
    write(home, '[providers.anthropic]\nkey = "$NOT_THERE"\n')
    settings = load(home)
    assert settings.providers["anthropic"].key == ""
    assert settings.warnings == ("providers.anthropic names $NOT_THERE, which is not in the environment",)


def test_a_provider_whose_key_is_in_the_environment_needs_no_table(home: Path) -> None:
    settings = load(home, ANTHROPIC_API_KEY="a", OPENAI_API_KEY="o", OPENAI_BASE_URL="http://127.0.0.1:2")
    assert settings.providers == {
        "anthropic": ProviderEntry("anthropic", "", "a"),
        "openai": ProviderEntry("openai", "http://127.0.0.1:2", "o"),
    }


def test_googles_key_has_two_names_of_which_the_first_wins(home: Path) -> None:
    assert load(home, GOOGLE_API_KEY="b").providers == {"google": ProviderEntry("google", "", "b")}
    both = load(home, GEMINI_API_KEY="a", GOOGLE_API_KEY="b", GOOGLE_GEMINI_BASE_URL="http://127.0.0.1:2")
    assert both.providers == {"google": ProviderEntry("google", "http://127.0.0.1:2", "a")}
    write(home, '[providers.google]\nurl = "http://file"\n')
    assert load(home, GOOGLE_API_KEY="b").providers["google"] == ProviderEntry("google", "http://file", "b")


def test_models_of_a_provider_have_limits_and_prices(home: Path) -> None:
    price = "price = {input = 3, output = 15.5, cache_read = 0.3}"
    write(home, f'[providers.anthropic.models."claude-x"]\ncontext = 10\noutput = 5\n{price}\n')
    model = load(home).providers["anthropic"].models["claude-x"]
    assert model == ModelEntry(10, 5, (), PriceEntry(3, 15.5, 0.3))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[deamon]\n", ["outrider.toml", "'deamon'", "did you mean 'daemon'?"]),
        ("[daemon]\nsokcet = 'x'\n", ["outrider.toml", "daemon.sokcet", "did you mean 'socket'?", "listen"]),
        ("[daemon]\nlisten = 'x'\n", ["daemon.listen: expected a list, not text"]),
        ("[daemon]\nlisten = [3]\n", ["daemon.listen[0]: expected text"]),
        ("[daemon]\nlisten = ['localhost']\n", ["'localhost'", "HOST:PORT"]),
        ("[daemon]\nlisten = ['[::1]:66000']\n", ["66000", "HOST:PORT"]),
        ("defaults = 3\n", ["defaults is a table"]),
        ("[providers.x]\n", ["providers.x needs a kind", "openai-chat"]),
        ("[providers.x]\nkind = 'antropic'\n", ["providers.x.kind", "did you mean 'anthropic'?"]),
        ("[providers.anthropic]\nkeey = 'x'\n", ["providers.anthropic.keey", "did you mean 'key'?"]),
        (
            "[providers.anthropic.models.m]\ncontext = -1\n",
            ["providers.anthropic.models.m.context", "at least 0"],
        ),
        ("[providers.anthropic.models.m]\nctx = 1\n", ["providers.anthropic.models.m.ctx"]),
        (
            "[providers.anthropic.models.m]\nprice = {input = 1, output = -2}\n",
            ["providers.anthropic.models.m.price.output", "at least 0"],
        ),
        (
            "[providers.anthropic.models.m]\nprice = {input = 1}\n",
            [
                "outrider.toml: providers.anthropic.models.m.price.output is missing; ",
                "price needs input and output, and may have cache_read, cache_write",
            ],
        ),
        (
            "[providers.anthropic.models.m]\nprice = {}\n",
            ["models.m.price.input and providers.anthropic.models.m.price.output are missing"],
        ),
        (
            "[providers.anthropic.models.m]\nprice = 3\n",
            ["models.m.price has two prices", "price = { input = 3, output = 15 }"],
        ),
        (
            "[providers.anthropic.models.m]\nprice = {input = 1, output = 2, cached = 3}\n",
            ["models.m.price.cached", "did you mean 'cache_read'?", "price has input, output"],
        ),
        (
            "[providers.anthropic.models.m]\nprice = {input = inf, output = 2}\n",
            ["providers.anthropic.models.m.price.input", "at most 1000000"],
        ),
        ("[providers.'a/b']\nkind = 'openai'\n", ["providers.a/b", "no slash"]),
        ("[providers]\nanthropic = 'key'\n", ["[providers.anthropic]"]),
        ("x = \n", ["not valid TOML", "line 1"]),
        (f"x = {'[' * 5000}{']' * 5000}\n", ["not valid TOML", "recursion"]),
    ],
)
def test_a_mistake_is_refused_with_the_file_the_key_and_what_would_be_right(
    home: Path, text: str, words: list[str]
) -> None:
    write(home, text)
    with pytest.raises(ConfigError) as caught:
        load(home)
    for word in words:
        assert word in str(caught.value)


def test_a_file_that_is_named_must_be_there(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"OUTRIDER_CONFIG names .*, which is not there"):
        load(home, OUTRIDER_CONFIG=str(home / "nowhere.toml"))


def test_a_folder_in_place_of_the_file_is_told(home: Path) -> None:
    (home / ".config/outrider/outrider.toml").mkdir()
    with pytest.raises(ConfigError, match="Is a directory"):
        load(home)


def test_a_key_that_others_can_read_is_warned_about(home: Path) -> None:
    file = write(home, '[providers.anthropic]\nkey = "sk-secret"\n', 0o644)
    assert load(home).warnings == (
        f"{file} holds the key of anthropic and others can read it: chmod 600 {file}",
    )
    assert "sk-secret" not in str(load(home).warnings)
    file.chmod(0o600)
    assert load(home).warnings == ()


def test_a_key_that_is_only_a_variable_may_be_read_by_all(home: Path) -> None:
    write(home, '[providers.anthropic]\nkey = "$THE_KEY"\n', 0o644)
    assert load(home, THE_KEY="x").warnings == ()


def test_a_socket_path_over_the_systems_limit_is_refused_and_names_the_option() -> None:
    assert config.check_socket(Path("/" + "x" * 106)) == Path("/" + "x" * 106)
    with pytest.raises(ConfigError, match=r"108 bytes long.*--socket"):
        config.check_socket(Path("/" + "x" * 107))
    with pytest.raises(ConfigError):
        config.check_socket(Path("/" + "é" * 60))


def test_a_relative_folder_or_socket_is_made_absolute(home: Path) -> None:
    settings = config.load({"HOME": str(home)}, data="d", socket="s", system_file=home / "none")
    assert settings.data == Path(os.getcwd()) / "d"
    assert settings.socket == Path(os.getcwd()) / "s"


def test_an_address_shows_as_it_is_written() -> None:
    assert str(Address("::1", 4600)) == "[::1]:4600"
    assert str(Address("127.0.0.1", 1)) == "127.0.0.1:1"


def test_tls_takes_a_certificate_and_its_key(home: Path) -> None:
    assert load(home).tls is None
    write(home, '[tls]\ncert = "/etc/ssl/a.pem"\nkey = "~/a.key"\n')
    tls = load(home, HOME=str(home)).tls
    assert tls is not None
    assert tls.cert == Path("/etc/ssl/a.pem")
    assert tls.key.is_absolute()
    for text, field in [('cert = "/a.pem"', "tls.key"), ('cert = "a.pem"\nkey = "/a.key"', "tls.cert")]:
        write(home, f"[tls]\n{text}\n")
        with pytest.raises(ConfigError, match=rf"{field}: write a path from the root on"):
            load(home)


def stored(home: Path, text: str) -> None:
    folder = home / ".local/share/outrider"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / config.STORED).write_text(text)
    (folder / config.STORED).chmod(0o600)


def test_providers_set_while_a_daemon_ran_stand_beneath_the_operators_file(home: Path) -> None:
    stored(
        home,
        '[providers.anthropic]\nkey = "set$HOME"\nurl = "http://set"\n[providers.mine]\nkind = "anthropic"\n',
    )
    write(home, '[providers.anthropic]\nurl = "http://$WHERE"\n')
    settings = load(home, WHERE="written", ANTHROPIC_API_KEY="environment")
    assert settings.providers == {
        "anthropic": ProviderEntry("anthropic", "http://written", "set$HOME"),
        "mine": ProviderEntry("anthropic"),
    }
    assert settings.written == {"anthropic": {"url": "http://$WHERE"}}
    assert set(settings.stored) == {"anthropic", "mine"}
    stored(home, '[defaults]\nmodel = "a/b"\n')
    with pytest.raises(ConfigError, match=r"providers.toml: it holds \[providers.NAME\] alone; 'defaults'"):
        load(home)


# What workers allow.


def test_a_worker_allows_what_its_section_says(home: Path) -> None:
    assert load(home).worker == Allowance()
    write(
        home,
        '[worker]\ninterpreters = ["bash"]\nread = ["~/src", "/srv/"]\nwrite = []\nseconds = 60\noutput = 1000\n'
        'runs = 4\nenvironment = ["PATH", "LC_*"]\nas_root = true\n',
    )
    allowed = Allowance(
        interpreters=("bash",),
        read=(os.path.expanduser("~/src"), "/srv"),
        write=(),
        seconds=60,
        output=1000,
        runs=4,
        environment=("PATH", "LC_*"),
        as_root=True,
    )
    assert load(home).worker == allowed
    assert config.worker({"HOME": str(home)}, system_file=home / "etc.toml") == allowed


def test_a_worker_may_allow_an_interpreter_that_is_not_installed(home: Path) -> None:
    write(home, '[worker]\ninterpreters = ["node", "jupyter:ir"]\n')
    assert load(home).worker.interpreters == ("node", "jupyter:ir")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("interpreter = []", "no worker.interpreter (did you mean 'interpreters'?)"),
        ('interpreters = "bash"', "worker.interpreters"),
        (
            'interpreters = ["bash", "foo"]',
            "worker.interpreters: there is no interpreter 'foo'; there are bash, python, node and jupyter:NAME",
        ),
        ('interpreters = ["jupyter:"]', "worker.interpreters: there is no interpreter 'jupyter:'"),
        ("seconds = -1", "worker.seconds"),
        ('read = ["src"]', "worker.read: 'src' is not a path from the root on"),
        ('write = ["a\\u0000"]', "worker.write"),
        ("runs = 1.5", "worker.runs"),
        ('environment = [""]', "worker.environment"),
    ],
)
def test_what_a_worker_cannot_allow_is_told(home: Path, text: str, said: str) -> None:
    write(home, f"[worker]\n{text}\n")
    with pytest.raises(ConfigError) as raised:
        load(home)
    assert said in str(raised.value)


def test_a_worker_of_its_own_reads_the_file_that_is_named_and_no_other(home: Path) -> None:
    write(home, "[worker]\nruns = 1\n")
    other = home / "other.toml"
    with pytest.raises(ConfigError, match=r"--config names .*other.toml, which is not there"):
        config.worker({"HOME": str(home)}, str(other))
    other.write_text("[worker]\nseconds = 5\n")
    assert config.worker({"HOME": str(home)}, str(other)) == Allowance(seconds=5)


def test_workers_that_are_started_by_hand_have_a_folder_each(home: Path) -> None:
    assert config.workers_folder({"HOME": str(home)}) == home / ".local/state/outrider/workers"
    assert config.workers_folder({"HOME": str(home), "XDG_STATE_HOME": "/s"}) == Path("/s/outrider/workers")


def test_the_grace_of_workers_is_ten_minutes_unless_it_is_set(home: Path) -> None:
    assert load(home).grace == 600
    write(home, "[daemon]\ngrace = 1.5\n")
    assert load(home).grace == 1.5
    write(home, "[daemon]\ngrace = -1\n")
    with pytest.raises(ConfigError, match=r"daemon\.grace"):
        load(home)
