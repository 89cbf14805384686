"""The network: queues of the cards, busy polling, buffers and habits of TCP, and what was dropped."""

from .finding import DERIVED, NOT_MEASURED, PUBLISHED
from .host import few

AREA = "network"
# What the server's listeners ask for; the kernel takes the smaller one.
BACKLOG = 4096
BUFFER_BYTES = 16 << 20


def threshold(host, knob, name, least, what, gain, basis, source, risk):
    """A sysctl that should be at least so much."""
    finding = host.finding(knob, AREA, what)
    path = host.sysctl(name)
    value = host.number(path)
    if value is None:
        return host.missing(finding, path, "this kernel has no %s" % name)
    finding.brings(gain, basis, source).risks(risk)
    finding.by("sysctl -w %s=%d" % (name, least), writes=[] if value >= least else [(path, str(least))])
    return finding.judged(value >= least, "%s=%d" % (name, value), "%d or more" % least)


def backlog(host):
    return threshold(host, "accept-queue", "net.core.somaxconn", BACKLOG,
                     "How many connections may wait to be accepted.",
                     "a burst of new connections is not dropped and sent again a second later", DERIVED,
                     "TCP's first retransmission comes after 1 s (RFC 6298)", "none to speak of")


def handshakes(host):
    return threshold(host, "handshake-queue", "net.ipv4.tcp_max_syn_backlog", BACKLOG,
                     "How many handshakes may be under way.",
                     "as for accept-queue, or cookies in place of options", DERIVED, "", "memory for each handshake")


def queues(host):
    finding = host.finding("network-queues", AREA, "Whether packets are taken in by as many cores as shards want them.")
    cards = host.interfaces()
    if not cards:
        return finding.absent("no network card: loopback alone, or a container")
    shards, few_queues, told = max(1, len(host.io_cores)), [], []
    for card in cards:
        base = "/sys/class/net/%s/queues" % card
        names = host.names(base)
        received = [name for name in names if name.startswith("rx-")]
        steered = [name for name in received
                   if (host.read("%s/%s/rps_cpus" % (base, name)) or "0").replace(",", "").strip("0")]
        sent = [name for name in names if name.startswith("tx-")]
        chosen = [name for name in sent
                  if (host.read("%s/%s/xps_cpus" % (base, name)) or "0").replace(",", "").strip("0")]
        told.append("%s: %d queues in (%d with RPS), %d out (%d with XPS)" % (
            card, len(received), len(steered), len(sent), len(chosen)))
        if len(received) < shards and not steered:
            few_queues.append(card)
    finding.brings("one core's interrupts are not what all shards wait for", PUBLISHED,
                   "kernel: Documentation/networking/scaling.rst")
    finding.by(*(["ethtool -L %s combined %d" % (card, shards) for card in few_queues] or ["ethtool -L CARD combined N"]),
               "where the card has one queue: RPS, a mask in /sys/class/net/CARD/queues/rx-0/rps_cpus")
    finding.risks("the card's link goes down for a moment when its queues change")
    return finding.judged(not few_queues, few(told), "%d queues in, or RPS" % shards)


def busy_polling(host):
    finding = host.finding("busy-polling", AREA, "Whether a thread that waits looks into the card's queue itself.")
    values = {name: host.number(host.sysctl(name)) for name in ("net.core.busy_poll", "net.core.busy_read")}
    if None in values.values():
        return host.missing(finding, host.sysctl("net.core.busy_poll"), "this kernel does not poll")
    finding.brings("for the epoll engine and real cards: no interrupt and wake between packet and shard; the io_uring "
                   "engine does not take part, and loopback has nothing to poll", NOT_MEASURED,
                   "kernel: Documentation/admin-guide/sysctl/net.rst recommends 50 us")
    finding.by("sysctl -w net.core.busy_poll=50 net.core.busy_read=50",
               writes=[(host.sysctl(name), "50") for name, value in values.items() if value == 0])
    finding.risks("cores are busy while they wait, other programs' too", careful=True)
    return finding.choice(", ".join("%s=%d" % it for it in values.items()), "50 us with --io-engine=epoll")


def deferred_interrupts(host):
    finding = host.finding("deferred-interrupts", AREA, "Whether a card holds interrupts back while it is polled.")
    cards = host.interfaces()
    if not cards:
        return finding.absent("no network card")
    told, writes = [], []
    for card in cards:
        base = "/sys/class/net/" + card
        irqs, flush = host.number(base + "/napi_defer_hard_irqs"), host.number(base + "/gro_flush_timeout")
        told.append("%s: %s, %s ns" % (card, irqs, flush))
        if irqs == 0:
            writes += [(base + "/napi_defer_hard_irqs", "2"), (base + "/gro_flush_timeout", "200000")]
    finding.brings("with busy polling: up to 45 % more requests at the same tail", PUBLISHED,
                   "Cai, Karsten: Kernel vs. User-Level Networking, SIGMETRICS 2024; kernel: Documentation/networking/napi.rst")
    finding.by(writes=writes)
    finding.risks("without a poller each packet waits for the timeout, 200 us: only together with busy-polling",
                  careful=True)
    return finding.choice(few(told), "2 and 200000 ns, only with busy polling")


def coalescing(host):
    finding = host.finding("interrupt-coalescing", AREA, "How long a card waits for more packets before it interrupts.")
    cards = host.interfaces()
    if not cards:
        return finding.absent("no network card")
    finding.brings("each microsecond that a card waits is one of every request's latency", DERIVED)
    finding.by(*["ethtool -C %s adaptive-rx off rx-usecs 0" % card for card in cards])
    finding.risks("more interrupts, so fewer requests where the card is busy")
    return finding.choice("ethtool -c %s tells it; /sys does not" % cards[0], "0 for latency, adaptive for throughput")


def slow_start(host):
    finding = host.finding("slow-start", AREA, "Whether a connection that paused has to begin carefully again.")
    path = host.sysctl("net.ipv4.tcp_slow_start_after_idle")
    value = host.number(path)
    if value is None:
        return host.missing(finding, path, "this kernel has no net.ipv4.tcp_slow_start_after_idle")
    finding.brings("588 KiB after a pause leave in one round trip less per doubling: about 5 with 10 segments of 1460 "
                   "bytes to begin with", DERIVED, "RFC 5681 section 4.1, RFC 6928")
    finding.by("sysctl -w net.ipv4.tcp_slow_start_after_idle=0", writes=[] if value == 0 else [(path, "0")])
    finding.risks("a burst may meet a path that has become narrow")
    return finding.judged(value == 0, "net.ipv4.tcp_slow_start_after_idle=%d" % value, "0")


def buffers(host):
    finding = host.finding("socket-buffers", AREA, "How much of a tensor may be under way.")
    told, writes = [], []
    for name in ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"):
        path = host.sysctl(name)
        text = host.read(path)
        if text is None:
            return host.missing(finding, path, "this kernel has no %s" % name)
        words = text.split()
        told.append("%s=%s" % (name, " ".join(words)))
        if len(words) == 3 and words[2].isdigit() and int(words[2]) < BUFFER_BYTES:
            writes.append((path, "%s %s %d" % (words[0], words[1], BUFFER_BYTES)))
    finding.brings("a connection carries at most its buffer each round trip: 4 MiB at 1 ms are 4 GB/s, at 10 ms 0.4 GB/s",
                   DERIVED)
    finding.by(*["sysctl -w %s=\"%s\"" % (path[len("/proc/sys/"):].replace("/", "."), value) for path, value in writes],
               writes=writes)
    finding.risks("kernel memory for slow peers")
    return finding.judged(not writes, "; ".join(told), "at most %d bytes and more" % BUFFER_BYTES)


def unsent(host):
    finding = host.finding("unsent-bytes", AREA, "How much the kernel takes of an answer before it is sent.")
    path = host.sysctl("net.ipv4.tcp_notsent_lowat")
    value = host.number(path)
    if value is None:
        return host.missing(finding, path, "this kernel has no net.ipv4.tcp_notsent_lowat")
    finding.brings("less kernel memory for slow clients; small answers of a connection wait less behind large ones")
    finding.by("sysctl -w net.ipv4.tcp_notsent_lowat=131072",
               writes=[(path, "131072")] if value > 131072 else [])
    finding.risks("more turns for each large answer", careful=True)
    return finding.choice("net.ipv4.tcp_notsent_lowat=%d" % value, "131072 where streams share a slow connection")


def congestion(host):
    finding = host.finding("congestion", AREA, "How TCP finds out what a path carries.")
    path = host.sysctl("net.ipv4.tcp_congestion_control")
    value = host.read(path)
    if value is None:
        return host.missing(finding, path, "this kernel does not say")
    finding.brings("nothing inside one data centre; BBR where clients are far and paths lose packets")
    finding.by("modprobe tcp_bbr && sysctl -w net.ipv4.tcp_congestion_control=bbr")
    finding.risks("BBR takes a larger share than CUBIC beside it")
    return finding.choice(value, "cubic near, bbr far")


def drops(host):
    finding = host.finding("dropped-packets", AREA, "Whether packets were dropped or left lying before TCP saw them.")
    text = host.read("/proc/net/softnet_stat")
    if text is None:
        return host.missing(finding, "/proc/net/softnet_stat", "this kernel does not count them")
    dropped = squeezed = 0
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 3 and all(is_hex(word) for word in words[:3]):
            dropped, squeezed = dropped + int(words[1], 16), squeezed + int(words[2], 16)
    finding.brings("each dropped packet costs its connection a retransmission, 200 ms at worst", DERIVED,
                   "TCP_RTO_MIN of Linux")
    writes = []
    for name, least in (("net.core.netdev_max_backlog", 10_000), ("net.core.netdev_budget", 600)):
        value = host.number(host.sysctl(name))
        if dropped and value is not None and value < least:
            writes.append((host.sysctl(name), str(least)))
    finding.by("sysctl -w net.core.netdev_max_backlog=10000 net.core.netdev_budget=600", writes=writes)
    finding.risks("longer turns of the network's own work")
    return finding.judged(dropped == 0, "%d dropped, %d turns cut short since the start" % (dropped, squeezed), "none")


def is_hex(word):
    return bool(word) and all(c in "0123456789abcdefABCDEF" for c in word)


def conntrack(host):
    finding = host.finding("connection-tracking", AREA, "Whether a firewall follows every connection.")
    count = host.number(host.sysctl("net.netfilter.nf_conntrack_count"))
    most = host.number(host.sysctl("net.netfilter.nf_conntrack_max"))
    if count is None or most is None:
        return host.missing(finding, host.sysctl("net.netfilter.nf_conntrack_count"), "nothing is followed")
    finding.brings("a full table drops new connections; a rule with notrack for the server's ports saves the look-up of "
                   "each packet", DERIVED)
    finding.by("nft add rule inet raw prerouting tcp dport { 8000, 8001, 8002 } notrack",
               "sysctl -w net.netfilter.nf_conntrack_max=1048576")
    finding.risks("rules that ask for the state of a connection no longer match these")
    shown = "%d of %d connections" % (count, most)
    return finding.judged(False, shown, "less than four fifths") if count * 5 > most * 4 else finding.choice(
        shown, "notrack for the server's ports")


KNOBS = (queues, coalescing, busy_polling, deferred_interrupts, backlog, handshakes, slow_start, buffers, unsent,
         congestion, drops, conntrack)
