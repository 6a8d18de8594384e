"""This repository's own source, as the tests of the house read it: files, imports, uses."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS: dict[str, Any] = PYPROJECT["tool"]["setuptools"]
PACKAGE_OF: dict[str, str] = {folder: name for name, folder in SETUPTOOLS["package-dir"].items()}
SHIPPED = tuple(PACKAGE_OF)
ALL_FOLDERS = (*SHIPPED, "tests", "loadtest", "examples")


@dataclass(frozen=True, kw_only=True)
class Use:
    """A dotted name of another module that a line imports or mentions."""

    line: int
    name: str

    def is_of(self, banned: Iterable[str]) -> bool:
        """Whether the name is one of `banned` or lies below one."""
        return any(f"{self.name}.".startswith(f"{prefix}.") for prefix in banned)


@dataclass(frozen=True, kw_only=True)
class Module:
    """One Python file, parsed."""

    path: Path
    name: str
    is_package: bool
    tree: ast.Module = field(repr=False)

    @property
    def where(self) -> str:
        """The path from the root of the repository."""
        return self.path.relative_to(ROOT).as_posix()

    def imports(self) -> Iterator[Use]:
        """Every import as `module` or `module.name`, also those inside functions or for types."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (Use(line=node.lineno, name=alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin(node)
                for alias in node.names:
                    yield Use(line=node.lineno, name=f"{origin}.{alias.name}")

    def uses(self) -> Iterator[Use]:
        """`imports`, and every mention of an imported name or of a builtin, in full."""
        yield from self.imports()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name | ast.Attribute) and (name := dotted(node)):
                yield Use(line=node.lineno, name=in_full(name, self._full_names))

    def calls(self, *names: str) -> Iterator[Use]:
        """Every call of one of `names`, in full."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and self.called(node) in names:
                yield Use(line=node.lineno, name=self.called(node))

    def called(self, call: ast.Call) -> str:
        """The full name of what is called, empty for an expression."""
        name = dotted(call.func)
        return name and in_full(name, self._full_names)

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Every function and method, nested ones too."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def _origin(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        kept = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*kept, *([node.module] if node.module else [])])

    @cached_property
    def _full_names(self) -> dict[str, str]:
        full: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.name if alias.asname else alias.name.partition(".")[0]
                    full[alias.asname or name] = name
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    full[alias.asname or alias.name] = f"{self._origin(node)}.{alias.name}"
        return full


def dotted(node: ast.expr) -> str:
    """`a.b.c` for such an expression, empty for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def in_full(name: str, full: dict[str, str]) -> str:
    """`name` with its first part replaced by what was imported under it, else by a builtin."""
    head, _, rest = name.partition(".")
    return f"{full.get(head, f'builtins.{head}')}.{rest}".rstrip(".")


def parse(text: str, path: Path = ROOT / "store" / "example.py") -> Module:
    """A module from its text, as if it lay at `path`."""
    folder, *rest = path.relative_to(ROOT).with_suffix("").parts
    parts = [PACKAGE_OF.get(folder, folder), *rest]
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package else parts)
    return Module(path=path, name=name, is_package=is_package, tree=ast.parse(text))


def files(suffix: str, *folders: str) -> list[Path]:
    """The files below `folders` with this suffix, sorted."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob(f"*{suffix}"))


@cache
def modules(*folders: str) -> tuple[Module, ...]:
    """The parsed modules below `folders`."""
    return tuple(parse(path.read_text(), path) for path in files(".py", *folders))
