"""The script build: how files become one script, and what every script file keeps to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyrula.workflows.stores.valkey import functions
from pyrula.workflows.stores.valkey.codes import Code, refusal
from pyrula.workflows.stores.valkey.functions import (
    ScriptBuildError,
    join_scripts,
    script_build,
    upgrade_scripts,
)
from tests.support.valkey import ValkeyServer

HEADER = "-- Does it.\n--\n-- KEYS[1] the key\n-- Returns OK.\n"
LUA = Path(functions.__file__).parent / "lua"
FILES = sorted([*LUA.glob("*.lua"), *(LUA / "includes").glob("*.lua")])
SCRIPTS = sorted(script_build().scripts)

_CALL = re.compile(r"redis\.p?call\('(\w+)', *(.*)")
_LOCALS = re.compile(r"^ *local ([\w, ]+) = (.+)$", re.MULTILINE)
_KEYLESS = {"TIME", "PUBLISH"}
# A key is declared, or a kind (and an id) behind a declared prefix, or a local made of one.
_MADE = r"KEYS\[\d\]|(?:shard|KEYS\[\d\]) \.\. '[a-z]+:?'(?: \.\. [\w.\[\]]+)?"
_KEY_LOCALS = {"run", "journal", "registry", "meta", "held", "tomb", "reservation", "shard"}
_KEY = re.compile(rf"(?:{'|'.join(sorted(_KEY_LOCALS - {'shard'}))}|{_MADE})[,)]")


def test_a_script_runs_with_what_it_includes() -> None:
    build = join_scripts(
        {"make_it-1.lua": HEADER + "-- include: twice\nreturn twice(KEYS[1])\n"},
        {"twice": "local function twice(x)\n  return x .. x\nend\n"},
    )
    assert build.scripts["make_it"].keys == 1
    assert build.source.index("local function twice") < build.source.index("return twice(KEYS[1])")


def test_an_include_is_taken_once_and_after_its_own_includes() -> None:
    build = join_scripts(
        {"make_it-1.lua": HEADER + "-- include: a, b\nreturn a()\n"},
        {
            "a": "-- include: b\nlocal function a() return b() end\n",
            "b": "local function b() return 1 end\n",
        },
    )
    assert build.source.count("local function b()") == 1
    assert build.source.index("function b()") < build.source.index("function a()")


def test_a_missing_include_is_named() -> None:
    with pytest.raises(ScriptBuildError, match=r"make_it includes gone, but there is no gone\.lua"):
        join_scripts({"make_it-1.lua": HEADER + "-- include: gone\nreturn 1\n"}, {})


def test_a_circular_include_is_shown_as_a_circle() -> None:
    with pytest.raises(ScriptBuildError, match="make_it → a → b → a"):
        join_scripts(
            {"make_it-1.lua": HEADER + "-- include: a\nreturn 1\n"},
            {"a": "-- include: b\n", "b": "-- include: a\n"},
        )


def test_a_script_without_a_header_is_refused() -> None:
    with pytest.raises(ScriptBuildError, match="open with its guarantee"):
        join_scripts({"make_it-1.lua": "return 1\n"}, {})


def test_a_file_name_that_says_no_key_count_is_refused() -> None:
    with pytest.raises(ScriptBuildError, match=r"verb_noun-1\.lua"):
        join_scripts({"makeit.lua": HEADER + "return 1\n"}, {})


def test_an_unknown_code_is_refused() -> None:
    with pytest.raises(ScriptBuildError, match=r"Code\.NOPE"):
        join_scripts({"make_it-1.lua": HEADER + "return Code.NOPE\n"}, {})


def test_every_refusal_becomes_an_error_with_a_code_of_its_own() -> None:
    codes = [refusal(code, "run a").code for code in Code if code < 0]
    assert len(codes) == len(Code) - 1
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_file_name_gives_the_number_of_keys(name: str) -> None:
    script = script_build().scripts[name]
    numbers = {int(number) for number in re.findall(r"KEYS\[(\d+)\]", script.text)}
    assert numbers == set(range(1, script.keys + 1))


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_header_names_every_argument(name: str) -> None:
    text = script_build().scripts[name].text
    header = "\n".join(line for line in text.splitlines() if line.startswith("--"))
    body = text.removeprefix(header)
    documented = {int(n) for n in re.findall(r"^-- ARGV\[(\d+)", header, re.MULTILINE)}
    assert {int(n) for n in re.findall(r"ARGV\[(\d+)\]", body)} <= documented
    assert documented == set(range(2, 2 + len(documented)))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_key_is_declared_or_lies_under_a_declared_prefix(file: Path) -> None:
    text = file.read_text()
    for verb, arguments in _CALL.findall(text):
        assert verb in _KEYLESS or _KEY.match(arguments), f"{verb} of {arguments}"
    for names, values in _LOCALS.findall(text):
        for name, value in zip(names.split(", "), values.split(", "), strict=False):
            assert name not in _KEY_LOCALS or re.fullmatch(_MADE, value), f"{name} = {value}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_script_looks_into_a_payload(file: Path) -> None:
    assert not re.search(r"cjson|cmsgpack|loadstring", file.read_text())


def test_an_include_file_holds_the_function_it_is_named_for() -> None:
    for file in (LUA / "includes").glob("*.lua"):
        functions_in_it = re.findall(r"^local function (\w+)", file.read_text(), re.MULTILINE)
        assert functions_in_it == [file.stem]


def test_every_include_is_used() -> None:
    everything = "\n".join(file.read_text() for file in FILES)
    included = {
        name for line in re.findall("-- include: (.+)", everything) for name in line.split(", ")
    }
    assert included == {file.stem for file in (LUA / "includes").glob("*.lua")}


def test_upgrade_loads_the_script_that_the_store_calls(valkey: ValkeyServer) -> None:
    assert upgrade_scripts(valkey.url) == script_build().sha
    assert valkey.command("SCRIPT", "EXISTS", script_build().sha) == [1]


def test_the_script_also_runs_on_a_server_that_knows_no_shebang(valkey: ValkeyServer) -> None:
    reply = valkey.command("EVAL", script_build().plain, 1, "plain:{w.0}:", "list_expired", 5)
    assert reply == []


def test_an_unknown_operation_is_an_error(valkey: ValkeyServer) -> None:
    with pytest.raises(Exception, match="unknown operation nope"):
        valkey.command("EVAL", script_build().source, 0, "nope")
