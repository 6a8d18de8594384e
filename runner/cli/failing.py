"""How a command fails: which exit code, and one sentence on stderr.

Owns the table from errors to exit codes and both forms of an error: red text for people,
`{"error": …}` with `--json`. Refuses tracebacks and control characters.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from pyrula.supervisor.exits import ExitCode
from pyrula.workflows.stores.errors import (
    ConfigurationError,
    InvalidInputError,
    PyrulaError,
    ResultTimeout,
    RunCancelledError,
    RunFailedError,
    StoreUnavailable,
    WrongServer,
)

# The first row that fits decides; what is in none of them was refused.
_EXITS: tuple[tuple[tuple[type[PyrulaError], ...], ExitCode], ...] = (
    ((InvalidInputError, ConfigurationError, WrongServer), ExitCode.USAGE),
    ((StoreUnavailable,), ExitCode.STORE_UNREACHABLE),
    ((RunFailedError, RunCancelledError), ExitCode.RUN_FAILED),
    ((ResultTimeout,), ExitCode.WAIT_TIMED_OUT),
)


def exit_of(error: PyrulaError) -> ExitCode:
    """The exit code that tells of `error`."""
    if error.code == "module_failed":
        return ExitCode.FAILED
    for kinds, code in _EXITS:
        if isinstance(error, kinds):
            return code
    return ExitCode.REFUSED


def guarded(command: click.Command, argv: list[str]) -> int:
    """Run `command`; whatever happens, return an exit code and say at most one sentence."""
    as_json = "--json" in argv
    try:
        # Without standalone mode click returns what the command returned, and its own exit code
        # after --help.
        return int(command.main(argv, prog_name="pyrula", standalone_mode=False) or ExitCode.OK)
    except PyrulaError as error:
        found = error.as_dict()
        if isinstance(error, RunFailedError) and not as_json:
            found["message"] = _where_it_failed(error)
        show_error(found, as_json=as_json)
        return exit_of(error)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return ExitCode.USAGE
    except click.ClickException as error:
        show_error({"code": "usage", "message": _usage(error), "detail": {}}, as_json=as_json)
        return ExitCode.USAGE
    except (KeyboardInterrupt, click.Abort):
        return ExitCode.INTERRUPTED
    except SystemExit:
        # click's way of saying that whoever read our output has seen enough.
        return ExitCode.OK
    except Exception as error:  # noqa: BLE001  the last line of defence: a sentence, no traceback
        message = f"expected to go on, found {type(error).__name__}: {error}; please report this"
        show_error({"code": "internal", "message": message, "detail": {}}, as_json=as_json)
        return ExitCode.FAILED


def show_error(error: dict[str, Any], *, as_json: bool) -> None:
    """Write the error object to stderr, for machines or for people."""
    if as_json:
        print(json.dumps({"error": error}, default=str), file=sys.stderr)
        return
    click.secho(f"Error [{error['code']}]: {plain(error['message'])}", fg="red", err=True)
    for frame in error["detail"].get("frames") or ():
        place = f"{frame['file']}:{frame['line']} in {frame['function']}"
        click.secho(f"  {plain(place)}", err=True)


def _where_it_failed(error: RunFailedError) -> str:
    step = error.detail.get("step")
    place = f"step {step!r} failed: " if step else ""
    return f"{place}{error.error_type}: {error.message}"


def plain(text: str) -> str:
    r"""`text` with control characters written out, so that stored text can't drive a terminal.

    >>> plain("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _usage(error: click.ClickException) -> str:
    where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else None
    hint = f" (see {where} --help)" if where else ""
    return f"{error.format_message().rstrip('.')}{hint}"
