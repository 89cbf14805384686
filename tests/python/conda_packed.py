#!/usr/bin/env python3
"""Makes an archive of an environment with an interpreter of its own, of the form that conda-pack gives it.

That is: files and links only, no directories, by plain names; the interpreter and its library under `bin` and `lib`,
which find each other wherever they lie, with links inside the archive; `bin/activate`, which has to know where it lies
and runs what packages put into `etc/conda/activate.d`; and `bin/conda-unpack`, which replaces the prefix that files
were packed with by the place where they are now."""

import argparse
import io
import os
import shutil
import sys
import sysconfig
import tarfile

# Where the environment was, as conda-pack's own placeholder.
PREFIX = "/opt/anaconda1anaconda2anaconda3"
UNUSED = ("__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "ensurepip", "tkinter",
          "turtledemo", "lib2to3", "pydoc_data", "config-*", "sitecustomize.py")

ACTIVATE = """\
_conda_pack_activate() {
    local script_dir full_path_env _path
    if [ -z "${BASH_VERSION:+x}" ]; then
        echo "Unrecognized shell." >&2
        return 1
    fi
    script_dir="$(dirname "${BASH_SOURCE[0]}")"
    full_path_env="$(cd "${script_dir}/.." > /dev/null && pwd)"
    export CONDA_PREFIX="$full_path_env"
    export _CONDA_PACK_OLD_PS1="$PS1"
    PATH="$CONDA_PREFIX/bin:$PATH"
    PS1="($(basename "$full_path_env")) $PS1"
    if [ -d "$CONDA_PREFIX/etc/conda/activate.d" ]; then
        for _path in "$CONDA_PREFIX/etc/conda/activate.d"/*.sh; do
            . "$_path"
        done
    fi
}
_conda_pack_activate
"""

UNPACK = """\
#!%(prefix)s/bin/python
import os
import sys

new_prefix = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Rewritten itself, it would find nothing any more.
old_prefix = "/opt/" + "anaconda1anaconda2anaconda3"
for path in ["bin/tool", "share/of the environment.txt"]:
    path = os.path.join(new_prefix, path)
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(text.replace(old_prefix, new_prefix))
sys.exit(%(code)d)
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("archive")
    parser.add_argument("packages", help="a directory of packages that the environment shall see")
    parser.add_argument("--unpack-exits", type=int, help="the exit code of bin/conda-unpack; without, there is none")
    arguments = parser.parse_args()
    version = "python%d.%d" % sys.version_info[:2]
    tree = arguments.archive + ".tree"
    library = os.path.join(tree, "lib", version)
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=shutil.ignore_patterns(*UNUSED))
    os.makedirs(os.path.join(tree, "bin"))
    shutil.copy(os.path.realpath(sys._base_executable), os.path.join(tree, "bin", version))
    for name in ("python", "python3"):
        os.symlink(version, os.path.join(tree, "bin", name))
    shared = sysconfig.get_config_var("INSTSONAME") or ""
    found = os.path.join(sysconfig.get_config_var("LIBDIR") or "", shared)
    # An interpreter that has it all in itself needs none.
    if ".so" in shared and os.path.exists(found):
        shutil.copy(found, os.path.join(tree, "lib", shared))
        os.symlink(shared, os.path.join(tree, "lib", shared.split(".so")[0] + ".so"))

    def write(path, text, mode=0o644):
        path = os.path.join(tree, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)

    write(f"lib/{version}/sitecustomize.py", f"import sys\n\nsys.path.append({arguments.packages!r})\n")
    write("bin/activate", ACTIVATE)
    write("bin/tool", f"#!{PREFIX}/bin/python\nprint('a tool')\n", 0o755)
    # Packages have files that are one; in the archive the second is a hard link.
    os.link(os.path.join(tree, "bin", version), os.path.join(tree, "bin", version + "-again"))
    write("share/of the environment.txt", f"prefix={PREFIX}\n")
    write("share/" + "a long name, " * 9 + "é/file", "a name that needs an extended header\n")
    write("etc/conda/activate.d/tests.sh", 'export NEREID_TEST_ACTIVATED="by $CONDA_PREFIX"\n')
    write("conda-meta/history", "")
    if arguments.unpack_exits is not None:
        write("bin/conda-unpack", UNPACK % {"prefix": PREFIX, "code": arguments.unpack_exits}, 0o755)
    with tarfile.open(arguments.archive, "w:gz", compresslevel=1, format=tarfile.PAX_FORMAT) as archive:
        for directory, _, files in os.walk(tree):
            for name in sorted(files):
                path = os.path.join(directory, name)
                archive.add(path, os.path.relpath(path, tree), recursive=False)
        # Of a directory that has nothing else, its name is there.
        empty = tarfile.TarInfo("var/empty")
        empty.type, empty.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(empty, io.BytesIO())
    shutil.rmtree(tree)


if __name__ == "__main__":
    main()
