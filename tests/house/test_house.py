"""The house: imports flow down, modules say what they are, tables name their class, and nothing foreign is kept."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import msgspec
import pytest
from importlinter.cli import lint_imports

from heliograph.base.database.pool import Pool
from heliograph.base.errors import MISSING
from tests.house.calls import trees
from tests.house.project import ROOT, VENDORS, files, name_of, reads_trees, tree

MODULES = list(files(".py"))


def test_imports_flow_down(capsys: pytest.CaptureFixture[str]) -> None:
    assert lint_imports(str(ROOT / "pyproject.toml"), no_cache=True, no_logo=True) == 0, capsys.readouterr().out


def _imported(path: Path, modules: Collection[str]) -> set[str]:
    """Those of our modules that are imported before this one can be."""
    found = set()
    statements: list[ast.AST] = [tree(path)]
    for node in statements:
        match node:
            case ast.Import(names=names):
                found |= {one.name for one in names}
            case ast.ImportFrom(module=str(room), names=names):
                found |= {full if (full := f"{room}.{one.name}") in modules else room for one in names}
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass  # later, or never
            case ast.stmt() | ast.Module() | ast.ExceptHandler():
                statements += ast.iter_child_nodes(node)
    return found & set(modules)


@reads_trees
def test_no_modules_import_each_other() -> None:
    """A cycle can be imported only from some of its modules: whether a process starts would depend on the first one."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in MODULES
        if path.is_relative_to(ROOT / "heliograph")
    }
    left = {name: _imported(path, paths) for name, path in paths.items()}
    assert len(left["heliograph.people.users"]) > 5
    # A module that imports none of the rest, or that none of the rest imports, is not part of a cycle.
    while outside := [name for name, others in left.items() if not others & left.keys()] or list(
        left.keys() - set().union(*left.values())
    ):
        left = {name: others for name, others in left.items() if name not in outside}
    assert sorted(left) == []


@reads_trees
def test_every_module_says_what_it_is() -> None:
    silent = [name_of(path) for path in MODULES if path.stat().st_size and not ast.get_docstring(tree(path))]
    assert silent == []


def test_rooms_are_small_and_say_what_they_own() -> None:
    """A room: a folder of modules."""
    for room in sorted(path.parent for path in (ROOT / "heliograph").rglob("__init__.py")):
        said = ast.get_docstring(tree(room / "__init__.py"))
        assert said, f"{name_of(room)} does not say what it owns"
        modules = [path for path in room.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= 12, f"{name_of(room)} holds {len(modules)} files"


@reads_trees
def test_what_is_missing_is_named() -> None:
    """With a sentence of its own, or that of its kind."""
    made = [
        (f"{name_of(path)}:{node.lineno}", {one.arg: ast.unparse(one.value) for one in node.keywords})
        for path in MODULES
        if name_of(path).startswith("heliograph/") and "NotFound(" in path.read_text()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "NotFound" and not node.args
    ]
    assert len(made) > 20
    assert [where for where, said in made if said.get("resource", "").strip("'") not in MISSING] == []


def test_nothing_is_left_for_later() -> None:
    words = re.compile(rf"\b({'TO' + 'DO'}|{'FIX' + 'ME'}|X{'XX'}|{'NotImplemented' + 'Error'})\b")
    found = [
        f"{name_of(path)}:{number}"
        for path in files()
        if path.parent not in VENDORS and path.suffix != ".png"
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if words.search(line)
    ]
    assert found == []


def test_no_file_names_a_machine_or_a_registry() -> None:
    needles = [f"/{'work'}/", f"/{'root'}/", f"{'py'}pi.org", f"python{'hosted'}", f"{'npm'}js.org"]
    needles += [f"{'extra-'}index-url"]
    found = [
        f"{name_of(path)}: {needle}"
        for path in files()
        for needle in needles
        if needle in path.read_text(errors="replace")
    ]
    assert found == []


def test_one_module_reads_this_machines_clock() -> None:
    """All others use `base/database/clock.py`, which follows the database's. Simulators have clocks of their own."""
    reads = re.compile(r"\b(datetime\.(now|utcnow|today)|date\.today|time\.(time|time_ns|gmtime|localtime|ctime))\(")
    found = [
        f"{name_of(path)}:{number}"
        for path in MODULES
        if path.is_relative_to(ROOT / "heliograph")
        and not path.is_relative_to(ROOT / "heliograph/simulators")
        and path != ROOT / "heliograph/base/database/clock.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if reads.search(line)
    ]
    assert found == []


#: Calls that create a TLS context unless they are given one. The type may be named in annotations; `starttls` is also a
#: field's name.
MAKERS = {"create_default_context", "HTTPSConnection", "SMTP_SSL", "urlopen", "SSLContext"}


def own_contexts(text: str) -> list[str]:
    """Calls in a module's text that create a context, or a connection without one: it is as strict as the Python
    version. Servers' contexts do not count."""
    nodes = list(ast.walk(ast.parse(text)))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    right = {
        call.func
        for call in calls
        if any(option.arg == "context" and ast.unparse(option.value) != "None" for option in call.keywords)
        or [ast.unparse(argument) for argument in call.args]
        in (["ssl.Purpose.CLIENT_AUTH"], ["ssl.PROTOCOL_TLS_SERVER"])
    }
    called = {call.func for call in calls}
    annotations = [one.annotation for one in nodes if isinstance(one, ast.arg | ast.AnnAssign)]
    annotations += [one.returns for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    types = {part for one in annotations if one is not None for part in ast.walk(one)}
    found = []
    for node in nodes:
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) if node not in right:
                if (name in MAKERS and node not in types) or (name == "starttls" and node in called):
                    found.append(name)
            case ast.alias(name=name, asname=str()) if name in MAKERS:
                found.append(name)
            case ast.keyword(arg="ssl", value=ast.Constant(value=True)):
                found.append("ssl=True")
    return found


def test_one_module_says_whose_certificates_are_accepted() -> None:
    found = [
        f"{name_of(path)}: {name}"
        for path in MODULES
        if path.is_relative_to(ROOT / "heliograph")
        for text in [path.read_text()]
        if any(word in text for word in (*MAKERS, "starttls", "ssl=True"))
        for name in own_contexts(text)
    ]
    assert found == ["heliograph/base/network/tls.py: create_default_context"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("urlopen(url)", ["urlopen"]),
        ("urllib.request.urlopen(url, context=client_context())", []),
        ("server.starttls()", ["starttls"]),
        ("smtp.starttls(context=context) if server.starttls else None", []),
        ("context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)", ["SSLContext"]),
        ("context: ssl.SSLContext = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)", []),
        ("asyncio.open_connection(host, port, ssl=True)", ["ssl=True"]),
        ("asyncio.open_connection(host, port, ssl=context)", []),
        ("make = http.client.HTTPSConnection", ["HTTPSConnection"]),
        ("ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)", []),
        ("from urllib.request import urlopen as get\nget(url)", ["urlopen"]),
        ("from urllib.request import urlopen\nurlopen(url, context=context)", []),
        ("make = ssl.SSLContext\ncontext = make()", ["SSLContext"]),
        ("def tls(known: ssl.SSLContext | None) -> ssl.SSLContext: ...", []),
        ("class Own(SSLContext): ...", ["SSLContext"]),
        ("urlopen(url, context=None)", ["urlopen"]),
    ],
)
def test_a_context_of_ones_own_is_recognized(text: str, found: list[str]) -> None:
    assert own_contexts(text) == found


def test_files_of_pages_take_turns() -> None:
    """A file that is sent while it is read takes its connections from `reading_in_turn`, or many at once would leave
    pages none. The method itself is passed on for nothing else."""
    pages = [path for room in ("dashboard", "console") for path in (ROOT / "heliograph" / room).rglob("*.py")]
    assert [name_of(path) for path in pages if re.search(r"request\.reading\b(?!\()", path.read_text())] == []


def test_the_words_of_smpp_stay_in_its_rooms() -> None:
    """What a supplier sends and receives is text (decision 186); how SMPP encodes it is its own affair."""
    theirs = tuple(f"heliograph/{room}/" for room in ("suppliers/smpp", "suppliers/alphabets", "simulators/smsc"))
    words = re.compile(r"data_coding|locking_shift|single_shift|default_alphabet|esm_class|user_message_reference")
    found = [
        f"{name}: {match[0]}"
        for path in MODULES
        if (name := name_of(path)).startswith("heliograph/") and not name.startswith(theirs)
        for match in words.finditer(path.read_text())
    ]
    # The wizard and the sections of its form name options of an account.
    assert {one.partition(":")[0] for one in found} == {
        "heliograph/console/suppliers/wizard.py",
        "heliograph/sms/management/sections.py",
    }


@reads_trees
def test_the_key_of_an_id_in_the_log_ends_in_id() -> None:
    """So that each field has one name in all lines: `supplier_id` is its id, and `supplier` its name."""

    def is_id(value: ast.expr) -> bool:
        match value:
            case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name) | ast.Attribute(attr=name)]):
                return name == "id" or name.endswith("_id")
            case ast.Call(func=ast.Name(id="str"), args=[ast.Subscript(slice=ast.Constant(value="id"))]):
                return True
        return False

    def badly_named(module: ast.AST) -> list[str]:
        return [
            keyword.arg
            for node in ast.walk(module)
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("log.")
            for keyword in node.keywords
            if keyword.arg is not None and is_id(keyword.value) and not keyword.arg.endswith("_id")
        ]

    assert {module: found for module, one in trees().items() if (found := badly_named(one))} == {}
    assert badly_named(ast.parse("log.info('lost', supplier=str(known.id), message_id=str(id))")) == ["supplier"]


def test_every_crash_point_is_one_place() -> None:
    points = Counter(
        name
        for path in MODULES
        if path.is_relative_to(ROOT / "heliograph")
        for name in re.findall(r'crash_point\("([^"]+)"\)', path.read_text())
    )
    assert points
    assert {name: count for name, count in points.items() if count > 1} == {}


TABLES = """
SELECT c.relname AS name, coalesce(obj_description(c.oid, 'pg_class'), '') AS comment,
       (SELECT array_agg(a.attname::text ORDER BY place.n)
          FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int[]) WITH ORDINALITY AS place (attnum, n)
               JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = place.attnum
         WHERE i.indrelid = c.oid AND i.indisprimary) AS key
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND NOT c.relispartition
 ORDER BY c.relname
"""
FORBIDDEN = """
SELECT 'sequence' AS kind, relname::text AS name FROM pg_class WHERE relkind = 'S'
UNION ALL SELECT 'trigger', tgname::text FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT 'extension', extname::text FROM pg_extension WHERE extname <> 'plpgsql'
UNION ALL SELECT 'enum type', typname::text FROM pg_type WHERE typtype = 'e'
"""
ZONELESS = """
SELECT table_name || '.' || column_name FROM information_schema.columns
 WHERE table_schema = 'public' AND data_type = 'timestamp without time zone'
"""


async def test_every_table_names_its_class_and_tenants_come_first(pool: Pool) -> None:
    tables = await pool.fetch(TABLES)
    assert len(tables) > 10
    unclear = [one["name"] for one in tables if not re.match(r"(tenant|reference|control): \S", one["comment"])]
    assert unclear == []
    tenants = [one for one in tables if one["comment"].startswith("tenant")]
    assert [one["name"] for one in tenants if (one["key"] or [""])[0] != "organization_id"] == []


async def test_the_schema_uses_nothing_that_shuts_a_door(pool: Pool) -> None:
    """Sequences, triggers, extensions and enum types cause problems with a distributed or managed PostgreSQL."""
    assert [tuple(row) for row in await pool.fetch(FORBIDDEN)] == []
    assert [row[0] for row in await pool.fetch(ZONELESS)] == []


def test_locks_name_no_place_to_download_from() -> None:
    for path in ROOT.glob("requirements*.lock"):
        text = path.read_text()
        assert "--hash=sha256:" in text, path.name
        assert re.search(r"https?://", text) is None, path.name


def test_the_lock_of_the_generators_pins_by_digest_and_names_no_registry() -> None:
    folder = ROOT / "tests" / "api" / "peers"
    packages = msgspec.json.decode((folder / "package-lock.json").read_bytes())["packages"]
    wanted = packages.pop("")["dependencies"]
    assert wanted == msgspec.json.decode((folder / "package.json").read_bytes())["dependencies"], "run `make lock`"
    assert [name for name, version in wanted.items() if not version[0].isdigit()] == []
    assert [name for name, one in packages.items() if "integrity" not in one or "resolved" in one] == []


def test_no_browser_test_has_the_page_evaluate_a_text() -> None:
    """Our policy forbids it, except in a debugger's first evaluation: such a wait fails once in twenty times."""
    tests = sorted((ROOT / "tests/browser").glob("test_*.py"))
    assert [path.name for path in tests if ".wait_for_function(" in path.read_text()] == []


#: A cell: what its tag says, and what is in it.
CELL = re.compile(r"<td((?:\"(?:\{\{.*?\}\}|[^\"])*\"|[^\">])*)>(.*?)</td>", re.S)
#: Cells that break by themselves (`wrap`), or hold what machines are called (`mono`).
OTHERS = re.compile(r"\bclass=\"(?:[^\"]* )?(?:wrap|mono)\b")
#: What breaks by itself, is not seen, or is no text: attributes and statements.
APART = re.compile(
    r"<bdi>.*?</bdi>|<code.*?</code>|<span class=\"(?:unseen|[^\"]*mono)\">.*?</span>"
    r"|\w+=\"(?:\{\{.*?\}\}|\{%.*?%\}|[^\"])*\"|\{%.*?%\}",
    re.S,
)
#: Values that people name as they like, or write.
NAMED = re.compile(r"\{\{ ((?:\w+\.)*(?:name|organization|supplier|note|reason)|names\[.*?\])(?: or .*?)? \}\}")
#: Names of ours: fields of an audit log's change, and steps of a supplier's test.
OURS = frozenset({"change.name", "names[step.name]"})


def test_a_name_in_a_list_breaks_and_keeps_its_direction() -> None:
    """One without a space pushed the other columns out of sight; one in Arabic moved what stood next to it."""
    found = [
        f"{name_of(path)}: {value}"
        for path in sorted((ROOT / "heliograph").rglob("templates/**/*.html"))
        for tag, cell in CELL.findall(path.read_text())
        if not OTHERS.search(tag)
        for value in NAMED.findall(APART.sub("", cell))
        if value not in OURS
    ]
    assert found == []


@reads_trees
def test_our_own_texts_are_read_as_utf_8() -> None:
    """In a locale of another encoding, the guide was garbled, or no web process started. What `base` reads without an
    encoding is ASCII: numbers, passwords and PostgreSQL's own files."""
    found = [
        f"{path}:{node.lineno}"
        for path in sorted((ROOT / "heliograph").rglob("*.py"))
        if not path.is_relative_to(ROOT / "heliograph" / "base")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "read_text"
        and not (node.args or node.keywords)
    ]
    assert found == []


def test_a_long_file_says_why() -> None:
    """A file of up to 400 lines can be read in one sitting; a longer one has to be one thing, or be split."""
    for path in sorted((ROOT / "heliograph").rglob("*.py")):
        text = path.read_text()
        if text.count("\n") > 400:
            assert "It has over 400 lines because" in (ast.get_docstring(ast.parse(text)) or ""), path
