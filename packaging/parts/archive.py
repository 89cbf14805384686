"""Archives that are the same bytes for the same files: fixed times, owners and order."""

import gzip
import hashlib
import io
import lzma
import os
import stat
import tarfile


def epoch():
    """The time of every file of an archive, in seconds: SOURCE_DATE_EPOCH, or 1980, the first year that zip knows."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))


def entries(root):
    """Everything below `root`, folders before their content, sorted."""
    for name in sorted(os.listdir(root)):
        path = root / name
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from entries(path)


def tar(root, begin="", owner=lambda name: 0):
    """The files below `root` as a tar archive. `owner` is the number of a file's user and group, by its name."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        if begin:
            archive.addfile(directory(begin, 0o755))
        for path in entries(root):
            name = path.relative_to(root).as_posix()
            found = path.lstat()
            info = tarfile.TarInfo(begin + name)
            info.mode, info.mtime, info.uid, info.gid = stat.S_IMODE(found.st_mode), epoch(), owner(name), owner(name)
            if info.uid == 0:
                info.uname = info.gname = "root"
            if stat.S_ISLNK(found.st_mode):
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
                archive.addfile(info)
            elif stat.S_ISDIR(found.st_mode):
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            elif stat.S_ISREG(found.st_mode):
                info.size = found.st_size
                with open(path, "rb") as file:
                    archive.addfile(info, file)
            else:
                raise ValueError(f"{path} is neither a file nor a folder nor a link")
    return out.getvalue()


def directory(name, mode):
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime, info.uname, info.gname = tarfile.DIRTYPE, mode, epoch(), "root", "root"
    return info


def xz(content, preset):
    return lzma.compress(content, preset=preset)


def gz(content, level=9):
    """Without a name and a time in its head."""
    return gzip.compress(content, level, mtime=0)


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def ar(members):
    """An archive of ar(5): what a package of Debian is."""
    out = b"!<arch>\n"
    for name, content in members:
        out += f"{name:<16}{epoch():<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content
        out += b"\n" * (len(content) % 2)
    return out
