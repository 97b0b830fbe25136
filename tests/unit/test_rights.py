"""What `check` asks for is what workers do."""

from __future__ import annotations

import re
from importlib.resources import files

from pipeline.store.health import needed
from tokenweir.keys import Keys

_CALL = re.compile(r"redis\.p?call\('([A-Z]+)'")


def test_check_asks_for_every_command_of_every_script() -> None:
    """A user whose rights `check` found to be enough meets no NOPERM in the middle of a decision."""
    texts = [path.read_text() for path in files("lua").iterdir() if path.name.endswith(".lua")]
    used = {word for text in texts for word in _CALL.findall(text)}

    assert used - {str(words[0]) for words in needed(Keys())} == set()
