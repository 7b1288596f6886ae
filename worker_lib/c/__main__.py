"""`python -m worker_lib.c --cflags --libs`: what a C compiler needs, in the manner of pkg-config.

cc program.c $(python -m worker_lib.c --cflags --libs)
"""

from __future__ import annotations

import argparse
import shlex
import sys
import sysconfig
from pathlib import Path

import worker_lib.c

LIBRARY = "libswitchagg.so"


def main() -> int:
    """Prints the flags; exit status 1 where a library is missing, which the message names."""
    parser = argparse.ArgumentParser(prog="python -m worker_lib.c", description=__doc__)
    parser.add_argument("--cflags", action="store_true", help="print options of the compiler")
    parser.add_argument("--libs", action="store_true", help="print options of the linker")
    args = parser.parse_args()
    if not (args.cflags or args.libs):
        parser.error("accepted: --cflags, --libs, or both")
    words = [f"-I{Path(worker_lib.c.__file__).parent}"] if args.cflags else []
    if args.libs:
        try:
            words += libs()
        except FileNotFoundError as error:
            print(f"python -m worker_lib.c: {error}", file=sys.stderr)
            return 1
    print(shlex.join(words))
    return 0


def libs() -> list[str]:
    """Returns options that link with the client and with this Python. Raises `FileNotFoundError`."""
    own, python = library(), libpython()
    folders = [f"-Wl,-rpath,{each.parent}" for each in (own, python)]
    return [f"-L{own.parent}", "-lswitchagg", *folders, str(python)]


def library() -> Path:
    """The path of `libswitchagg.so`. Raises `FileNotFoundError`."""
    # First where packages are installed: from there the library finds the environment that it belongs to.
    folders = [Path(sysconfig.get_path("platlib")) / "worker_lib" / "c", *map(Path, worker_lib.c.__path__)]
    for folder in folders:
        if (path := folder / LIBRARY).exists():
            return path
    raise FileNotFoundError(
        f"{LIBRARY} is in none of {', '.join(map(str, folders))}: install switchagg again"
    )


def libpython() -> Path:
    """The path of this Python's shared library. Raises `FileNotFoundError`."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    known = sysconfig.get_config_vars()
    names = [f"libpython{version}.so", f"libpython{version}.so.1.0"]
    folders = [known.get("LIBDIR"), Path(sys.base_prefix) / "lib", known.get("LIBPL")]
    if known.get("LIBDIR") and known.get("MULTIARCH"):
        folders.insert(1, Path(known["LIBDIR"]) / known["MULTIARCH"])
    for folder in filter(None, folders):
        for name in names:
            if (path := Path(folder) / name).exists():
                return path
    raise FileNotFoundError(
        f"this Python ({sys.executable}) has no {names[0]}: install its package (Debian: "
        f"libpython{version}), or use a Python that was built with --enable-shared"
    )


if __name__ == "__main__":
    sys.exit(main())
