"""One command of ``scaleup``, as argparse knows it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def command(commands: Commands, name: str, line: str, text: str) -> argparse.ArgumentParser:
    """Add a command: ``line`` stands in the list of all, ``text`` above its own options."""
    return commands.add_parser(name, help=line, description=text)
