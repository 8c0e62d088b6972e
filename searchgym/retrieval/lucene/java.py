"""Finds a JDK and starts the Java virtual machine of this process, with pyserini's classes and without its output."""

from __future__ import annotations

import functools
import importlib
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from searchgym.errors import UsageError
from searchgym.packages import install_command

JDK: Final = 21
"""Oldest Java release that pyserini 1.6 supports."""
PLACES: Final = (
    "/usr/lib/jvm",
    "/usr/java",
    "/opt",
    "/Library/Java/JavaVirtualMachines",
    "~/.jdks",
    "~/.sdkman/candidates/java",
    f"{sys.prefix}/lib/jvm",
)
"""Folders searched for JDKs, besides JAVA_HOME and the JDK whose ``java`` is on the PATH."""
_UNITS: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_HEAP: Final = (2**24, 2**40)  # smallest and largest heap in bytes: starting Java with another can kill the process

P = ParamSpec("P")
T = TypeVar("T")
Java = Callable[[str], Any]
"""Function that returns a Java class by its full name."""

_lock = threading.Lock()
_kept: list[Any] = []  # Java's loggers, which Java would otherwise collect together with their settings


def leaves_java(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator of a function that calls Java, which detaches its thread from Java afterwards.

    Otherwise Java would keep the thread after its end. The function must not return Java objects: releasing them would
    attach the thread again.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        finally:
            if "jnius" in sys.modules and threading.current_thread() is not threading.main_thread():
                jnius().detach()

    return call


@leaves_java
def start_java(memory: str = "2g") -> Java:
    """Starts Java in this process unless it runs already; the first call decides the size of its heap.

    Java handles no signals (Python keeps Ctrl-C), prints nothing and starts without its vector module, which Lucene
    needs only for vectors. It does not survive in a forked process.

    Args:
        memory: Maximum size of the heap, such as ``512m`` or ``2g``.

    Returns:
        Function that returns a Java class by its name, pyserini's and its Lucene's among them.

    Raises:
        UsageError: pyserini or a JDK is missing, Java runs already without pyserini's classes, or `memory` is not a
            valid size.
    """
    heap_bytes(memory)
    with _lock:
        try:
            config = importlib.import_module("jnius_config")
            pyserini = importlib.import_module("pyserini.setup")
        except ImportError as error:
            raise UsageError(
                f"Lucene needs pyserini ({error}): {install_command('lucene')}, and a JDK {JDK} or newer"
            ) from error
        if not config.vm_running:
            home = find_jdk()
            os.environ["JAVA_HOME"] = str(home)
            user_options = config.get_options()
            jars = Path(str(pyserini.__file__)).parent / "resources" / "jars"
            pyserini.configure_classpath(os.environ.get("ANSERINI_CLASSPATH", str(jars)))
            # Without the option that pyserini adds: with the vector module Java prints a warning at its start.
            options = ["-Xrs"]  # Java installs no signal handlers
            if java_version(home) >= 23:
                options.append("--sun-misc-unsafe-memory-access=allow")  # otherwise Java warns about Lucene
            config.set_options(*user_options, f"-Xmx{memory}", *options)
        java: Java = jnius().autoclass
        try:
            if not _kept:  # silences Lucene's warnings about Java's version
                _kept.append(java("java.util.logging.Logger").getLogger("org.apache.lucene"))
                _kept[0].setLevel(java("java.util.logging.Level").SEVERE)
            java("io.anserini.analysis.DefaultEnglishAnalyzer")
        except jnius().JavaException as error:
            raise UsageError(
                "Java runs in this process already, without pyserini's classes: open the Lucene index before anything "
                f"else starts Java, or import pyserini.search.lucene first ({java_said(error)})"
            ) from error
        return java


def jnius() -> Any:
    """Returns pyjnius, the module that calls Java. Importing it starts Java, so call `start_java` first."""
    return importlib.import_module("jnius")


def heap_bytes(memory: str) -> int:
    """Returns the size of a heap in bytes, from text such as ``512m`` or ``2g``.

    Raises:
        UsageError: `memory` is not a number, optionally followed by k, m, g or t; or not from 16 MB to 1 TB.
    """
    match = re.fullmatch(r"(\d{1,12})([kmgt]?)", memory.lower())
    size = int(match[1]) * _UNITS[match[2]] if match else 0
    if not _HEAP[0] <= size <= _HEAP[1]:
        raise UsageError(f"memory of Java must be a size such as 512m or 2g, from 16m to 1t; got {memory!r}")
    return size


def java_text(java: Java, text: str) -> Any:
    """Returns a text as a Java string, or as it is if pyjnius converts it correctly; lone surrogates become ``?``."""
    if text.isascii() or max(text) < "\ud800":
        return text
    # pyjnius truncates characters beyond 16 bits.
    return java("java.lang.String")(text.encode("utf-8", "replace"), "UTF-8")


def java_said(error: Exception) -> str:
    """Returns the first line of a Java exception's message."""
    return str(error).partition("\n")[0].removeprefix("JVM exception occurred: ")


# -- finding Java --------------------------------------------------------------------------------------------------


def find_jdk() -> Path:
    """Returns the folder of the JDK to use: JAVA_HOME if it is suitable, else the newest suitable one.

    Raises:
        UsageError: No JDK has the release and the module that pyserini needs.
    """
    java_home = os.environ.get("JAVA_HOME")
    if java_home and java_version(Path(java_home)) >= JDK:
        return Path(java_home)
    version, home = max(((java_version(home), home) for home in _homes()), default=(0, Path()))
    if version < JDK:
        raise UsageError(
            f"no JDK {JDK} or newer with the module jdk.incubator.vector in JAVA_HOME ({java_home or 'not set'}), on "
            f"the PATH or in {', '.join(PLACES)}: install one "
            f"(Debian: openjdk-{JDK}-jdk or temurin-{JDK}-jdk; elsewhere: adoptium.net), and set JAVA_HOME if it is "
            "elsewhere"
        )
    return home


def java_version(home: Path) -> int:
    """Returns the feature release of the JDK in a folder, such as 21; 0 without a JDK or its vector module."""
    try:
        release = (home / "release").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return 0
    version = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    return int(version[1]) if version and "jdk.incubator.vector" in release else 0


def _homes() -> Iterator[Path]:
    """Yields folders that may be JDKs."""
    if java := shutil.which("java"):
        yield Path(java).resolve().parent.parent
    for folder in PLACES:
        for pattern in ("*", "*/Contents/Home"):
            yield from Path(folder).expanduser().glob(pattern)
