"""What a look found: the state of one knob, what turning it would bring, how it is turned, and what it risks."""

TUNED = "tuned"  # As it should be.
UNTUNED = "untuned"  # Turning it would help.
CHOICE = "choice"  # There are two sides to it: told, and never counted against a host.
UNREADABLE = "unreadable"  # This user, container or kernel does not show it.
ABSENT = "absent"  # There is nothing of the kind here.

STATES = (TUNED, UNTUNED, CHOICE, UNREADABLE, ABSENT)

# Where a figure comes from.
MEASURED = "measured"  # By us; docs/tuning.md says how.
HOST = "this host"  # This host's own tables and counters say it.
PUBLISHED = "published"  # By others, who are named.
DERIVED = "derived"  # It follows from how the protocol works.
NOT_MEASURED = "not measured"


class Finding:
    """One knob. `writes` are (path, value) that `apply` can write and take back; `commands` are for a person."""

    def __init__(self, knob, area, what):
        self.knob, self.area, self.what = knob, area, what
        self.state, self.found, self.wanted = UNREADABLE, "", ""
        self.gain, self.basis, self.source = "", NOT_MEASURED, ""
        self.commands, self.writes, self.risk = [], [], ""
        self.careful = False

    def brings(self, gain, basis=NOT_MEASURED, source=""):
        """What turning it would bring, and how that is known."""
        self.gain, self.basis, self.source = gain, basis, source
        return self

    def risks(self, risk, careful=False):
        """`careful`: `apply` turns it only for who asks for it by name."""
        self.risk, self.careful = risk, careful
        return self

    def by(self, *commands, writes=()):
        """How it is turned: `writes` now, `commands` where that is no matter of writing to a file."""
        self.writes = list(writes)
        self.commands = ["echo %s > %s" % (quoted(value), path) for path, value in self.writes] + list(commands)
        return self

    def judged(self, is_tuned, found, wanted=""):
        self.state, self.found, self.wanted = (TUNED if is_tuned else UNTUNED), str(found), str(wanted)
        return self

    def choice(self, found, wanted=""):
        self.state, self.found, self.wanted = CHOICE, str(found), str(wanted)
        return self

    def unreadable(self, why):
        self.state, self.found = UNREADABLE, str(why)
        return self

    def absent(self, why):
        self.state, self.found = ABSENT, str(why)
        return self

    def told(self):
        """For JSON."""
        return {
            "id": self.knob, "area": self.area, "what": self.what, "state": self.state, "found": self.found,
            "wanted": self.wanted, "gain": self.gain, "basis": self.basis, "source": self.source,
            "commands": self.commands, "risk": self.risk, "careful": self.careful,
            "writes": [{"path": path, "value": value} for path, value in self.writes],
        }


def quoted(value):
    """For a shell."""
    return value if value and all(c.isalnum() or c in "-_,.:+" for c in value) else "'%s'" % value
