"""The README and docs/: links lead somewhere, code runs, lists are those of the code."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import gzip
import importlib
import inspect
import json
import pickle
import re
import signal
import sqlite3
import sys
import tarfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import threadloader
import threadloader.datasets
from threadloader import Statistics, ThreadLoader, errors

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
CONTENTS = DOCS / "index.md"  # for Sphinx, with the README as its text
PAGES = [README, *sorted({*DOCS.glob("*.md")} - {CONTENTS})]

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"""\[[^\]]+\]\(([^)\s]+)\)|src(?:set)?="([^"]+)\"""")
NAME = re.compile(r"\bthreadloader(?:\.[A-Za-z_]\w*)+")

DEMO = (
    "python3 -m venv .demo && .demo/bin/pip install --only-binary=:all: '.[demo,torch]' && "
    ".demo/bin/threadloader demo"
)
CHECKS = "python3 -m venv .venv && .venv/bin/pip install nox && .venv/bin/nox"

# Pages, or sections of pages, whose code is compiled and not run, and why.
NOT_RUN = {
    "coming-from.md": "other loaders; tests/clients/test_coming_from.py compares them with ours",
    "frameworks.md": "several processes; tests/scale_out/test_recipes.py and others run them",
    "gpu.md": "needs a GPU; tests/gpu has its tests",
    "tables.md#Hugging Face datasets": "needs a network; tests/clients/test_hf_datasets_recipe.py",
    "images.md#Clips of videos": "needs files; tests/clients/test_media.py runs it",
    "images.md#Crops of sounds": "needs files; tests/clients/test_media.py runs it",
    "observing.md#Profilers: torch's, Nsight": "may switch the GIL on; tests/trace/test_profile.py",
    "shards.md#Files behind URLs: s3, gs, hf, https": "needs a network; tests/datasets/remote",
}


class Block(NamedTuple):
    """A block of code of a page."""

    page: str
    section: str  # the heading of the second level above it
    line: int  # of the page, from 1
    language: str
    code: str


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    return FENCE.sub("", text_of(page))


def blocks_of(page: Path) -> list[Block]:
    text = text_of(page)
    return [
        Block(
            page.name,
            _section_of(text[: found.start()]),
            text.count("\n", 0, found.start()) + 2,
            found[2],
            _dedented(*found.group(1, 3)),
        )
        for found in FENCE.finditer(text)
    ]


def _section_of(text: str) -> str:
    """Return the last heading of the second level in a text."""
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    return headings[-1] if headings else ""


def _dedented(indent: str, code: str) -> str:
    return "".join(line.removeprefix(indent) for line in code.splitlines(keepends=True))


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    anchors: list[str] = []
    for heading in HEADING.findall(prose_of(page)):
        text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
        seen = sum(anchor == other.partition("/")[0] for other in anchors)
        anchors.append(f"{anchor}/{seen}" if seen else anchor)
    return {anchor.replace("/", "-") for anchor in anchors}


def linked_from(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield each relative link of a page: as it is written, its file, and its anchor."""
    for target in map("".join, LINK.findall(prose_of(page))):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield target, (page.parent / path).resolve() if path else page, anchor


def places_of(block: Block) -> set[str]:
    """Return the keys that a block may have in `NOT_RUN` and `GIVEN`: its page, or its section."""
    return {block.page, f"{block.page}#{block.section}"}


def python_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page) if block.language == "python"]


def every_page(check: Callable[[Path], None]) -> Callable[[], None]:
    """Return a test that checks all pages."""

    def test() -> None:
        for page in PAGES:
            try:
                check(page)
            except AssertionError as error:
                error.add_note(str(page))
                raise

    return test


@every_page
def test_a_page_has_one_title_and_it_comes_first(page: Path) -> None:
    titles = re.findall(r"^# .+$", prose_of(page), re.MULTILINE)
    text = re.sub(r"\A---\n.*?\n---\n\n", "", text_of(page), flags=re.DOTALL)  # front matter
    assert [text.partition("\n")[0]] == titles


@every_page
def test_a_link_leads_to_a_file_and_to_a_heading_in_it(page: Path) -> None:
    for target, path, anchor in linked_from(page):
        assert path.is_relative_to(ROOT), target
        assert path.exists(), target
        assert not anchor or anchor in anchors_of(path), target


def test_every_page_can_be_reached_from_the_readme_and_is_on_the_site() -> None:
    reached = {README}
    new = [README]
    while new:
        linked = {path for _, path, _ in linked_from(new.pop()) if path in PAGES}
        new += linked - reached
        reached |= linked
    assert reached == set(PAGES)
    on_site = re.findall(r"^[A-Z].* <([\w-]+)>$", text_of(CONTENTS), re.MULTILINE)
    assert sorted(on_site) == sorted(page.stem for page in PAGES if page != README)


def test_the_readme_has_two_commands_the_demo_and_the_checks_after_the_first_code() -> None:
    blocks = blocks_of(README)
    assert [block.code.strip() for block in blocks if block.language == "sh"] == [DEMO, CHECKS]
    assert blocks[0].language == "python"


@every_page
def test_a_name_of_the_package_exists(page: Path) -> None:
    for name in NAME.findall(text_of(page)):
        _resolve(name)


def _resolve(name: str) -> None:
    """Import the modules of a dotted name, and look up the rest of it."""
    module, _, attributes = name, "", ""
    while True:
        with suppress(ModuleNotFoundError):
            found = importlib.import_module(module)
            break
        if _source_of(module).exists():  # what it imports is not installed
            defined = rf"^(?:class|def) {attributes}\b"
            assert re.search(defined, text_of(_source_of(module)), re.MULTILINE), name
            return
        module, _, last = module.rpartition(".")
        attributes = f"{last}.{attributes}".strip(".")
    for attribute in filter(None, attributes.split(".")):
        assert hasattr(found, attribute), name
        found = getattr(found, attribute)


def _source_of(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


@every_page
def test_code_compiles_and_what_it_imports_of_the_package_exists(page: Path) -> None:
    blocks = [block for block in blocks_of(page) if block.language == "python"]
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block.code))]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("threadloader"):
            for alias in node.names:
                _resolve(f"{node.module}.{alias.name}")


def test_code_that_is_not_run_is_on_pages_that_have_some() -> None:
    blocks = python_blocks()
    assert set(NOT_RUN) <= {place for block in blocks for place in places_of(block)}


@pytest.mark.parametrize("block", python_blocks(), ids=lambda block: f"{block.page}:{block.line}")
def test_code_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in NOT_RUN.keys() & places_of(block):
        pytest.skip(NOT_RUN[place])
    for module in _imported(block.code):
        try:
            importlib.import_module(module)
        except (ImportError, RuntimeError) as error:  # torchvision beside another build of torch
            pytest.skip(f"{module}: {error}")
    monkeypatch.chdir(tmp_path)
    given = _given()
    for place in GIVEN.keys() & places_of(block):
        given |= GIVEN[place]()
    code = "\n" * (block.line - 1) + block.code
    try:
        exec(compile(code, f"docs/{block.page}", "exec"), given)  # noqa: S102  # our own pages
    finally:
        for value in list(given.values()):
            if isinstance(value, ThreadLoader):
                value.close()


def _imported(code: str) -> set[str]:
    """Return the packages that a block needs, torch included where it is only named."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Import(names=aliases):
                names.update(alias.name for alias in aliases)
            case ast.ImportFrom(module=str(module)):
                names.add(module)
            case ast.Name(id="torch"):
                names.add("torch")
    return {name.partition(".")[0] for name in names}


def _given() -> dict[str, Any]:
    """Return what a reader has before the first line: data, and a training loop's functions."""
    dataset = [(np.full(3, i, dtype=np.float32), i % 10) for i in range(130)]
    return {
        "__name__": "docs",
        "ThreadLoader": ThreadLoader,
        "dataset": dataset,
        "loader": ThreadLoader(dataset, batch_size=64, shuffle=True, seed=17),
        "train_step": lambda *_: None,
    }


def _quickstart() -> Mapping[str, Any]:
    _progress_bars()
    return {"read_lines": lambda path: iter([path] * 70), "tokenize": len, **_photos()}


def _photos() -> Mapping[str, Any]:
    image = pytest.importorskip("PIL.Image")
    for label in "ab":
        Path("photos", label).mkdir(parents=True)
        for number in range(2):
            image.new("RGB", (250, 300)).save(Path("photos", label, f"{number}.jpg"))
    return {}


def _arrays() -> Mapping[str, Any]:
    np.arange(20_000, dtype=np.uint16).tofile("train.bin")
    return {"images": np.zeros((300, 3, 8, 8), np.uint8), "labels": np.arange(300)}


def _shards() -> Mapping[str, Any]:
    zstd = pytest.importorskip(
        "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    )
    for number in range(147):
        made = BytesIO()
        with tarfile.open(fileobj=made, mode="w") as archive:
            for name in ("a.jpg", "a.cls"):
                archive.addfile(tarfile.TarInfo(name))
        Path(f"train-{number:03}.tar").write_bytes(made.getvalue())
        Path(f"train-{number:03}.tar.zst").write_bytes(zstd.compress(made.getvalue()))
    return {"augment": lambda sample: sample}


def _sources() -> Mapping[str, Any]:
    for number in range(2):
        made = BytesIO()
        with tarfile.open(fileobj=made, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("a.txt"))
        Path(f"images-{number}.tar").write_bytes(made.getvalue())
    return {name: list(range(200)) for name in ("books", "code", "web")}


def _checkpoint() -> Mapping[str, Any]:
    torch = pytest.importorskip("torch")
    return {"torch": torch, "model": torch.nn.Linear(3, 1)}


def _progress_bars() -> None:
    with suppress(ModuleNotFoundError):
        importlib.import_module("tqdm").tqdm.monitor_interval = 0  # else it starts a thread


def _parquet() -> Mapping[str, Any]:
    pyarrow, parquet = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    Path("train").mkdir()
    table = pyarrow.table({"x": np.arange(1000), "y": np.arange(1000.0)})
    parquet.write_table(table, "train/rows.parquet", row_group_size=256)
    return {}


def _sequences() -> Mapping[str, Any]:
    """Return what the first blocks of the page have made."""
    lengths = [5 + 7 * number % 190 for number in range(300)]
    texts = [np.ones(size, np.int64) for size in lengths]
    return {"np": np, "texts": texts, "lengths": lengths, "rows": threadloader.pack(texts, 512)} | {
        name: getattr(threadloader, name) for name in ("TokenBatches", "pack")
    }


def _lines() -> Mapping[str, Any]:
    Path("train").mkdir()
    Path("train/a.jsonl").write_text('{"y": 1}\n' * 99)
    Path("packed").mkdir()
    Path("packed/a.jsonl.gz").write_bytes(gzip.compress(b'{"y": 1}\n' * 99))
    return {"json": json, "ThreadLoader": ThreadLoader}


GIVEN: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "datasets.md#Cached samples": _photos,
    "datasets.md#Mixtures": _sources,
    "datasets.md#A function as the source": lambda: {"next_jobs": lambda _: []},
    "images.md": _photos,
    "quickstart.md": _quickstart,
    "resuming.md": _checkpoint,  # its other code needs torch, too
    "shards.md": _shards,
    "tables.md#Arrays, memory-maps and tensors": _arrays,
    "tables.md#Parquet": _parquet,
    "text.md#Lines of text": _lines,
    "text.md#A file of tokens": _arrays,
    "text.md#Packing": _sequences,
}


ROW = re.compile(r"^\| `(\w+)(=[^`|]+)?` \| [^|]*?([^|` ]+)`? \| [^|]+ \|$", re.MULTILINE)


def test_every_argument_is_documented_with_an_example_and_its_default() -> None:
    arguments = dict(list(inspect.signature(ThreadLoader.__init__).parameters.items())[1:])
    text = text_of(DOCS / "api.md").partition("## Methods")[0]
    rows = {name: rest for name, *rest in ROW.findall(text)}
    assert rows.keys() == arguments.keys()
    for name, (example, default) in rows.items():
        ast.parse(f"_({name}{example})")
        assert name == "dataset" or ast.literal_eval(default) == arguments[name].default, name


def test_every_statistic_is_documented() -> None:
    text = text_of(DOCS / "observing.md")
    fields = [field.name for field in dataclasses.fields(Statistics)]
    assert [name for name in fields if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name != "shortened"])
def test_the_text_of_an_error_ends_with_a_link_to_its_cause_and_remedy(name: str) -> None:
    kind = getattr(errors, name)
    arguments = ("wrong", "a.tar") if name in {"DataError", "RemoteError"} else ("wrong",)
    link = str(kind(*arguments)).splitlines()[-1]
    path, _, anchor = link.removeprefix(f"See {errors.REPOSITORY}").partition("#")
    assert anchor in anchors_of(ROOT / path)
    section = re.split(rf"^### {name}$", text_of(ROOT / path), flags=re.MULTILINE)[1]
    section = section.partition("\n#")[0]
    assert "**Cause" in section
    assert "**Remedy" in section
    if len(kind.__bases__) == 2:  # ours, and the builtin that one would catch
        assert f" `{kind.__bases__[1].__name__}`" in section


FAILING: Mapping[str, Callable[[], Any]] = {
    "pickle": lambda: pickle.dumps(lambda: None),
    "sqlite3": sqlite3.connect(":memory:").cursor,
    "signal": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    "asyncio": asyncio.get_event_loop,
}


@pytest.mark.parametrize("name", FAILING)
def test_the_text_of_an_error_is_a_heading_on_the_page_of_symptoms(name: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        text = str(pool.submit(FAILING[name]).exception())
    headings = HEADING.findall(prose_of(DOCS / "symptoms.md"))
    assert any(heading.partition(" '")[0] in text for heading in headings), text


def test_the_folders_are_those_of_the_layers_contract_in_its_order() -> None:
    settings = tomllib.loads(text_of(ROOT / "pyproject.toml"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (c["layers"] for c in contracts if c.get("containers") == ["threadloader"])
    section = text_of(DOCS / "design.md").partition("\n## The folders\n")[2]
    listed = FENCE.search(section)[3].splitlines()  # type: ignore[index]
    names = "\n".join(re.split(r" {2,}", line)[0] for line in listed)
    assert names.replace("\n| ", " | ").splitlines() == layers


@every_page
def test_commands_name_modules_and_sessions_that_exist(page: Path) -> None:
    sessions = set(re.findall(r"^def (\w+)\(session", text_of(ROOT / "noxfile.py"), re.MULTILINE))
    for module in re.findall(r"python -m ([\w.]+)", text_of(page)):
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    for session in re.findall(r"nox -s (\w+)", text_of(page)):
        assert session in sessions
