"""Importing contacts from files: what is imported, what is rejected and why, and a killed import that is run again."""

from __future__ import annotations

import asyncio
import csv
import re
import signal
import threading
import tracemalloc
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.contacts import exporting, importing, records, sheets, undoing
from heliograph.contacts.importing import Options, Summary
from heliograph.contacts.records import MAX_TAGS
from tests.journeys.test_cli import Cli
from tests.rules.factories import blocked, organization
from tests.rules.test_contacts import APART

PEOPLE = """Telemóvel;Primeiro nome;Apelido;Grupos;Email
+258841234567;João;Silva;VIP, Maputo;joao@example.com
258 84 123 4568;;;;
;Sem;Número;;
2,58841E+11;Ana;;;
0841234569;Eva;;;
+258841234567;João;da Silva;Beira;
258841234570.0;=cmd|' /C calc'!A0;;x;
+258841234571;Rui;;{long};
+258841234572;a;b;c;d;more
"""


@pytest.fixture
def people(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_bytes(PEOPLE.format(long="x" * 65).encode("utf-8-sig"))
    return path


async def import_(pool: Pool, actor: Actor, path: Path, **options: Any) -> Summary:
    options.setdefault("country", "MZ")
    layout = sheets.layout(path)
    rejects = path.with_suffix(".rejects.csv")
    async with pool.acquire() as conn:
        summary = await importing.run(
            conn,
            actor,
            path=path,
            layout=layout,
            rejects=rejects,
            options=Options(**options),
            on_progress=lambda at: None,
        )
    assert summary.rows == summary.created + summary.updated + summary.unchanged + summary.rejected
    assert rejects.exists() == bool(summary.rejected)
    assert await pool.fetchval(APART) == 0
    return summary


async def contacts(pool: Pool, actor: Actor, *, limit: int = 1000) -> dict[str, records.Contact]:
    async with pool.acquire() as conn:
        return {each.phone: each for each in await records.list_page(conn, actor, limit=limit)}


def rejected(path: Path) -> list[list[str]]:
    with path.with_suffix(".rejects.csv").open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file, delimiter=";"))


@pytest.mark.parametrize("batch", [1, 2, 1000])
async def test_people_are_imported_and_the_others_named(pool: Pool, people: Path, batch: int) -> None:
    actor = await organization(pool)
    summary = await import_(pool, actor, people, batch=batch, tags=("spring",))
    # A number that occurs again is changed or merged, depending on where a batch ends.
    assert (summary.rows, summary.created, summary.rejected) == (9, 3, 5)
    assert summary.updated + summary.unchanged == 1
    found = await contacts(pool, actor)
    assert found.keys() == {"+258841234567", "+258841234568", "+258841234570"}
    joao = found["+258841234567"]
    assert (joao.name, joao.first_name, joao.last_name) == ("João da Silva", "João", "da Silva")
    assert sorted(joao.tags) == ["beira", "maputo", "spring", "vip"]
    assert (found["+258841234568"].name, found["+258841234568"].tags) == ("+258841234568", ["spring"])

    header, *rows = rejected(people)
    assert header == ["row", "reason", "Telemóvel", "Primeiro nome", "Apelido", "Grupos", "Email"]
    assert [(row[0], row[1]) for row in rows] == [
        ("4", "there is no phone number"),
        ("5", "a spreadsheet has rounded the phone number: format that column as text"),
        ("6", "the phone number is invalid, or has no country code"),
        ("9", "each of `tags` must have 1 to 64 characters"),
        ("10", "the row has more cells than the header"),
    ]
    assert rows[0][2:] == ["", "Sem", "Número", "", ""]

    # Corrected, the file of rejected rows can itself be imported.
    fixed = people.with_name("fixed.csv")
    fixed.write_text(
        people.with_suffix(".rejects.csv").read_text("utf-8-sig").replace(";0841234569;", ";258841234569;")
    )
    assert (await import_(pool, actor, fixed)).created == 1
    assert (await contacts(pool, actor))["+258841234569"].name == "Eva"


async def test_names_are_stored_as_if_they_had_been_typed(pool: Pool, tmp_path: Path) -> None:
    """As macOS encodes them: otherwise nobody who types `José` finds him, and no page could store him again."""
    actor, path = await organization(pool), tmp_path / "people.csv"
    path.write_text("phone;first name;last name\n841234567;Jose\u0301;Sa\u0303o\n841234568;A\x1b[2J;\n841234569;\0;\n")
    assert (await import_(pool, actor, path)).created == 1
    async with pool.acquire() as conn:
        (found,) = await records.find(conn, actor, text="José São", country="MZ")
    assert (found.name, found.first_name) == (records.name("José São"), records.name("José"))
    assert [row[:2] for row in rejected(path)[1:]] == [["3", importing.CONTROL_NAME], ["4", importing.CONTROL_NAME]]


async def test_a_cell_that_shows_nothing_is_empty(pool: Pool, tmp_path: Path) -> None:
    actor, path = await organization(pool), tmp_path / "people.csv"
    path.write_text("phone;name;tags\n+258841234567;\u200b\u3164;\u200b, vip\n")
    assert (await import_(pool, actor, path)).created == 1
    (found,) = (await contacts(pool, actor)).values()
    assert (found.name, found.tags) == ("+258841234567", ["vip"])


async def test_a_file_a_second_time_changes_nothing(pool: Pool, people: Path) -> None:
    actor = await organization(pool)
    await import_(pool, actor, people)
    before = await contacts(pool, actor)
    summary = await import_(pool, actor, people)
    assert (summary.created, summary.updated, summary.unchanged, summary.rejected) == (0, 0, 4, 5)
    assert await contacts(pool, actor) == before


async def test_known_numbers_can_be_skipped(pool: Pool, people: Path) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        await records.create(conn, actor, entry=records.Entry("+258841234568", "Maria", tags=("mine",)))
    summary = await import_(pool, actor, people, on_duplicate="skip")
    assert (summary.created, summary.updated, summary.unchanged) == (2, 0, 2)
    found = await contacts(pool, actor)
    assert (found["+258841234568"].name, found["+258841234568"].tags) == ("Maria", ["mine"])
    assert found["+258841234567"].name == "João Silva"


async def test_too_many_tags_in_the_end(pool: Pool, tmp_path: Path) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        full = tuple(str(one) for one in range(MAX_TAGS))
        await records.create(conn, actor, entry=records.Entry("+258841234567", "Ana", tags=full))
    path = tmp_path / "people.csv"
    path.write_text("phone;tags\n+258841234567;another\n+258841234568;x\n")
    summary = await import_(pool, actor, path)
    assert (summary.created, summary.rejected) == (1, 1)
    assert rejected(path)[1][:3] == ["2", f"its contact would have more than {MAX_TAGS} tags", "+258841234567"]


async def test_numbers_without_a_country_code(pool: Pool, tmp_path: Path) -> None:
    actor = await organization(pool)
    path = tmp_path / "people.csv"
    path.write_text("phone\n841234567\n258841234568\n841234569.0\n+447911123456\n")
    assert (await import_(pool, actor, path, country="MZ")).created == 4
    assert (await contacts(pool, actor)).keys() == {
        "+258841234567",
        "+258841234568",
        "+258841234569",
        "+447911123456",
    }


async def test_a_date_is_nobodys_number(pool: Pool, tmp_path: Path) -> None:
    """Many countries have numbers of eight digits, and in Germany any length is possible."""
    actor = await organization(pool)
    path = tmp_path / "people.csv"
    dates = [
        "27.11.2026",
        "2026-11-27",
        "29.2.2028",
        " 1.1.1999 ",
        "27-11-2026",
        "1-1-1999",
        "27/11/2026",
        "11/27/2026",
    ]
    numbers = ["0151.2345.6789", "015-1234-5678", "0152/23456789"]
    path.write_text("\n".join(["phone;name", *(f"{one};" for one in (*dates, *numbers))]))
    assert (await import_(pool, actor, path, country="DE")).created == 3
    assert (await contacts(pool, actor)).keys() == {"+4915123456789", "+491512345678", "+4915223456789"}
    assert [row[:2] for row in rejected(path)[1:]] == [[f"{n}", importing.DATE] for n in range(2, 10)]


async def test_decimals_of_a_spreadsheet_are_not_digits_of_a_number(pool: Pool, tmp_path: Path) -> None:
    """A column with two decimals: 1701234567.00 is a possible number in Germany, of somebody else or nobody."""
    actor = await organization(pool)
    path = tmp_path / "people.csv"
    cells = ["1701234560.0 ", "1701234561.00", "1701234562,00", "+491701234563.00", "'1701234564", "'1701234565.00"]
    kept = ["0170.123456.00", "0170.1234567.0"]  # points between groups of digits
    path.write_text("\n".join(["phone;name", *(f"{one};" for one in (*cells, *kept))]))
    assert (await import_(pool, actor, path, country="DE")).created == 8
    wanted = {f"+49170123456{n}" for n in range(6)} | {"+4917012345600", "+491701234567"}
    assert (await contacts(pool, actor)).keys() == wanted


async def test_a_rounded_number_is_told_as_such_whatever_is_left_of_it(pool: Pool, tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("phone;name\n4.47E+11;\n4,47e11;\n4E+11;\n447E+9;\n")
    assert (await import_(pool, await organization(pool), path)).rejected == 4
    assert {reason for _, reason, *_ in rejected(path)[1:]} == {importing.ROUNDED}


async def test_what_is_exported_can_be_imported(pool: Pool, people: Path, tmp_path: Path) -> None:
    actor, other = await organization(pool), await organization(pool)
    await import_(pool, actor, people)
    out = tmp_path / "out.csv"
    async with pool.acquire() as conn:
        with out.open("w", newline="") as file:
            assert await exporting.write(conn, actor, file=file, on_progress=lambda count: None) == 3
        with (tmp_path / "vip.csv").open("w", newline="") as file:
            assert await exporting.write(conn, actor, file=file, tag="vip", on_progress=lambda count: None) == 1
    with out.open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert "'=cmd|' /C calc'!A0" in cells
    assert not [cell for cell in cells if re.match(r"[=@\t\r]|[+-](?![0-9]+$)", cell)]
    await import_(pool, other, out)

    async def told(by: Actor) -> dict[str, tuple[Any, ...]]:
        found = (await contacts(pool, by)).values()
        return {each.phone: (each.name, each.first_name, each.last_name, each.tags) for each in found}

    assert await told(actor) == await told(other)


async def test_memory_does_not_grow_with_the_file(pool: Pool, tmp_path: Path) -> None:
    actor = await organization(pool)
    peaks = []
    for rows in (2_000, 8_000):
        path = _many(tmp_path / f"{rows}.csv", rows)
        tracemalloc.start()
        try:
            await import_(pool, actor, path, batch=500)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.5


def _many(path: Path, rows: int) -> Path:
    lines = (f"+25884{number:07},Person {number},group {number % 40}\n" for number in range(rows))
    path.write_text("phone,name,tags\n" + "".join(lines))
    return path


async def test_killed_in_the_middle_and_run_again(database_url: str, pool: Pool, tmp_path: Path) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    actor = await organization(pool)
    rows = 30_000
    path = _many(tmp_path / "people.csv", rows)
    with path.open("a") as file:
        file.write("+258,too short,\n" + "".join(f"+25884{number:07},Again {number},twice\n" for number in range(100)))
    left = 0
    for part in (0.1, 0.4):
        process = await cli._start(("contacts", "import", str(path)), {}, stderr=asyncio.subprocess.DEVNULL)
        while process.returncode is None:
            left = await pool.fetchval("SELECT count(*) FROM contacts")
            if left > rows * part:
                process.kill()
                await process.wait()
            await asyncio.sleep(0.05)
        assert process.returncode == -9, "it was done before it could be killed"
    assert 0 < left < rows
    assert await pool.fetchval(APART) == 0

    done = await cli("contacts", "import", str(path), "--json")
    assert done.status == 0, done.err
    assert done.data["rows"] == rows + 101
    assert (done.data["rejected"], done.data["rejects"]) == (1, str(path.with_suffix(".rejects.csv")))
    assert 0 < done.data["created"] < rows
    assert await pool.fetchval("SELECT count(*) FROM contacts") == rows
    assert len(await contacts(pool, actor, limit=2 * rows)) == rows
    assert await pool.fetchval("SELECT count(*) FROM contacts WHERE name LIKE 'Again %'") == 100
    assert await pool.fetchval("SELECT count(*) FROM contacts WHERE cardinality(tags) = 0") == 0
    assert await pool.fetchval(APART) == 0
    with path.with_suffix(".rejects.csv").open(encoding="utf-8-sig", newline="") as file:
        assert [row[0] for row in csv.reader(file)] == ["row", str(rows + 2)]


async def test_whoever_stops_one_is_told_how_to_complete_or_undo_it(
    database_url: str, pool: Pool, tmp_path: Path
) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    actor = await organization(pool)
    path = _many(tmp_path / "people.csv", 2 * importing.BATCH)
    last = next(reversed(list(csv.DictReader(path.open(encoding="utf-8")))))["phone"]
    async with pool.acquire() as conn, conn.transaction():
        # The second batch waits for this one.
        await records.create(conn, actor, entry=records.Entry(last, "Ana"))
        process = await cli._start(("contacts", "import", str(path)), {}, stderr=asyncio.subprocess.PIPE)
        await blocked(pool)
        process.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 130
    told = re.search(r"Stopped: 5,000 rows were read\. .* heliograph contacts undo (\S+)", err.decode())
    assert told is not None, err.decode()
    (listed,) = (await cli("contacts", "imports", "--json")).data
    assert (listed["rows"], listed["created"], listed["finished_at"]) == (importing.BATCH, importing.BATCH, None)
    undone = await cli("contacts", "undo", told[1], "--json")
    assert undone.data["deleted"] == importing.BATCH


async def test_the_commands(database_url: str, pool: Pool, people: Path, tmp_path: Path) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    await organization(pool)
    done = await cli("contacts", "import", str(people), "--map", "Email=tags", "--tag", "Spring", "--country", "mz")
    assert done.status == 0, done.err
    assert re.search(r"^created +4$", done.out, re.M)
    assert "phone from 'Telemóvel'" in done.err
    assert "Not used: 'Grupos'" in done.err
    listed, wrong, twice, missing, out, lines = await asyncio.gather(
        cli("contacts", "list", "--tag", "joao@example.com", "--json"),
        cli("contacts", "import", str(people), "--map", "Fax=phone"),
        cli("contacts", "import", str(people), "--map", "Email=tags", "--map", "Grupos=tags"),
        cli("contacts", "import", str(people), "--country", "XX"),
        cli("contacts", "export", "--tag", "spring"),
        cli("contacts", "export", "--json"),
    )
    assert [msgspec.json.decode(line)["name"] for line in lines.out.splitlines()][-1] == "João da Silva"
    assert [each["phone"] for each in listed.data] == ["+258841234567"]
    assert (wrong.status, missing.status) == (1, 2)
    assert "no column 'Fax'" in wrong.err
    assert (twice.status, "'Grupos=tags': this column or field is mapped already" in twice.err) == (2, True)
    nowhere = await cli("contacts", "export", str(tmp_path / "no" / "such.csv"))
    assert (nowhere.status, "cannot be written" in nowhere.err) == (1, True)
    assert len(out.out.splitlines()) == 5
    assert "4 contacts" in out.err
    found = await cli("contacts", "find", "+258 84 123 4567", "--json")
    assert [one["name"] for one in found.data] == ["João da Silva"]
    gone = await cli("contacts", "delete", "+258841234567", "--json")
    assert (gone.status, gone.data["phone"]) == (0, "+258841234567")
    nobody = await cli("contacts", "delete", "+258841234567")
    assert (nobody.status, "no such contact" in nobody.err) == (1, True)
    (made,) = (await cli("contacts", "imports", "--json")).data
    assert (made["file"], made["created"]) == ("people.csv", 4)
    undone = await cli("contacts", "undo", made["id"], "--json")
    assert (undone.data["deleted"], undone.data["kept"]) == (3, 1)
    assert await pool.fetchval("SELECT count(*) FROM contacts") == 0
    (tmp_path / "empty.csv").write_text("name,email\n")
    refused = await cli("contacts", "import", str(tmp_path / "empty.csv"))
    assert (refused.status, "recognized as the phone number" in refused.err, "--map" in refused.err) == (1, True, True)
    (tmp_path / "national.csv").write_text("name,phone\nAna,84 123 4567\n")
    none = await cli("contacts", "import", str(tmp_path / "national.csv"))
    assert (none.status, "no row could be imported" in none.err, "national.rejects.csv" in none.err) == (1, True, True)


# -- whose numbers -----------------------------------------------------------------------------------------------------

MIXED = "phone\n" + "".join(f"84123{number:04}\n" for number in range(97)) + "+84912345678\n+84912345679\n841\n"


async def test_national_numbers_need_a_country_that_somebody_chose(pool: Pool, tmp_path: Path) -> None:
    actor = await organization(pool)
    path = tmp_path / "people.csv"
    path.write_text("phone;name\n841234567;\n258841234567;\n+258841234568;\n00258841234569;\n84912345678;\n")
    assert (await import_(pool, actor, path, country=None)).created == 2
    assert (await contacts(pool, actor)).keys() == {"+258841234568", "+258841234569"}
    assert [row[0] for row in rejected(path)[1:]] == ["2", "3", "6"]
    assert all("has no country" in row[1] for row in rejected(path)[1:])


async def test_people_of_a_second_country_are_imported_only_if_somebody_says_so(
    database_url: str, pool: Pool, tmp_path: Path
) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    created = await cli("org", "create", "Acme", "--country", "any", "--home-country", "mz", "--json")
    assert created.data["country"] == "MZ"
    path = tmp_path / "people.csv"
    path.write_text(MIXED)
    refused = await cli("contacts", "import", str(path))
    assert refused.status == 1
    assert "MZ 97 (98.0%), VN 2 (2.0%); without a valid number: 1" in refused.err
    assert "--yes" in refused.err
    assert await pool.fetchval("SELECT count(*) FROM contacts") == 0
    done = await cli("contacts", "import", str(path), "--yes", "--json")
    assert (done.status, done.data["created"], done.data["rejected"]) == (0, 99, 1)
    # One of a hundred is 1 %, and not above it.
    path.write_text(MIXED.replace("+84912345679\n", "841239998\n841239999\n"))
    assert (await cli("contacts", "import", str(path), "--json")).status == 0
    # Portuguese national numbers have a possible length in Mozambique, where no network uses them.
    path.write_text(MIXED.replace("+84912345679\n", "841239998\n").replace("+84912345678\n", "912345678\n912345679\n"))
    refused = await cli("contacts", "import", str(path))
    assert (refused.status, "1 % of the numbers are not in any known range" in refused.err) == (1, True), refused.err
    assert "912345678 in row" in refused.err
    assert (await cli("contacts", "import", str(path), "--yes")).status == 0
    out = await cli("optout", "add", "84 123 0001", "--json")
    assert (out.status, out.data["recipient"]) == (0, "+258841230001")
    await cli("org", "configure", "Acme", "--home-country", "none")
    out = await cli("optout", "add", "84 123 0002")
    assert (out.status, "the organization has no country" in out.err) == (2, True)


# -- undoing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 1000])
async def test_an_undone_import_leaves_what_was_there_before_and_what_was_changed_since(
    pool: Pool, tmp_path: Path, batch: int
) -> None:
    actor = await organization(pool)
    path = tmp_path / "people.csv"
    path.write_text("phone,name,tags\n+258841234567,Ana,old\n+258841234568,Bia,old\n")
    await import_(pool, actor, path)
    before = await contacts(pool, actor)
    path.write_text(
        "phone,name,tags\n+258841234567,Anabela,new\n+258841234568,Bia,old\n+258841234569,Eva,new\n"
        "+258841234570,Rui,new\n+258841234567,Ana Maria,newer\n"
    )
    wrong = await import_(pool, actor, path, batch=batch)
    path.write_text("phone,name,tags\n+258841234570,Rui Costa,later\n")
    await import_(pool, actor, path)
    later = (await contacts(pool, actor))["+258841234570"]
    async with pool.acquire() as conn:
        assert wrong.import_id is not None
        undone = await undoing.undo(conn, actor, id=wrong.import_id)
        assert (undone.deleted, undone.kept) == (1, 1)
        again = await undoing.undo(conn, actor, id=wrong.import_id)
        assert again == undoing.Undone()
        with pytest.raises(NotFound):
            await undoing.undo(conn, await organization(pool), id=wrong.import_id)
    assert await contacts(pool, actor) == before | {later.phone: later}
    assert await pool.fetchval(APART) == 0
    assert await pool.fetchval("SELECT count(*) FROM contact_tags WHERE tag LIKE 'new%'") == 1


async def test_only_an_import_of_contacts_in_the_same_mode_that_has_begun_is_undone(pool: Pool, tmp_path: Path) -> None:
    """For any other import, the data needed to undo it must not be lost."""
    actor = await organization(pool)
    trying = msgspec.structs.replace(actor, mode="test")
    path = tmp_path / "people.csv"
    path.write_text("phone,name\n+258841234567,Ana\n+258841234568,Bia\n")
    tried, made = await import_(pool, trying, path), await import_(pool, actor, path)
    others = {state: uuid7() for state in ("finished", "checked")}
    await pool.executemany(
        "INSERT INTO contact_imports (organization_id, id, kind, state, file, started_at)"
        " VALUES ($1, $2, $3, $4, '', now())",
        [
            (actor.organization_id, others["finished"], "opt_outs", "finished"),
            (actor.organization_id, others["checked"], "contacts", "checked"),
        ],
    )
    assert tried.import_id is not None
    async with pool.acquire() as conn:
        assert [one.id for one in await undoing.list_imports(conn, actor)] == [made.import_id]
        for id in (tried.import_id, *others.values()):
            with pytest.raises(NotFound):
                await undoing.undo(conn, actor, id=id)
        assert await conn.fetchval("SELECT count(*) FROM contact_imports WHERE state = 'undone'") == 0
        undone = await undoing.undo(conn, trying, id=tried.import_id)
    assert (undone.deleted, undone.kept) == (2, 0)
    assert len(await contacts(pool, actor)) == 2


@pytest.mark.parametrize("rows", [2, 5])
async def test_an_import_that_is_undone_while_a_command_runs_it_ends_there(
    database_url: str, pool: Pool, tmp_path: Path, rows: int
) -> None:
    """In the middle of it, or after its last batch: it called itself finished, with contacts that were gone."""
    actor = await organization(pool)
    path = tmp_path / "people.csv"
    path.write_text("phone\n" + "".join(f"+25884123456{n}\n" for n in range(5)))

    async def undo(id: UUID) -> None:
        conn = await asyncpg.connect(database_url)
        try:
            await undoing.undo(conn, actor, id=id)
        finally:
            await conn.close()

    def elsewhere(at: importing.Progress) -> None:
        """Another command."""
        if at.summary.rows == rows:
            assert at.summary.import_id is not None
            thread = threading.Thread(target=asyncio.run, args=(undo(at.summary.import_id),))
            thread.start()
            thread.join()

    async with pool.acquire() as conn:
        with pytest.raises(Invalid, match="undoing this import"):
            await importing.run(
                conn,
                actor,
                path=path,
                layout=sheets.layout(path),
                rejects=path.with_suffix(".rejects.csv"),
                options=Options(batch=1),
                on_progress=elsewhere,
            )
    assert await contacts(pool, actor) == {}
    assert await pool.fetchval("SELECT state FROM contact_imports") == "undone"
    told = await pool.fetch("SELECT after FROM audit_log WHERE action = 'contacts.imported'")
    assert [msgspec.json.decode(row["after"])["state"] for row in told] == ["begun"]


async def test_an_import_that_a_worker_goes_on_with_is_stopped_before_it_is_undone(pool: Pool, tmp_path: Path) -> None:
    actor = await organization(pool)
    path = tmp_path / "people.csv"
    path.write_text("phone,name\n+258841234567,Ana\n")
    made = await import_(pool, actor, path)
    assert made.import_id is not None
    await pool.execute("UPDATE contact_imports SET state = 'running', is_uploaded = true")
    async with pool.acquire() as worker, pool.acquire() as conn:
        step = worker.transaction()
        await step.start()
        await worker.execute("SELECT FROM contact_imports FOR UPDATE")
        undoing_it = asyncio.create_task(undoing.undo(conn, actor, id=made.import_id))
        await blocked(pool)
        assert await pool.fetchval("SELECT count(*) FROM contacts") == 1
        await step.commit()
        assert (await undoing_it).deleted == 1
    assert await pool.fetchval("SELECT state FROM contact_imports") == "undone"


async def test_a_contact_is_found_by_any_spelling_and_by_its_name(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        await records.create(conn, actor, entry=records.Entry("+5511987654321", "João Silva"))
        for text in ("+551187654321", "(11) 98765-4321", "joão", "SILVA"):
            (found,) = await records.find(conn, actor, text=text, country="BR")
            assert found.phone == "+5511987654321"
        assert await records.find(conn, actor, text="Maria", country="BR") == []
