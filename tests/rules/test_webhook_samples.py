"""Sample events match the documentation, and the published verification code works."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from heliograph.api.document.event_bodies import DATA
from heliograph.base.database.clock import iso
from heliograph.webhooks import samples, verification
from heliograph.webhooks.delivery import signing
from heliograph.webhooks.recording.events import KINDS
from tests.house.project import ROOT

BODY = '{"id":"1","data":{"text":"Olá, 你好"}}'.encode()
#: How each language is run: a program, the code appended, and how the cases are passed to it.
RUNS = {
    "python": (
        [sys.executable, "-"],
        "\nimport json\nfor t, s, b in json.loads({cases}): print(is_genuine(SECRET, t, s, b.encode()))\n",
    ),
    "node": (
        ["node", "-"],
        "\nfor (const [t, s, b] of JSON.parse({cases})) console.log(isGenuine(SECRET, t, s, Buffer.from(b)));\n",
    ),
    "php": (
        ["php"],
        "\nforeach (json_decode({cases}) as [$t, $s, $b])"
        " echo is_genuine(SECRET, $t, $s, $b) ? 'true' : 'false', PHP_EOL;\n",
    ),
    "ruby": (
        ["ruby", "-rjson", "-"],
        "\nJSON.parse({cases}).each {{ |t, s, b| puts genuine?(SECRET, t, s, b) }}\n",
    ),
}
GO = """
func main() {
	var cases [][3]string
	if err := json.Unmarshal([]byte({cases}), &cases); err != nil {
		panic(err)
	}
	for _, one := range cases {
		fmt.Println(isGenuine(secret, one[0], one[1], []byte(one[2])))
	}
}
"""
JAVA = """
class Cases {
    public static void main(String[] arguments) throws Exception {
        for (String[] one : new String[][] {cases})
            System.out.println(Callback.isGenuine(Callback.SECRET, one[0], one[1], one[2].getBytes("UTF-8")));
    }
}
"""


def test_every_kind_has_a_sample_of_the_documented_form() -> None:
    assert set(samples.samples()) == set(KINDS) == set(samples.SUMMARIES)
    for kind, sample in samples.samples().items():
        decoded = msgspec.convert(sample, DATA[kind])
        assert msgspec.to_builtins(decoded) == sample, kind


@pytest.mark.parametrize("language", [name for name, _ in verification.LANGUAGES])
def test_verifying_code_verifies(language: str, tmp_path: Path) -> None:
    secret = signing.new_secret()
    now = datetime.now(UTC)
    cases, expected = [], []
    for at, body, is_genuine in (
        # As many seconds as are allowed, minus some: before a compiler has finished, tens may have passed.
        (now, BODY, True),
        (now + timedelta(seconds=290), BODY, True),
        (now - timedelta(seconds=100), BODY, True),
        (now - timedelta(seconds=400), BODY, False),
        (now + timedelta(seconds=900), BODY, False),
        (now, BODY + b" ", False),
    ):
        timestamp = iso(at)
        cases.append([timestamp, signing.sign(secret, timestamp, BODY), body.decode()])
        expected.append(is_genuine)
    good = cases[0]
    for wrong in (
        [good[0], "v2" + good[1][2:], good[2]],
        [good[0], "", good[2]],
        ["yesterday", good[1], good[2]],
        [good[0], signing.sign(signing.new_secret(), good[0], BODY), good[2]],
        # Anybody may post to the address, and without the headers: they are then empty in Go, and missing in the
        # others.
        *([[good[0], None, good[2]], [None, good[1], good[2]], [None, None, good[2]]] if language != "go" else []),
    ):
        cases.append(wrong)
        expected.append(False)
    code = verification.code(language, secret)
    assert secret in code
    assert "{{" not in code
    literal = json.dumps(json.dumps(cases))
    if language == "go":
        if shutil.which("go") is None:
            pytest.skip("there is no Go here")
        text = code.replace("import (", 'import (\n\t"encoding/json"\n\t"fmt"') + GO.replace("{cases}", literal)
        (tmp_path / "main.go").write_text(text)
        done = subprocess.run(["go", "run", "main.go"], cwd=tmp_path, capture_output=True, text=True)
    elif language == "java":
        if shutil.which("javac") is None:
            pytest.skip("there is no Java compiler here")
        # The first class is the one that runs. A JSON list of strings is one in Java, except for the brackets.
        listed = json.dumps(cases).replace("[", "{").replace("]", "}")
        (tmp_path / "Cases.java").write_text(code.replace("\nclass", JAVA.replace("{cases}", listed) + "\nclass", 1))
        done = subprocess.run(["java", "Cases.java"], cwd=tmp_path, capture_output=True, text=True)
    else:
        program, rest = RUNS[language]
        if shutil.which(program[0]) is None:
            pytest.skip(f"there is no {program[0]} here")
        text = code + rest.format(cases=literal)
        done = subprocess.run(program, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.lower() == "true" for line in done.stdout.split()] == expected


def test_the_guide_shows_the_same_code() -> None:
    guide = (ROOT / "docs" / "webhooks.md").read_text()
    for fence, language in (("python", "python"), ("js", "node"), ("java", "java")):
        found = re.search(rf"```{fence}\n(.*?)```", guide, re.S)
        assert found
        shown = re.sub(
            r"\n *(const |static final String )?SECRET = .*\n", "", verification.code(language, "x")
        ).replace("\n\n\n\n", "\n\n\n")
        assert " ".join(found[1].split()) == " ".join(shown.split()), language
