"""What the style asks for and no linter counts: short functions and files, headers, prose, bans.

An exception is an entry with its reason in one of the tables; one no longer needed fails too.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import ALL_FOLDERS, ROOT, SHIPPED, Module, files, modules

LONGEST_FUNCTION = 60
LONGEST_FILE = 500
LONGEST_LINE = 100
LONGEST_ARCHITECTURE = 250

LONG_FUNCTIONS: dict[str, str] = {}  # "path:function" -> why
LONG_FILES: dict[str, str] = {}  # "path" -> why

LUA = ROOT / "store" / "valkey" / "lua"
SCRIPTS = sorted(LUA.glob("*.lua"))
INCLUDES = sorted((LUA / "includes").glob("*.lua"))

RUNS_CODE_OR_LOSES_DATA = (
    *("pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml.load", "yaml.unsafe_load"),
    *("builtins.eval", "builtins.exec", "asyncio.wait_for"),
)
LUA_FUNCTION = re.compile(r"^(?:local )?function (\w+).*?^end", re.MULTILINE | re.DOTALL)
SLEEPS = {"asyncio.sleep", "time.sleep"}
A_MACHINE_S_PATH = re.compile(r"(?<![\w.$}~-])/(?:work|home|Users|root)/\w")


def where(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def long_python_functions() -> Iterator[str]:
    for module in modules(*ALL_FOLDERS):
        for function in module.functions():
            assert function.end_lineno is not None
            if function.end_lineno - function.lineno >= LONGEST_FUNCTION:
                yield f"{module.where}:{function.name}"


def long_lua_functions() -> Iterator[str]:
    """Functions of the outermost level: from `function` to the `end` in the first column."""
    for path in files(".lua", *SHIPPED):
        found = LUA_FUNCTION.finditer(path.read_text())
        for match in found:
            if match[0].count("\n") >= LONGEST_FUNCTION:
                yield f"{where(path)}:{match[1]}"


def test_no_function_is_longer_than_a_screen() -> None:
    assert {*long_python_functions(), *long_lua_functions()} == set(LONG_FUNCTIONS)


def test_no_file_is_too_long_to_read_at_once() -> None:
    paths = [path for suffix in (".py", ".lua", ".sql") for path in files(suffix, *ALL_FOLDERS)]
    too_long = {where(p) for p in paths if p.read_text().count("\n") > LONGEST_FILE}
    assert too_long == set(LONG_FILES)


def test_no_line_of_lua_or_sql_is_too_long() -> None:
    assert [
        f"{where(path)}:{number}"
        for path in [*files(".lua", *SHIPPED), *files(".sql", *SHIPPED)]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > LONGEST_LINE
    ] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        module.where
        for module in modules(*SHIPPED, "loadtest", "examples")
        if len(ast.get_docstring(module.tree) or "") < 20
    ]
    assert silent == []


def test_nothing_runs_stored_code_or_loses_a_cancellation() -> None:
    found = [
        f"{module.where}:{use.line} uses {use.name}"
        for module in modules(*ALL_FOLDERS)
        for use in module.uses()
        if use.is_of(RUNS_CODE_OR_LOSES_DATA)
    ]
    assert found == []


def own_statements(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside it, such as bodies of steps."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from own_statements(child)


def sleeps(module: Module) -> Iterator[str]:
    """Waits of a test itself."""
    for function in module.functions():
        if function.name.startswith("test_"):
            for node in own_statements(function):
                if isinstance(node, ast.Call) and waits(module, node):
                    yield f"{module.where}:{node.lineno}"


def waits(module: Module, call: ast.Call) -> bool:
    """Whether it sleeps; `asyncio.sleep(0)` only lets others run."""
    return module.called(call) in SLEEPS and [ast.unparse(arg) for arg in call.args] != ["0"]


def test_no_test_sleeps() -> None:
    assert [line for module in modules("tests") for line in sleeps(module)] == []


def keys_used(text: str) -> int:
    return max((int(number) for number in re.findall(r"KEYS\[(\d+)\]", code_of(text))), default=0)


def header_of(text: str) -> str:
    """The block of comments at the top."""
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
    return "\n".join(lines[:end])


def code_of(text: str) -> str:
    return "\n".join(line.partition("--")[0] for line in text.splitlines())


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_s_name_gives_its_number_of_keys(path: Path) -> None:
    assert re.fullmatch(r"[a-z_]+-\d+", path.stem), "expected verb_noun-<number of keys>.lua"
    assert int(path.stem.rpartition("-")[2]) == keys_used(path.read_text())


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_s_header_is_its_contract(path: Path) -> None:
    text = path.read_text()
    header = header_of(text)
    assert not header.startswith(("-- KEYS", "-- ARGV", "-- Returns")), "guarantee first"
    for number in range(1, keys_used(text) + 1):
        assert f"-- KEYS[{number}]" in header
    assert "-- ARGV" in header or "ARGV" not in code_of(text)
    assert "-- Returns" in header


@pytest.mark.parametrize("path", INCLUDES, ids=lambda path: path.stem)
def test_an_include_is_the_one_function_it_is_named_for(path: Path) -> None:
    text = path.read_text()
    assert header_of(text)
    assert re.findall(r"^(?:local )?function (\w+)", text, re.MULTILINE) == [path.stem]


def test_there_are_scripts() -> None:
    assert SCRIPTS
    assert INCLUDES


def test_the_architecture_can_be_read_in_one_go() -> None:
    assert (ROOT / "ARCHITECTURE.md").read_text().count("\n") <= LONGEST_ARCHITECTURE


def test_no_file_names_a_machine() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: nothing says which files are ours")
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    ).stdout
    found = [
        f"{name}:{number}"
        for name in filter(None, listed.split("\0"))
        if (ROOT / name).is_file()
        for number, line in enumerate((ROOT / name).read_text(errors="replace").splitlines(), 1)
        if A_MACHINE_S_PATH.search(line)
    ]
    assert [line for line in found if not line.startswith("tests/test_tidy.py:")] == []
