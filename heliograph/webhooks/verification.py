"""Code that verifies the signature of a callback, in several languages, filled in with one endpoint's secret.

The rule nobody may break: all code shown here is tested. Tests execute each piece whose language is installed, against
signatures made by `delivery.signing`; those of Python, Node and Java are the same as in docs/webhooks.md.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

#: (name of the file in `verifying`, name of the language)
LANGUAGES = (
    *(("python", "Python"), ("node", "Node"), ("java", "Java")),
    *(("php", "PHP"), ("go", "Go"), ("ruby", "Ruby")),
)
_PLACE = "{{SECRET}}"
_FOLDER = Path(__file__).with_name("verifying")


def code(language: str, secret: str) -> str:
    """The code for this secret. A secret is base64 behind `whsec_`, so it needs no quoting in any of them."""
    return _text(language).replace(_PLACE, secret)


@cache
def _text(language: str) -> str:
    return (_FOLDER / f"{language}.txt").read_text("utf-8")
