"""The project's tasks: `nox` checks everything that this machine can, `nox -l` lists the rest.

Each test session installs the wheel that a user would get, not the checkout in place: pip
writes its ``.pyc`` files, without which threads of a free-threaded build contend for the
reference counts of constants, and a file missing from the wheel fails here first.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import nox
from filelock import FileLock  # virtualenv, which nox needs, brings it
from nox.command import CommandFailed
from packaging.requirements import Requirement  # nox brings it

if TYPE_CHECKING:
    from collections.abc import Sequence

nox.needs_version = ">=2025.2.9"
# Not uv: it does not read pip's configuration, where a machine may say that it has torch on disk.
# Not venv: through a link to python3.13t it makes an environment that can find no library.  And
# virtualenv finds the interpreter behind a wrapper or a link, and refuses one of another build.
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"

PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15", "3.13t", "3.14t", "3.15t")
# The torch of each Python: for 3.13t the last one with wheels.
TORCH = {"3.11": "2.13.0", "3.13t": "2.12.0", "3.15t": "2.15.0"}
TORCH |= dict.fromkeys(("3.14", "3.14t"), "2.14.1")
TWINS = (
    ("3.13", "3.13t"),
    ("3.14", "3.14t"),
    ("3.15", "3.15t"),
)  # GIL and free-threaded builds of one Python
PROJECT = nox.project.load_toml("pyproject.toml")
HERE = f"{sys.version_info.major}.{sys.version_info.minor}{sys.abiflags.strip('dmu')}"
BROWSERS = ("chromium", "google-chrome", "chrome")
ENVIRONMENT = {"python_version": "3.11"}  # that the oldest releases are looked up for


def find_python(build: str) -> str | None:
    """Return the interpreter of a build, or None.

    pyenv's shims exist for builds that do not; a free-threaded build that was installed alone has
    the name of the other, too.
    """
    found = shutil.which(f"python{build}")
    free = f"bool(sysconfig.get_config_var('Py_GIL_DISABLED')) is {build.endswith('t')}"
    asked = [found or "", "-c", f"import sys, sysconfig; sys.exit(not {free})"]
    if found and not subprocess.run(asked, capture_output=True, check=False).returncode:
        return found
    return None


# The newest free-threaded build that there is; 3.13t where there is no other.
FREE_THREADED = next((each for _, each in reversed(TWINS) if find_python(each)), "3.13t")
# What the default sessions cover where it is installed.
ALWAYS = ("3.11", "3.13", FREE_THREADED)
# What `quick` runs: what a user is promised first, and what another interpreter may do otherwise:
# threads, forks, interrupts and the end of a process.
QUICK = ("field", "lifetime", "session", "test_loader.py", "threads")
# What depends on torch and on the GIL at once: operators in threads, and batches of tensors.
TORCH_WITHOUT_GIL = ("conformance", "rng", "work")
INTERLEAVED = ("batch", "epoch", "threads")  # where locks are

nox.options.sessions = [
    "lint",
    "types",
    "layers",
    "docs",
    # The whole suite with torch and with a GIL, and without either; elsewhere what the two together
    # do not say: torch without a GIL, and a GIL without torch.
    "tests_torch-3.11",
    f"tests-{FREE_THREADED}",
    f"tests_torch-{FREE_THREADED}",
    "quick-3.13",
    *([f"tests-{HERE}"] if HERE in PYTHONS and HERE not in ALWAYS else []),
]


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the tests without torch; posargs go to pytest."""
    install(session, ".[demo,zstd]", "test")
    run_pytest(session)


@nox.session(python=PYTHONS)
def quick(session: nox.Session) -> None:
    """Run the tests of what depends on the interpreter, without torch; posargs go to pytest.

    And force thread switches one by one through the code that owns locks, from Python 3.12 on.
    """
    install(session, ".[demo,zstd]", "test")
    run_pytest(session, *(f"tests/{name}" for name in QUICK))
    if session.python != "3.11" and not session.posargs:
        # Only the folders that have some are read, by each of pytest's processes.
        run_pytest(session, "-m", "interleaving", *(f"tests/{name}" for name in INTERLEAVED))


@nox.session(python=list(TORCH))
def tests_torch(session: nox.Session) -> None:
    """Run the tests with torch, its behaviour compared with torch's own DataLoader.

    With a GIL, also let several processes load and train together, as ranks of torch.distributed.
    """
    add_torch(session)
    install(session, ".[demo,zstd]", "test")
    # Whose loader's states ours are compared with.  What it depends on is torch, which is there.
    session.install("--only-binary=:all:", "--no-deps", "torchdata==0.11.0")
    if session.posargs:
        run_pytest(session)
    elif str(session.python).endswith("t"):
        run_pytest(session, *(f"tests/{name}" for name in TORCH_WITHOUT_GIL))
    else:
        run_pytest(session)
        run_pytest(session, "-m", "scale_out", "tests/scale_out", processes="2")


@nox.session(python="3.13")
def newest(session: nox.Session) -> None:
    """Run the tests with the newest releases of all that the package can use, torch among them."""
    install(session, ".[demo,torch,zstd]", "test", upgrade=True)
    run_pytest(session)


@nox.session(python="3.11")
def oldest(session: nox.Session) -> None:
    """Run the tests with the oldest releases that `pyproject.toml` allows."""
    project = PROJECT["project"]
    extras = [name for names in project["optional-dependencies"].values() for name in names]
    wanted = map(Requirement, (*project["dependencies"], *extras))
    oldest = [
        f"{each.name}=={bound.version}"
        for each in wanted
        for bound in each.specifier
        if bound.operator == ">=" and (each.marker is None or each.marker.evaluate(ENVIRONMENT))
    ]
    session.install("--only-binary=:all:", ".", *oldest, *group("test"))
    run_pytest(session)


@nox.session(python="3.11")
def clients(session: nox.Session) -> None:
    """Run packages that use a DataLoader, or augment samples, with a ThreadLoader; and the docs."""
    add_torch(session)
    install(session, ".[images,zstd]", "clients")
    beside = (
        "check/test_check.py::test_nothing_is_found_in_a_safe_dataset",
        "datasets/images/test_images.py",
        "notebook",
        "test_docs.py",
    )
    run_pytest(session, "tests/clients", *(f"tests/{name}" for name in beside))


@nox.session(python="3.11")
def chunked(session: nox.Session) -> None:
    """Load the chunked formats of other libraries: MDS, litdata, zarr."""
    add_torch(session)
    install(session, ".", "chunked")
    run_pytest(session, "tests/clients/test_chunked_formats.py")


@nox.session(python=["3.11", FREE_THREADED])
def stores(session: nox.Session) -> None:
    """Read from a real S3 server on this machine, which refuses wrong signatures; and Parquet."""
    install(session, ".[images,zstd]", "stores")
    run_pytest(session, "tests/datasets/remote", "tests/datasets/parquet")


@nox.session(python="3.11")
def pillow_simd(session: nox.Session) -> None:
    """Build Pillow-SIMD in Pillow's place, and run the image tests on it."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        session.skip("its instructions are those of x86")
    install(session, ".", "test")
    session.install("--only-binary=:all:", "simplejpeg>=1.9")
    # There are no wheels; needs a C compiler and the headers of libjpeg and zlib.
    build = ("--no-binary=pillow-simd", "--no-deps", "pillow-simd>=12")
    session.install(*build, env={"CC": "cc -mavx2"})
    tests = ("test_decode.py", "test_images.py", "test_image_fuzz.py")
    run_pytest(session, *(f"tests/datasets/images/{name}" for name in tests))


@nox.session(python="3.11")
def scale_out_long(session: nox.Session) -> None:
    """Let more processes train together, kill them more often, and start a cluster of Ray's."""
    add_torch(session)
    install(session, ".[demo,zstd]", "test", "ray")
    run_pytest(session, "-m", "scale_out_long", "tests/scale_out", processes="0")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format and spelling."""
    install(session, None, "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("codespell")


@nox.session(python="3.11")
def docs(session: nox.Session) -> None:
    """Build the documentation as a site, in `docs/_build`, and look at each page in a browser."""
    install(session, ".[images]", "docs")
    session.run("sphinx-build", "-q", "-W", "-E", "docs", "docs/_build")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        session.skip(f"the site is built; no browser here to look at it ({', '.join(BROWSERS)})")
    install(session, None, "browser")
    session.run("python", "docs/look.py", "docs/_build", browser)


@nox.session(python="3.11")
def types(session: nox.Session) -> None:
    """Check the types, against torch's own."""
    add_torch(session)
    install(session, ".[demo]", "types")
    session.run("mypy", *session.posargs)


@nox.session
def layers(session: nox.Session) -> None:
    """Check that every module imports only from the layers below its own."""
    install(session, None, "layers")  # it reads the checkout's source and runs none of it
    session.run("lint-imports")


@nox.session(python="3.11")
def gpu(session: nox.Session) -> None:
    """Run what needs an NVIDIA GPU: the tests for one, and checks that must notice broken rules."""
    add_torch(session)
    install(session, ".", "test")
    run_pytest(session, "tests/gpu", processes="0")
    run_bench(session, "benches.gpu", "--mutants", "--batches", "6000")


@nox.session(python=list(TORCH))
def bench(session: nox.Session) -> None:
    """Measure ThreadLoader against every rival; posargs, say `--quick`, go to the benchmark."""
    add_torch(session)
    install(session, ".[images,zstd]", "bench")
    torch = f"torch=={TORCH[str(session.python)]}"
    for rival in group("rivals"):
        try:
            session.install("--only-binary=:all:", rival, torch)
        except CommandFailed:
            session.warn(f"{rival} has no wheels for this Python, and is left out")
    # A missed target is a figure like others: the tables say so.
    run_bench(session, "benches.north_star", *session.posargs, success_codes=(0, 1))
    run_bench(session, "benches.figures")


@nox.session
def gil_vs_nogil(session: nox.Session) -> None:
    """Measure with and without the GIL, side by side, on builds that are otherwise alike."""
    present = [twins for twins in TWINS if all(map(find_python, twins))]
    if not present:
        session.skip("needs a GIL and a free-threaded build, say python3.13 and python3.13t")
    install(session, ".", "bench")
    pythons = []
    for build in (build for twins in present for build in twins):
        folder = Path(session.virtualenv.location).with_name(f"gil_vs_nogil-{build}")
        made = ("-m", "virtualenv", "--quiet", f"--python={find_python(build)}", folder)
        session.run_install(sys.executable, *made, external=True)
        python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        # The twin with the GIL gets the same old releases: only the builds may differ.
        pins = group("py313t") if build.startswith("3.13") else ()
        wheels = ("--quiet", "--only-binary=:all:", ".[images]", *pins)
        session.run_install(python, "-m", "pip", "install", *wheels, external=True)
        pythons.append(f"{build}={python}")
    run_bench(session, "benches.gil_vs_nogil", *pythons, *session.posargs)
    run_bench(session, "benches.figures")


def group(name: str) -> tuple[str, ...]:
    """Return the requirements of a dependency group; pip itself knows groups only since 25.1."""
    return nox.project.dependency_groups(PROJECT, name)


def install(session: nox.Session, project: str | None, *groups: str, upgrade: bool = False) -> None:
    """Install the project and dependency groups into the session's environment.

    Args:
        session: Whose environment.
        project: The project with its extras, as pip takes it, or None for groups alone.
        groups: Names in ``[dependency-groups]``.
        upgrade: Whether to install the newest releases of all requirements, again.
    """
    if project and (session.python or HERE) == "3.13t":
        groups = (*groups, "py313t")
    wanted = [project] if project else []
    wanted += [requirement for name in groups for requirement in group(name)]
    # An sdist would be compiled without a free-threaded build in mind, or not at all.
    eager = ("--upgrade", "--upgrade-strategy=eager") if upgrade else ()
    session.install("--only-binary=:all:", *eager, *wanted)


def add_torch(session: nox.Session) -> None:
    """Put a shared copy of torch on the path of the session's environment.

    With its CUDA packages torch takes gigabytes and minutes, so there is one copy a machine,
    outside the clone, for each release and kind of build.  It is a plain folder that nothing
    else is installed into, so sessions of several clones can use it at once.  A copy that was
    interrupted half-way has no marker, which is written last, and is made afresh.
    """
    query = "import sysconfig as s; print(s.get_config_var('EXT_SUFFIX'), s.get_path('purelib'))"
    answer = session.run_install("python", "-c", query, silent=True)
    if not isinstance(answer, str):
        return  # `nox -R`: the environment is used as it is
    suffix, site_packages = answer.split(maxsplit=1)  # ".cpython-313t-x86_64-linux-gnu.so /..."
    requirement = f"torch=={TORCH[str(session.python)]}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "threadloader-nox"
    layer = cache / f"{requirement.replace('==', '-')}-{suffix.split('.')[1]}"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(layer.with_name(f"{layer.name}.lock")):
        if not (layer / "complete").exists():
            shutil.rmtree(layer, ignore_errors=True)
            scratch = layer / "tmp"  # pip moves what it unpacked: keep that on one file system
            scratch.mkdir(parents=True)
            session.install(
                "--only-binary=:all:",
                f"--target={layer / 'site-packages'}",
                requirement,
                env={"TMPDIR": str(scratch)},
            )
            shutil.rmtree(scratch)
            # Only torch.compile needs it, other parts of torch look whether it is there, and
            # (3.7) importing it switches the GIL of a free-threaded build on for good.
            shutil.rmtree(layer / "site-packages" / "triton", ignore_errors=True)
            (layer / "complete").touch()
    Path(site_packages.strip(), "threadloader_torch.pth").write_text(f"{layer / 'site-packages'}\n")


def run_pytest(session: nox.Session, *args: str, processes: str = "4") -> None:
    """Run pytest on the installed package; PYTHONSAFEPATH hides the checkout from every test.

    Args:
        session: Whose environment.
        args: For pytest.
        processes: That share the tests; "0" for pytest's own.  Four also on two cores: half of the
            time, tests wait.  And on many: tests have threads enough, and some would starve.
    """
    session.run(
        "pytest",
        f"--numprocesses={processes}",
        "--dist=worksteal",  # 95 and 88 s for the suite, not 103 and 95: the last tests are shared
        *args,
        *session.posargs,
        env={"PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": None, "PYTHON_GIL": None},
    )


def run_bench(
    session: nox.Session, module: str, *args: str, success_codes: Sequence[int] = (0,)
) -> None:
    """Run a benchmark with the interpreter as users have it: modules load from their ``.pyc``."""
    env = {"PYTHONDONTWRITEBYTECODE": None, "PYTHON_GIL": None}
    session.run("python", "-m", module, *args, env=env, success_codes=success_codes)
