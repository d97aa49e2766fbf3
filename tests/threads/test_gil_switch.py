"""What switched the GIL on is found out afterwards, and a loader warns of it once."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from support.child import run_child
from support.patience import PATIENCE

from threadloader import GilWarning
from threadloader._threads.gil_switch import is_free_threaded

free_threaded = pytest.mark.skipif(not is_free_threaded(), reason="this build always has the GIL")

SOURCE = """
#include <Python.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "needs_the_gil"};
PyMODINIT_FUNC PyInit_needs_the_gil(void) { return PyModule_Create(&definition); }
"""

LOAD = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {folder!r})
from threadloader import ThreadLoader
loader = ThreadLoader([1, 2, 3], threads={threads}, persistent_workers={persistent})
list(loader)
{imports}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        list(loader)
for each in caught:
    print(each.category.__name__, each.filename, *each.message.args)
"""


@pytest.fixture
def extension(tmp_path: Path) -> Path:
    """The folder of an extension module that does not say that it can do without the GIL."""
    compiler, headers = shutil.which("cc"), Path(sysconfig.get_path("include"), "Python.h")
    if compiler is None or not headers.exists():
        pytest.skip("compiles an extension module")
    source = tmp_path / "needs_the_gil.c"
    source.write_text(SOURCE, encoding="utf-8")
    target = source.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
    command = [compiler, "-shared", "-fPIC", f"-I{headers.parent}", str(source), "-o", str(target)]
    subprocess.run(command, check=True, timeout=PATIENCE)
    return tmp_path


@free_threaded
@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_with_threads_warns_once(persistent: bool, extension: Path) -> None:
    given = {"imports": "import needs_the_gil", "threads": 2, "persistent": persistent}
    script = LOAD.format(folder=str(extension), **given)
    code, out, complaints = run_child(script)
    assert code == 0, complaints
    (line,) = out.splitlines()
    category, file, *_ = line.split()
    assert category == GilWarning.__name__
    assert file == "<string>"  # where the user's code asked for the loader
    assert "switched on by the import of an extension module" in line
    assert "PYTHON_GIL=0" in line


@free_threaded
@pytest.mark.parametrize(
    ("imports", "threads", "options"),
    [
        ("import needs_the_gil", 0, ()),  # no threads that would take turns
        ("import needs_the_gil", 2, ("-X", "gil=0")),
        ("import needs_the_gil", 2, ("-X", "gil=1")),  # asked for
        ("", 2, ()),
    ],
    ids=["no threads", "kept off", "asked for", "off"],
)
def test_otherwise_a_loader_warns_of_nothing(
    imports: str, threads: int, options: tuple[str, ...], extension: Path
) -> None:
    given = {"imports": imports, "threads": threads, "persistent": False}
    script = LOAD.format(folder=str(extension), **given)
    code, out, complaints = run_child(script, *options)
    assert (code, out) == (0, ""), complaints
