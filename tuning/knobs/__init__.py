"""What a host can be set to for the server: one module for each part of it, in the order in which they are told."""

from . import kernel, memory, network, placement, processor, server

PARTS = (processor, placement, memory, network, kernel, server)


def look(host):
    """All findings, in order. A look that fails is a finding, never the end."""
    found = []
    for part in PARTS:
        for knob in part.KNOBS:
            try:
                finding = knob(host)
            except Exception as error:  # Whatever a strange host answers: the others still count.
                finding = host.finding(knob.__name__.replace("_", "-"), part.__name__.rsplit(".", 1)[-1],
                                       "this look failed: %r" % (error,)).unreadable(str(error))
            if finding is not None:
                found.append(finding)
    return found
