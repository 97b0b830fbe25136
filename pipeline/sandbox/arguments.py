"""The sandbox on a command line: one option for each setting, so the two can't drift apart. Imports no server."""

import argparse
import os
from collections.abc import Callable
from typing import Any

import msgspec

from pipeline.sandbox.settings import SandboxSettings

_FIELDS = msgspec.structs.fields(SandboxSettings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add an option for each setting; the defaults are those of the settings."""
    for field in _FIELDS:
        option = _option(field.name)
        text = _description(field.type)
        if field.name == "with_parent":
            # Without a number the parent is whoever started this process.
            parser.add_argument(option, type=int, nargs="?", const=os.getppid(), default=0, metavar="PID", help=text)
        elif isinstance(field.default, bool):
            shown = f"{text} (default: {str(field.default).lower()})"
            parser.add_argument(
                option, type=_reader(field.type), nargs="?", const=True, default=field.default, metavar="X", help=shown
            )
        elif isinstance(field.default, tuple):
            parser.add_argument(option, action="append", metavar="TEXT", help=text)
        else:
            shown = f"{text} (default: {field.default})"
            parser.add_argument(option, type=_reader(field.type), default=field.default, metavar="X", help=shown)


def settings_from(args: argparse.Namespace) -> SandboxSettings:
    """The settings that the options state.

    Raises:
        ValueError: options that only together are impossible.
    """
    values = {field.name: getattr(args, field.name) for field in _FIELDS}
    values["api_keys"] = tuple(values["api_keys"] or ())
    return SandboxSettings(**values)


def arguments_for(settings: SandboxSettings) -> list[str]:
    """The options that state `settings`: `settings_from` gives them back."""
    options = []
    for field in _FIELDS:
        value = getattr(settings, field.name)
        if value != field.default:
            values = value if isinstance(value, tuple) else (value,)
            options += [f"{_option(field.name)}={one}" for one in values]
    return options


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _description(annotated: Any) -> str:
    return str(annotated.__metadata__[0].description)


def _reader(annotated: Any) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return msgspec.convert(text, annotated, strict=False)
        except msgspec.ValidationError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read
