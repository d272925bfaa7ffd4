"""The documents agree with the code: settings, options, errors, events, commands, files, names and links."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer

import heliograph
from bench.figures import BUDGETS
from heliograph import cli
from heliograph.api.document import error_pages
from heliograph.api.operations.whatsapp.campaigns import WhatsAppCampaign
from heliograph.api.routes import OPERATIONS
from heliograph.base.errors import Refusal, kinds
from heliograph.campaigns import plan, record, standstill
from heliograph.campaigns.approval import rule
from heliograph.campaigns.channels import whatsapp as whatsapp_channel
from heliograph.cli import app
from heliograph.cli.developer import call as call_command
from heliograph.sms.arrivals import FAILURES
from heliograph.sms.status import STATUSES
from heliograph.suppliers.whatsapp_cloud.callbacks import management
from heliograph.webhooks.recording import events
from heliograph.whatsapp import status
from heliograph.whatsapp.callbacks import matching
from heliograph.whatsapp.mirror import onboarding
from tests.house import tables
from tests.house.project import DOCS, ROOT, blocks, documents, files, prose, reads_trees, table, tree

REMAKE = "run `python -m tests.house.tables`"
README = ROOT / "README.md"
LIFE = DOCS / "life-of-a-message.md"
MONITORING = DOCS / "monitoring.md"


@pytest.mark.parametrize(("path", "name", "make"), tables.PLACES, ids=[name for _, name, _ in tables.PLACES])
def test_tables_that_are_made_are_as_made(path: Path, name: str, make: Callable[[], str]) -> None:
    assert tables.between(path, name) == make(), REMAKE
    assert path.read_text().count(make()) == 1


def test_every_budget_has_its_figure_in_the_readme() -> None:
    assert tables.FIGURES.keys() == BUDGETS.keys()
    shown = {tuple(row[:1] + row[2:]) for row in table(README, "What")}
    expected = [line.split(" | ") for line in tables.figures({}, {}).splitlines()[2:] if line[:1] == "|"]
    assert shown == {(row[0].removeprefix("| ").strip("`"), row[2], row[3].removesuffix(" |")) for row in expected}


#: Refusals shown on pages, to people, with which no operation of the API responds.
ON_PAGES = (
    *("heliograph.people.", "heliograph.pages.", "heliograph.dashboard.", "heliograph.console."),
    *("heliograph.sms.accepting.sender_questions", "heliograph.sms.intervening.", "heliograph.whatsapp.intervening"),
)


def refusals() -> set[type[Refusal]]:
    for module in pkgutil.walk_packages(heliograph.__path__, "heliograph."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

    return {
        kind
        for kind in kinds()
        if kind.__module__.startswith("heliograph.") and not kind.__module__.startswith(ON_PAGES)
    }


def test_a_started_service_knows_every_code_that_its_pages_refuse_with() -> None:
    """They are in the request log, and filtering for one is no mistake."""
    # In a separate process: this one loads all modules, whether the service does or not.
    script = "from heliograph import serve; print(*serve.vocabulary().error_codes)"
    known = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    refusals()
    codes = {kind.code for kind in kinds() if kind.__module__.startswith(ON_PAGES)}
    assert {"role_required", "viewing_only", "other_organization", "foreign_form"} <= codes <= set(known)


def test_every_error_is_documented_with_its_status() -> None:
    documented = {row[0]: int(row[1]) for row in table(DOCS / "errors.md", "Code")}
    declared = {kind.code: kind.status for kind in refusals()}
    assert documented == declared, "describe the error in heliograph/api/document/errors.toml, then " + REMAKE
    for kind in refusals():
        assert declared[kind.code] == kind.status, f"{kind.code} has two statuses"


def test_errors_are_listed_by_status_and_say_what_to_do() -> None:
    rows = table(DOCS / "errors.md", "Code")
    assert [row[1] for row in rows] == sorted(row[1] for row in rows)
    assert [row[0] for row in rows if not all(row[:4])] == []


def test_every_failure_of_a_message_is_documented() -> None:
    documented = {row[0]: row[1].strip("`") for row in table(DOCS / "errors.md", "Failure")}
    assert documented.keys() == FAILURES.keys()
    assert set(documented.values()) <= {
        name for name, one in STATUSES.items() if one.event == "message.failed" or name == "unknown"
    }


def test_every_failure_of_a_whatsapp_message_is_documented() -> None:
    assert [row[0] for row in table(DOCS / "errors.md", "WhatsApp failure")] == list(status.FAILURES)


def test_the_fields_to_subscribe_to_at_meta_are_those_that_are_read() -> None:
    """The command and the console use the same list."""
    (line,) = [line for line in (DOCS / "whatsapp.md").read_text().splitlines() if "subscribe to the fields" in line]
    assert tuple(re.findall(r"`(\w+)`", line.partition("subscribe to the fields")[2])) == onboarding.FIELDS
    assert set(onboarding.FIELDS) == {"messages", "calls", *management.FIELDS}


def test_every_reason_of_a_campaign_that_waits_is_documented() -> None:
    documented = {row[0] for row in table(DOCS / "errors.md", "Reason")}
    sms = {plan.QUOTA, plan.SPENT, plan.SUSPENDED, plan.SENDER, plan.ERASED, plan.BY_REQUEST, rule.REASON}
    sms |= {record.WAITING}
    stops = re.findall(r"Stop\((\w+)", Path(whatsapp_channel.__file__).read_text())
    whatsapp = {getattr(whatsapp_channel, name) for name in stops if name.isupper()} | {whatsapp_channel.FUNDS}
    assert set(re.findall(r"THEN '(\w+)'", standstill.WHY)) == set(standstill.REASONS)
    assert documented == sms | whatsapp | set(standstill.REASONS)


def test_the_api_names_every_reason_for_which_a_running_whatsapp_campaign_waits() -> None:
    reason = get_type_hints(WhatsAppCampaign, include_extras=True)["status_reason"].__metadata__[0].description
    running = set(re.findall(r"`(\w+)`", reason.partition("While it is running")[2])) - {record.WAITING}
    _, _, whatsapp = standstill.WHY.partition("ELSE (")
    assert running == set(re.findall(r"THEN '(\w+)'", whatsapp))


def test_every_event_is_documented_and_raised() -> None:
    assert [row[0] for row in table(DOCS / "webhooks.md", "Event")] == list(events.KINDS)
    elsewhere = [path for path in files(".py") if path.is_relative_to(ROOT / "heliograph") and path.name != "events.py"]
    source = "".join(path.read_text() for path in elsewhere)
    assert [kind for kind in events.KINDS if f'"{kind}"' not in source] == []


def test_decisions_share_one_layout() -> None:
    layout = ["Context", "Decision", "Consequences", "Alternatives"]
    headings = {path.name: re.findall("^## (.+)", prose(path), re.M) for path in (DOCS / "decisions").glob("*.md")}
    assert len(headings) > 200
    assert {name: found for name, found in headings.items() if found != layout} == {}


def test_every_crash_point_has_its_consequence() -> None:
    source = "".join(path.read_text() for path in files(".py") if path.is_relative_to(ROOT / "heliograph"))
    points = re.findall(r'crash_point\("([^"]+)"\)', source)
    documented = re.findall(r"^\| `(\w+\.\w+)` \|", LIFE.read_text(), re.M)
    # No message passes an upgrade of the embedded PostgreSQL: decision 179 has its consequences.
    assert sorted(documented) == sorted(point for point in points if not point.startswith("upgrade."))


def log_lines() -> Iterator[str]:
    """The log lines of the product's modules, as patterns: a value in a line may be anything."""
    for path in (path for path in files(".py") if path.is_relative_to(ROOT / "heliograph")):
        for node in ast.walk(tree(path)):
            match node:
                case ast.Call(ast.Attribute(ast.Name("log"), _), [ast.Constant(str(line)), *_]):
                    yield re.escape(line)
                case ast.Call(ast.Attribute(ast.Name("log"), _), [ast.JoinedStr(parts), *_]):
                    yield "".join(re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in parts)
                case ast.Call(ast.Name("Sparse"), [ast.Constant(str(line)), *_]):
                    yield re.escape(line)


@reads_trees
def test_every_line_of_the_log_that_is_documented_is_written() -> None:
    written = re.compile("|".join(log_lines()))
    rows = re.search(r"^\| Line \| Meaning \|\n(.+?)\n\n", f"{MONITORING.read_text()}\n\n", re.M | re.S)
    assert rows is not None
    documented = [name for row in rows[1].splitlines()[1:] for name in re.findall("`([^`]+)`", row.split(" | ")[0])]
    assert len(documented) > 30
    assert [name for name in documented if not written.fullmatch(name)] == []


@reads_trees
def test_lines_of_the_log_are_phrases() -> None:
    assert [line for line in log_lines() if re.search("[a-z]_[a-z]", line)] == []


def test_every_status_is_in_the_drawing() -> None:
    assert [name for name in STATUSES if not re.search(rf"\b{name}\b", LIFE.read_text())] == []


def test_the_readme_leads_to_every_page() -> None:
    assert [one.name for one in sorted(DOCS.glob("*.md")) if f"](docs/{one.name})" not in README.read_text()] == []


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if not found.exists() or (anchor and anchor not in anchors(found)):
            wrong.append(target)
    assert wrong == []


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of headings."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_files_and_names_are_there(path: Path) -> None:
    wrong = []
    for file in re.findall(r"`([\w./-]+\.(?:py|sql|md|lock|toml))`", prose(path)):
        if not located(file, path):
            wrong.append(file)
    for name, file in re.findall(r"`([A-Za-z_][\w.]*)` (?:\(|in )`([\w/]+\.(?:py|sql))`", prose(path)):
        found = located(file, path)
        text = found.read_text() if found else ""
        for part in name.split("."):
            if not re.search(rf"(class|def|FUNCTION) {part}\b|^{part}\b.* = |^    {part}:", text, re.M):
                wrong.append(f"{name} in {file}")
    assert wrong == []


def located(file: str, document: Path) -> Path | None:
    return next(
        (found for base in (ROOT, ROOT / "heliograph", document.parent) if (found := base / file).exists()), None
    )


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_make_targets_are_there(path: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"^\s*make ([a-z]+)", path.read_text(), re.M))
    named |= set(re.findall(r"`make ([a-z]+)", path.read_text()))
    assert named <= targets


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_commands_are_known(path: Path) -> None:
    lines = re.findall(r"`(heliograph [^`]+)`", prose(path))
    for block in [block for block in blocks(path) if block.words[:1] == ["sh"]]:
        lines += [
            line.partition("| ")[2] or line
            for line in block.text.replace("\\\n", " ").splitlines()
            if re.match(r"(\s*echo \w+ \| )?\s*heliograph ", line)
        ]
    for line in lines:
        # The runbook's commands are typed as they are, at night; elsewhere a name and an option stand for the option.
        check_command(line.strip(), is_whole=path.name == "runbook.md")


@cache
def command_at(path: tuple[str, ...]) -> Any:
    """The command with these words, or None. typer creates each one again on every access."""
    return command_at(path[:-1]).get_command(None, path[-1]) if path else typer.main.get_command(app)


def check_command(line: str, *, is_whole: bool = False) -> None:
    """Every word before the arguments is a command, every option exists, and no required one is missing. A shell
    pattern may stand for several arguments."""
    words = shlex.split(line, comments=True)[1:]
    path: tuple[str, ...] = ()
    while words and hasattr(command_at(path), "get_command"):
        path, words = (*path, words[0]), words[1:]
        assert command_at(path) is not None, f"{line}: there is no command {path[-1]!r}"
    command = command_at(path)
    if command.name == "call":
        check_call(words)
    single = any(one.param_type_name == "argument" and one.nargs == 1 for one in command.params)
    assert not single or not any(word.endswith("*") for word in words), f"{line}: it takes one"
    options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert given <= options, f"{line}: {given - options}"
    if given and is_whole:  # a bare name stands for the command
        needed = {one.opts[0] for one in command.params if one.required and one.param_type_name == "option"}
        assert needed <= given, f"{line}: it needs {needed - given}"


def check_call(words: list[str]) -> None:
    """An operation that is called by its name gets all fields of its path, and none that it does not have."""
    if not words or words[0].startswith("/"):
        return
    found = next((one for one in OPERATIONS if one.id == words[0]), None)
    assert found, f"there is no operation {words[0]!r}"
    given = {re.split(":?=", word)[0] for word in words[1:] if "=" in word}
    in_path = set(re.findall(r"\{(\w+)\}", found.path))
    assert in_path <= given, f"{words[0]} needs {in_path - given}"
    fields = getattr(found.request or found.query, "__struct_encode_fields__", ())
    assert given - in_path <= set(fields), f"{words[0]} has no {given - in_path - set(fields)}"


def test_examples_of_calls_are_of_what_there_is() -> None:
    lines = re.findall(r"heliograph call .*", call_command.command.__doc__ or "")
    assert lines
    for line in lines:
        check_command(line)


def raised_details() -> Iterator[tuple[str, str]]:
    """(class, name) of each detail that the code gives to a refusal, in its constructor or where it is raised."""
    kinds = {kind.__name__ for kind in refusals()}
    for path in files(".py"):
        if not path.is_relative_to(ROOT / "heliograph"):
            continue
        read = tree(path)
        made = {
            id(call): one.name
            for one in ast.walk(read)
            if isinstance(one, ast.ClassDef) and one.name in kinds
            for call in ast.walk(one)
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "super().__init__"
        }
        own = set(made.values())
        for call in ast.walk(read):
            if isinstance(call, ast.Call):
                name = made.get(id(call)) or ast.unparse(call.func).rpartition(".")[2]
                if name in kinds and (id(call) in made or name not in OWN_DETAILS | own):
                    yield from ((name, one.arg) for one in call.keywords if one.arg and one.arg != "message")


#: The parameters of their constructors differ from the details in the response.
OWN_DETAILS = {"Invalid", "RateLimited", "MethodNotAllowed", "PayloadTooLarge", "Unavailable"}


def test_a_message_has_one_reference_in_all_examples() -> None:
    pair = re.compile(r'"id": "([0-9a-f-]{36})",\s+"clientReference": ("[^"]*"|null)')
    found: dict[str, set[str]] = {}
    for path in documents():
        for id, reference in pair.findall(path.read_text()):
            found.setdefault(id, set()).add(reference)
    assert len(found) > 3
    assert {id: references for id, references in found.items() if len(references) > 1} == {}


def test_commands_with_a_key_are_told_from_those_of_operators() -> None:
    alone = {"guide", "completion"}
    with_key = {noun for noun, one in cli.NOUNS.items() if one.room == "developer"} - alone
    helped = re.search("API with a key: (.*?)\\.", cli.HELP, re.DOTALL)
    assert helped is not None
    assert set(helped[1].replace(",", "").split()) == with_key
    assert alone <= set(re.findall("[a-z]+", cli.HELP))
    told = (DOCS / "cli.md").read_text().split("\n\n## ")[0]
    assert set(re.findall("`([a-z]+)`", told)) - {"heliograph"} == with_key


def test_both_documents_name_the_events_that_only_subscribers_have() -> None:
    """Whoever polls and has no endpoint never sees them. `wanted` takes no other kinds, says mypy."""
    assert set(matching.ANNOUNCED) < set(events.ON_REQUEST)
    polling = (DOCS / "webhooks.md").read_text().split("\n## Fetching events\n\n")[1].split("\n\n")[0]
    described = next(each.description for each in OPERATIONS if each.id == "listEvents")
    for told in (polling, described):
        assert set(re.findall(r"`([a-z_]+\.[a-z_]+)`", told)) == set(events.ON_REQUEST)


@reads_trees
def test_every_detail_of_an_error_is_documented() -> None:
    """Operators' errors of the command line are not part of the API."""
    codes = {kind.__name__: kind.code for kind in refusals()}
    documented = {one.code: one.details for one in error_pages.errors()}
    missing = {
        f"{codes[kind]}.{name}"
        for kind, name in raised_details()
        if name not in documented.get(codes[kind], {}) and codes[kind] != "not_found"
    }
    assert missing == set(), "describe them in heliograph/api/document/errors.toml"
