from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.definition.agent import Agent, BadAgent, load, parse
from daemon.definition.inputs import BadInputs

HEAD = "apiVersion: agent-controller.dev/v1alpha1\nkind: Agent\nmetadata: {name: greeter, owner: me}\n"
SPEC = """\
spec:
  model: {provider: rehearsal, name: echo, temperature: 0.5}
  persona:
    role: A ${inputs.kind} greeter
    instructions: Be brief.
  task: Say ${inputs.word} to ${inputs.who}, ${inputs.times} times. ${inputs.loud}
  tools: [{name: bash}, {name: read}]
  inputs:
    kind: {type: enum, values: [kind, rude], default: kind, description: Its manner.}
    word: {default: hello}
    who:
    times: {type: number}
    loud: {type: boolean, default: false}
"""


def agent(spec: str = SPEC) -> Agent:
    return parse((HEAD + spec).encode(), "a.yaml")


def refused(spec: str, head: str = HEAD) -> list[str]:
    with pytest.raises(BadAgent) as caught:
        parse((head + spec).encode(), "a.yaml")
    return str(caught.value).split("\n")


def test_a_definition_gives_model_tools_and_what_a_session_is_told() -> None:
    found = agent()
    assert (found.name, found.model, found.temperature) == ("greeter", "rehearsal/echo", 0.5)
    assert found.tools == ("run", "read")
    assert found.warnings == ()
    assert found.text({"who": "Ada", "times": 3}) == (
        "Your role: A kind greeter\n\nBe brief.\n\nYour task:\nSay hello to Ada, 3 times. false"
    )


def test_values_are_put_in_once_and_are_not_looked_into() -> None:
    text = agent().text({"who": "${inputs.word} ${inputs.who}\n\\1 \\g<0>", "times": 1})
    assert "Say hello to ${inputs.word} ${inputs.who}\n\\1 \\g<0>, 1 times" in text


@given(st.text(), st.text())
def test_any_value_stands_in_the_text_as_it_was_given(who: str, word: str) -> None:
    text = agent().text({"who": who, "word": word, "times": 1})
    assert f"Say {word} to {who}, 1 times. false" in text


def test_everything_that_is_wrong_with_the_inputs_is_said_at_once() -> None:
    with pytest.raises(BadInputs) as caught:
        agent().text({"times": True, "kind": "odd", "what": 1, "loud": "yes"})
    said = str(caught.value).split("; ")
    assert said[0] == "inputs.who: it is missing"
    assert said[1] == "inputs.times: it is a number, not true"
    assert said[2] == "inputs.kind: it is one of kind, rude, not 'odd'"
    assert said[3:] == [
        "inputs.what: there is no such input",
        "there are kind, word, who, times, loud",
        "inputs.loud: it is true or false, not 'yes'",
    ]


@pytest.mark.parametrize(
    ("given", "text"), [(3, "3"), (2.5, "2.5"), ("-1e3", "-1e3"), (10**30, str(10**30)), ("0", "0")]
)
def test_a_number_may_come_as_text(given: object, text: str) -> None:
    assert f", {text} times. true" in agent().text({"who": "x", "times": given, "loud": "true"})


@pytest.mark.parametrize("given", ["", "1.", "0x1", "NaN", "1e", " 1", None, [1], {"a": 1}])
def test_what_is_no_number_is_refused(given: object) -> None:
    with pytest.raises(BadInputs, match=r"inputs\.times: it is a number"):
        agent().text({"who": "x", "times": given})


def test_without_declarations_each_name_in_the_text_is_text_that_has_to_be_given() -> None:
    found = agent("spec: {task: 'Tell ${inputs.who} of ${inputs.it}, ${inputs.who}', tools: []}\n")
    assert list(found.inputs) == ["who", "it"]
    assert found.tools == ()
    assert found.model == ""
    with pytest.raises(BadInputs, match=r"inputs\.who: it is missing; inputs\.it: it is missing"):
        found.text({})
    assert found.text({"who": "Ada", "it": ""}) == "Your task:\nTell Ada of , Ada"


def test_an_input_that_is_not_required_may_be_left_out() -> None:
    found = agent("spec:\n  task: a${inputs.x}b\n  inputs: {x: {required: false}}\n")
    assert found.text({}) == "Your task:\nab"
    assert found.tools is None


def test_fields_that_are_not_acted_on_are_warned_about_by_name_and_line() -> None:
    found = agent(
        "spec:\n  task: x\n  skills: [{name: a}]\n  mcpServers: []\n  runtime: {type: local}\n"
        "  extensions: []\n  subagents: []\n  installs: []\n  outputSchema: {}\n  guardrails: {}\n"
        "  observability: {tracing: true}\n"
    )
    assert found.warnings[0] == "spec.skills (line 6) is not acted on: they are not loaded"
    assert [warning.split(" ")[0].removeprefix("spec.") for warning in found.warnings] == [
        "skills", "mcpServers", "runtime", "extensions", "subagents", "installs", "outputSchema", "guardrails",
        "observability",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("spec: {}\n", "a.yaml:4: spec: task is missing"),
        ("spec: {task: ''}\n", "a.yaml:4: spec.task: expected text of at least 1 characters"),
        ("spec:\n  tsk: x\n  task: x\n", "a.yaml:5: spec: there is no field tsk"),
        ("spec: {task: x}\nmore: 1\n", "a.yaml:5: there is no field more"),
        ("spec: {task: 5}\n", "a.yaml:4: spec.task: expected text, not a whole number"),
        ("spec: {task: no}\n", "a.yaml:4: spec.task: expected text, not true or false"),
        ("spec:\n  task: x\n  model: {name: y}\n", "a.yaml:6: spec.model: provider is missing"),
        (
            "spec:\n  task: x\n  model: {name: y, provider: z, temperature: 3}\n",
            "a.yaml:6: spec.model.temperature: expected a number of at most 2",
        ),
        (
            "spec:\n  task: x\n  tools:\n  - name: zsh\n",
            "a.yaml:7: spec.tools[0].name: there is no tool 'zsh'; there are bash, run, read, write, edit, patch",
        ),
        (
            "spec:\n  task: x\n  inputs:\n    a: {type: int}\n",
            "a.yaml:7: spec.inputs.a.type: 'int' is none of string, number, boolean, enum",
        ),
        (
            "spec:\n  task: x\n  inputs:\n    a: {kind: 1}\n",
            "a.yaml:7: spec.inputs.a: there is no field kind",
        ),
        (
            "spec:\n  task: x\n  inputs:\n    a: {type: number, default: x}\n",
            "a.yaml:7: spec.inputs.a.default: it is a number, not 'x'",
        ),
        (
            "spec:\n  task: x\n  inputs:\n    a: {required: true, default: x}\n",
            "a.yaml:7: spec.inputs.a.required: one with a default is never missing; leave one of the two out",
        ),
        (
            "spec:\n  task: x\n  inputs:\n    a: {values: [b]}\n",
            "a.yaml:7: spec.inputs.a.values: only an enum has them; write type: enum, or leave them out",
        ),
        ("spec: {task: x}\nspec: {task: y}\n", "a.yaml: line 5: spec is there twice; the first is on line 4"),
        (
            "spec: {task: !!python/name:os.system }\n",
            "a.yaml: line 4: the type tag:yaml.org,2002:python/name",
        ),
        ("spec: [\n", "a.yaml: line 5: not valid YAML"),
        ("spec: {task: x, ? [a] : b}\n", "a.yaml: line 4: a name is text"),
        ("spec:\n  task: '  '\n", "a.yaml:5: spec.task: it is blank"),
        (
            "spec:\n  task: x\n  tools:\n  - name: bash\n  - name: run\n",
            "a.yaml:8: spec.tools[1].name: run is spec.tools[0] already",
        ),
        (
            "spec:\n  task: x\n  tools: [bash]\n",
            "a.yaml:6: spec.tools[0]: expected a mapping, not text; write {name: bash}",
        ),
        (
            "spec:\n  task: x\n  model: a/b\n",
            "a.yaml:6: spec.model: expected a mapping or null, not text; write {provider: ",
        ),
        (
            "spec:\n  task: x\n  inputs: {a: {type: enum, values: [yes, no]}}\n",
            "a.yaml:6: spec.inputs.a.values[0]: expected text, not true or false; YAML takes yes, no, on and off",
        ),
        (
            "spec:\n  task: x\n  inputs: {a: {default: on}}\n",
            "a.yaml:6: spec.inputs.a.default: it is text, not true; YAML takes yes, no, on and off",
        ),
        (
            "spec:\n  task: x\n  inputs: {a: {type: number, default: .inf}}\n",
            "a.yaml:6: spec.inputs.a.default: it is a number, not inf",
        ),
        (
            f"spec:\n  task: x\n  inputs: {{a: {{type: number, default: {'9' * 5000}}}}}\n",
            "a.yaml: line 6: no number: ",
        ),
        (
            f"spec:\n  task: x\n  inputs: {{a: {{type: number, default: 0x{'f' * 5000}}}}}\n",
            "a.yaml: line 6: a number of over 1024 bits",
        ),
        ('spec:\n  task: "x \\uD800"\n', "a.yaml: line 5: half of a surrogate pair"),
        ('spec: {task: x}\n"\\uDC00": y\n', "a.yaml: line 5: half of a surrogate pair"),
    ],
)
def test_a_fault_is_told_with_its_line_its_field_and_the_fix(spec: str, said: str) -> None:
    (line,) = refused(spec)
    assert line.startswith(said)


def test_every_name_that_is_used_and_not_declared_is_told() -> None:
    lines = refused("spec:\n  task: ${inputs.a} ${inputs.b c}\n  inputs: {}\n")
    assert [line.split(" ")[1] for line in lines] == ["${inputs.a}", "${inputs.b"]
    (line,) = refused("spec: {task: '${inputs.b c}'}\n")
    assert "inputs.b c: a name has letters" in line


def test_a_rule_for_a_tool_that_nothing_keeps_is_refused() -> None:
    (line,) = refused("spec:\n  task: x\n  tools:\n  - name: bash\n    config: {allow: [ls]}\n")
    assert line.startswith("a.yaml:8: spec.tools[0].config: nothing here keeps such a rule")


@pytest.mark.parametrize(
    "head", ["", "kind: Agent\n", "apiVersion: agent-controller.dev/v1alpha1\nkind: RuntimeBinding\n"]
)
def test_another_kind_of_file_is_refused(head: str) -> None:
    (line,) = refused("spec: {task: x}\n", head)
    assert "begins with apiVersion: agent-controller.dev/v1alpha1 and kind: Agent" in line


@pytest.mark.parametrize("name", ["Greeter", "a_b", "-a", "a-", "a" * 64, "a b"])
def test_a_name_that_cannot_stand_in_an_address_is_refused(name: str) -> None:
    (line,) = refused("spec: {task: x}\n", HEAD.replace("greeter", f"'{name}'"))
    assert line.startswith("a.yaml:3: metadata.name: ")


def test_aliases_cannot_stand_for_more_than_there_is() -> None:
    lines = "".join(f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    (line,) = refused(f"spec:\n  a0: &a0 [x, x, x]\n{lines}")
    assert "over 20000 values" in line
    (line,) = refused("spec: &a\n  task: *a\n")
    assert "nested deeper than 50" in line
    (line,) = refused("spec: " + "[" * 5000 + "]" * 5000 + "\n")
    assert "nested" in line


def test_aliases_and_merge_keys_that_mean_something_are_read() -> None:
    found = agent("spec:\n  task: &t do it\n  persona: {<<: {role: r}, instructions: *t}\n")
    assert found.text({}) == "Your role: r\n\ndo it\n\nYour task:\ndo it"


@pytest.mark.parametrize("text", [b"\xff\xfe\x00", b"a: \x00", b"\x80", b"", b"- 1", b"x" * (2 << 20)])
def test_what_is_no_definition_at_all_is_refused_in_a_sentence(text: bytes) -> None:
    with pytest.raises(BadAgent, match=r"^a\.yaml"):
        parse(text, "a.yaml")


@given(st.text(max_size=200))
def test_no_text_is_answered_by_another_error(text: str) -> None:
    said = "a.yaml"
    try:
        parse((HEAD + text).encode("utf-8", "replace"), "a.yaml")
    except BadAgent as error:
        said = str(error)
    assert said.startswith("a.yaml")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadAgent, match=r"none\.yaml: No such file"):
        load(tmp_path / "none.yaml")
    (tmp_path / "a.yaml").write_text(HEAD + SPEC)
    assert load(tmp_path / "a.yaml").name == "greeter"
