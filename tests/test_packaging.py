"""What the folders hold is what ships, under the names it is imported by."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.sources import PACKAGE_OF, PYPROJECT, ROOT, SETUPTOOLS, files, modules


def test_every_package_in_the_folders_ships() -> None:
    found = {module.name for module in modules(*PACKAGE_OF) if module.is_package}
    assert found == set(SETUPTOOLS["packages"])


def test_every_folder_with_files_is_a_package() -> None:
    folders = {path.parent for path in files("", *PACKAGE_OF) if path.is_file()}
    shipped = {folder for folder in folders if folder.name != "__pycache__"}
    assert [folder for folder in shipped if not (folder / "__init__.py").exists()] == []


def test_no_module_is_imported_under_its_folder_name() -> None:
    for package in SETUPTOOLS["packages"]:
        assert find_spec(package) is not None
    assert not set(PACKAGE_OF) & {name.partition(".")[0] for name in sys.modules}


def test_pyrula_is_a_namespace_that_others_can_share() -> None:
    spec = find_spec("pyrula")
    assert spec is not None
    assert spec.origin is None


def test_the_newest_change_is_of_this_version() -> None:
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == PYPROJECT["project"]["version"] == version("pyrula")


@pytest.mark.parametrize("command", sorted(PYPROJECT["project"]["scripts"]))
def test_every_command_answers_help(command: str) -> None:
    program = Path(sys.executable).parent / command
    done = subprocess.run(
        [program, "--help"], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage" in done.stdout


def test_a_wheel_made_from_the_sdist_holds_every_file_of_the_folders(tmp_path: Path) -> None:
    source = unpacked(build("sdist", copy_of_the_source(tmp_path / "source"), tmp_path))
    wheel = build("wheel", source, tmp_path)
    shipped = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        "/".join([*PACKAGE_OF[folder].split("."), path.relative_to(ROOT / folder).as_posix()])
        for folder in PACKAGE_OF
        for suffix in (".py", ".lua", ".sql", "py.typed")
        for path in files(suffix, folder)
    }
    assert expected - shipped == set()
    assert {name.partition("/")[0] for name in shipped if "dist-info" not in name} == {"pyrula"}


def copy_of_the_source(target: Path) -> Path:
    """A place to build in: the checkout itself stays untouched, also when tests run in parallel."""
    target.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    for folder in PACKAGE_OF:
        shutil.copytree(ROOT / folder, target / folder)
    return target


def build(what: str, source: Path, target: Path) -> Path:
    """A "wheel" or an "sdist" of `source`, made as pip makes it, in `target`."""
    script = f"import sys; from setuptools import build_meta as m; m.build_{what}(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", script, str(target)],
        cwd=source,
        check=True,
        capture_output=True,
        timeout=50,
    )
    (built,) = target.glob("*.whl" if what == "wheel" else "*.tar.gz")
    return built


def unpacked(sdist: Path) -> Path:
    shutil.unpack_archive(sdist, sdist.parent, filter="data")
    return sdist.parent / sdist.name.removesuffix(".tar.gz")
