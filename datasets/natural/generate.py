"""The documents of datasets/natural that no one wrote: logs of simulated systems, and texts whose order is destroyed.

Only `random.Random(seed).random()` is drawn from, whose sequence Python guarantees, so the output is always the same.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Random choices of one document."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def unit(self) -> float:
        return self._random.random()

    def below(self, end: int) -> int:
        return int(self.unit() * end)

    def between(self, least: int, most: int) -> int:
        return least + self.below(most - least + 1)

    def one(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def common(self, items: Sequence[T]) -> T:
        """An item, early ones far more often than late ones."""
        return items[int(len(items) * self.unit() ** 3)]

    def chance(self, probability: float) -> bool:
        return self.unit() < probability

    def hex(self, digits: int) -> str:
        return "".join("0123456789abcdef"[self.below(16)] for _ in range(digits))

    def skewed(self, scale: float) -> float:
        """A duration: mostly near `scale`, now and then many times as much."""
        return scale * (0.2 + self.unit()) / (0.05 + self.unit())

    def shuffled(self, items: Sequence[T]) -> list[T]:
        rest = list(items)
        for last in range(len(rest) - 1, 0, -1):
            other = self.below(last + 1)
            rest[last], rest[other] = rest[other], rest[last]
        return rest


class Clock:
    """Time that goes on by irregular steps."""

    def __init__(self, draw: Draw, start: datetime, step_seconds: float) -> None:
        self._draw, self._now, self._step = draw, start, step_seconds

    def tick(self) -> datetime:
        self._now += timedelta(seconds=self._draw.skewed(self._step))
        return self._now


WORDS = (
    "account ledger invoice tariff parcel courier harbour meadow lantern cedar orchid granite copper falcon heron otter "
    "maple juniper saffron indigo cobalt amber quartz velvet linen harvest summit ridge valley delta canyon glacier "
    "beacon compass anchor rudder sextant almanac atlas folio quill parchment cipher ballot census charter treaty"
).split()
NAMES = "amara bjorn chidi dolores emeka farah gustav hanna ivo jolanta kenji leila marek noor oskar priya".split()


def address(draw: Draw) -> str:
    """An address out of the ranges for documentation or private networks."""
    network = draw.common(("10.4", "192.168", "10.17", "172.20", "198.51"))
    middle = 100 if network == "198.51" else draw.below(24)
    return f"{network}.{middle}.{draw.below(254) + 1}"


def web_server(draw: Draw) -> Iterator[str]:
    clock = Clock(draw, datetime(2026, 3, 14, 6, 25, 2), 1.7)
    agents = (
        "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/122.0.0.0 Safari/537.36",
        "Mozilla/5.0 (iPhone; CPU iPhone OS 17_3 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148",
        "Mozilla/5.0 (X11; Linux x86_64; rv:123.0) Gecko/20100101 Firefox/123.0",
        "Mozilla/5.0 (compatible; crawler/2.1; +https://crawler.example/about)",
        "curl/8.5.0",
        "python-requests/2.31.0",
        "kube-probe/1.29",
    )
    shelves = [draw.one(WORDS) for _ in range(12)]
    visitors = [(address(draw), draw.common(agents)) for _ in range(60)]
    while True:
        visitor, agent = draw.common(visitors)
        referer = "-"
        for _ in range(draw.between(1, 7)):
            shelf, item = draw.common(shelves), draw.one(WORDS)
            path = draw.common((
                f"/shop/{shelf}/{item}-{draw.below(9000)}",
                f"/static/css/main.{draw.hex(8)}.css",
                f"/img/{shelf}/{draw.below(90000)}_640x480.webp",
                f"/search?q={item}+{shelf}&page={draw.between(1, 9)}",
                f"/api/v2/basket/{draw.hex(12)}",
                "/healthz",
                f"/blog/{draw.between(2019, 2026)}/{draw.between(1, 12):02}/{item}-and-{shelf}/",
                "/wp-login.php",
            ))
            status = draw.common((200, 200, 200, 304, 301, 404, 499, 500, 503))
            size = 0 if status == 304 else int(draw.skewed(5400))
            method = "POST" if path.startswith("/api") and draw.chance(0.4) else "GET"
            now = clock.tick()
            yield (
                f'{visitor} - - [{now:%d/%b/%Y:%H:%M:%S} +0000] "{method} {path} HTTP/1.1" {status} {size} '
                f'"{referer}" "{agent}" {draw.skewed(0.04):.3f}'
            )
            referer = f"https://shop.example{path}"


def system_journal(draw: Draw) -> Iterator[str]:
    clock = Clock(draw, datetime(2026, 1, 30, 23, 51, 7), 9)
    host = f"{draw.one(WORDS)}-{draw.below(40):02}"
    units = ["apt-daily", "logrotate", "fstrim", "man-db", "certbot", "phpsessionclean", "sysstat-collect", "e2scrub_all"]

    def line(program: str, message: str) -> str:
        return f"{clock.tick():%b %e %H:%M:%S} {host} {program}: {message}"

    while True:
        pid = draw.between(400, 99000)
        what = draw.common(("cron", "ssh", "unit", "guess", "dhcp", "mail", "kernel", "time"))
        name, far = draw.one(NAMES), address(draw)
        port = draw.between(30000, 65000)
        if what == "cron":
            user = draw.common(("root", "www-data", name))
            yield line(f"CRON[{pid}]", f"pam_unix(cron:session): session opened for user {user}(uid=0) by (uid=0)")
            yield line(f"CRON[{pid + 1}]", f"({user}) CMD (cd / && run-parts --report /etc/cron.{draw.one(('hourly', 'daily'))})")
            yield line(f"CRON[{pid}]", f"pam_unix(cron:session): session closed for user {user}")
        elif what == "ssh":
            yield line(f"sshd[{pid}]", f"Accepted publickey for {name} from {far} port {port} ssh2: ED25519 SHA256:{draw.hex(22)}")
            yield line(f"sshd[{pid}]", f"pam_unix(sshd:session): session opened for user {name}(uid={draw.between(1000, 1040)}) by (uid=0)")
            yield line("systemd-logind[611]", f"New session {draw.between(100, 9999)} of user {name}.")
        elif what == "guess":
            for user in [draw.common(("root", "admin", "oracle", "test", "ubuntu", "git", name)) for _ in range(draw.between(1, 6))]:
                yield line(f"sshd[{pid}]", f"Invalid user {user} from {far} port {port}")
                if draw.chance(0.6):
                    yield line(f"sshd[{pid}]", f"Connection closed by invalid user {user} {far} port {port} [preauth]")
        elif what == "unit":
            unit = draw.common(units)
            yield line("systemd[1]", f"Starting {unit}.service...")
            if draw.chance(0.1):
                yield line("systemd[1]", f"{unit}.service: Main process exited, code=exited, status={draw.between(1, 4)}/FAILURE")
                yield line("systemd[1]", f"{unit}.service: Failed with result 'exit-code'.")
            else:
                yield line("systemd[1]", f"{unit}.service: Deactivated successfully.")
                yield line("systemd[1]", f"Finished {unit}.service.")
        elif what == "dhcp":
            yield line("dhclient[822]", f"DHCPREQUEST for {far} on eth0 to {address(draw)} port 67")
            yield line("dhclient[822]", f"bound to {far} -- renewal in {draw.between(900, 43000)} seconds.")
        elif what == "mail":
            queue = draw.hex(10).upper()
            yield line(f"postfix/smtpd[{pid}]", f"connect from mail.{draw.one(WORDS)}.example[{far}]")
            yield line(f"postfix/cleanup[{pid + 3}]", f"{queue}: message-id=<{draw.hex(16)}@{draw.one(WORDS)}.example>")
            yield line("postfix/qmgr[1190]", f"{queue}: from=<{name}@{draw.one(WORDS)}.example>, size={draw.between(900, 90000)}, nrcpt=1 (queue active)")
            yield line(f"postfix/local[{pid + 4}]", f"{queue}: to=<{draw.one(NAMES)}@{host}>, relay=local, delay={draw.skewed(0.4):.2f}, status=sent (delivered to mailbox)")
        elif what == "kernel":
            yield line("kernel", f"[{draw.between(1000, 999999)}.{draw.between(100000, 999999)}] " + draw.one((
                f"TCP: request_sock_TCP: Possible SYN flooding on port {port}. Sending cookies.",
                f"[UFW BLOCK] IN=eth0 OUT= SRC={far} DST={address(draw)} LEN=40 TTL={draw.between(40, 250)} PROTO=TCP SPT={port} DPT=23",
                f"EXT4-fs (sda{draw.between(1, 4)}): re-mounted. Opts: errors=remount-ro",
                f"Out of memory: Killed process {pid} ({draw.one(WORDS)}) total-vm:{draw.between(90000, 9000000)}kB",
            )))
        else:
            yield line("systemd-timesyncd[540]", f"Contacted time server {far}:123 (ntp.{draw.one(WORDS)}.example).")


def service_events(draw: Draw) -> Iterator[str]:
    clock = Clock(draw, datetime(2026, 5, 2, 11, 4, 31, 120000), 0.35)
    services = ("checkout", "pricing", "stock", "gateway", "notify", "ledger")
    while True:
        trace, customer = draw.hex(32), draw.between(10000, 99999)
        for service in draw.shuffled(services)[: draw.between(2, 6)]:
            now = f"{clock.tick():%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
            failed = draw.chance(0.07)
            message = draw.common((
                "request handled", "cache miss", "order priced", "row locked", "event published", "retrying", "token refreshed",
            ))
            fields = draw.common((
                f'"customer":{customer},"items":{draw.between(1, 9)},"total":"{draw.skewed(40):.2f}"',
                f'"sku":"{draw.one(WORDS)}-{draw.between(100, 999)}","warehouse":"{draw.one(WORDS)}","left":{draw.below(500)}',
                f'"method":"{draw.one(("GET", "POST", "PUT"))}","path":"/{service}/{draw.hex(8)}","status":{500 if failed else 200}',
                f'"topic":"{service}.{draw.one(WORDS)}","partition":{draw.below(24)},"offset":{draw.between(100000, 9999999)}',
            ))
            error = f',"error":"context deadline exceeded after {draw.skewed(900):.0f}ms","attempt":{draw.between(1, 5)}' if failed else ""
            yield (
                f'{{"ts":"{now}","level":"{"error" if failed else draw.common(("info", "info", "debug", "warn"))}","service":"{service}",'
                f'"trace":"{trace}","span":"{draw.hex(16)}","msg":"{message}",{fields},"ms":{draw.skewed(12):.2f}{error}}}'
            )


def application_server(draw: Draw) -> Iterator[str]:
    clock = Clock(draw, datetime(2026, 2, 9, 8, 0, 12), 2.2)
    packages = ("o.s.web.servlet.DispatcherServlet", "c.example.billing.InvoiceService", "c.zaxxer.hikari.pool.HikariPool",
                "o.h.engine.jdbc.spi.SqlExceptionHelper", "c.example.billing.TariffClient", "o.a.kafka.clients.NetworkClient")
    while True:
        logger = draw.common(packages)
        thread = draw.common((f"nio-8080-exec-{draw.between(1, 10)}", "scheduling-1", f"pool-3-thread-{draw.between(1, 4)}"))
        level = draw.common(("INFO", "INFO", "DEBUG", "WARN", "ERROR"))
        invoice = f"{draw.between(2024, 2026)}-{draw.between(1, 99999):05}"
        message = draw.one((
            f"Invoice {invoice} of customer {draw.between(1000, 9999)} closed with {draw.between(1, 40)} lines, total {draw.skewed(120):.2f} EUR",
            f"Loaded {draw.between(2, 900)} tariffs of region {draw.one(WORDS)} in {draw.between(3, 800)} ms",
            f"Pool stats (total={draw.between(4, 10)}, active={draw.below(10)}, idle={draw.below(10)}, waiting={draw.below(4)})",
            f"Completed initialization in {draw.between(1, 40)} ms",
            f"Node {draw.between(0, 5)} disconnected.",
            f"Could not deliver reminder for {invoice}, attempt {draw.between(1, 5)} of 5",
        ))
        now = f"{clock.tick():%Y-%m-%d %H:%M:%S.%f}"[:-3]
        yield f"{now} {level:>5} 7 --- [{thread:>18}] {logger:<40} : {message}"
        if level == "ERROR":
            yield draw.one((
                f"java.lang.IllegalStateException: tariff {draw.one(WORDS)} has no price for {draw.between(1, 28)}.{draw.between(1, 12)}.2026",
                f"java.net.SocketTimeoutException: Read timed out after {draw.between(1000, 9000)} ms",
                "org.hibernate.StaleObjectStateException: Row was updated or deleted by another transaction",
            ))
            for _ in range(draw.between(4, 14)):
                owner = draw.common(("com.example.billing.InvoiceService", "com.example.billing.TariffClient", "java.base/java.util.concurrent.FutureTask",
                                     "org.springframework.aop.framework.ReflectiveMethodInvocation", "java.base/java.lang.Thread"))
                method = draw.one(("close", "run", "proceed", "invoke", "priceOf", "lambda$load$" + str(draw.below(9)), "call"))
                yield f"\tat {owner}.{method}({owner.split('.')[-1]}.java:{draw.between(20, 900)})"
            yield f"\t... {draw.between(20, 90)} common frames omitted"


def kernel_boot(draw: Draw) -> Iterator[str]:
    seconds, devices = 0.0, [f"0000:{draw.below(5):02x}:{draw.below(32):02x}.{draw.below(8)}" for _ in range(20)]
    while True:
        seconds += draw.skewed(0.004)
        device = draw.common(devices)
        base = f"0x{draw.hex(8)}000"
        yield f"[{seconds:12.6f}] " + draw.one((
            f"pci {device}: [{draw.hex(4)}:{draw.hex(4)}] type 00 class 0x{draw.hex(6)}",
            f"pci {device}: reg 0x{draw.between(10, 24)}: [mem {base}-0x{draw.hex(8)}fff 64bit pref]",
            f"pci {device}: PME# supported from D0 D3hot D3cold",
            f"BIOS-e820: [mem 0x{draw.hex(16)}-0x{draw.hex(16)}] {draw.one(('usable', 'reserved', 'ACPI data'))}",
            f"ACPI: {draw.one(('SSDT', 'FACP', 'HPET', 'MCFG', 'DMAR'))} {base} {draw.hex(6).upper()} (v0{draw.between(1, 5)} VENDOR {draw.one(WORDS).upper()[:8]} {draw.hex(8)} INTL {draw.between(20120101, 20231231)})",
            f"smpboot: CPU {draw.below(32)} Converting physical {draw.below(4)} to logical package {draw.below(4)}",
            f"usb {draw.between(1, 4)}-{draw.between(1, 9)}: New USB device found, idVendor={draw.hex(4)}, idProduct={draw.hex(4)}, bcdDevice={draw.below(9)}.{draw.below(99):02}",
            f"ata{draw.between(1, 6)}: SATA link up 6.0 Gbps (SStatus 133 SControl 300)",
            f"systemd[1]: Reached target {draw.one(WORDS).title()} {draw.one(('Sockets', 'Mounts', 'Timers', 'Swaps'))}.",
            f"nvme nvme{draw.below(3)}: {draw.between(4, 32)}/0/0 default/read/poll queues",
            f"e1000e {device} eth{draw.below(2)}: (PCI Express:2.5GT/s:Width x1) {':'.join(draw.hex(2) for _ in range(6))}",
            f"hid-generic 0003:{draw.hex(4).upper()}:{draw.hex(4).upper()}.{draw.below(9999):04}: input,hidraw{draw.below(4)}: USB HID v1.11 Keyboard",
            f"audit: type=1400 audit({draw.between(1700000000, 1790000000)}.{draw.below(999):03}:{draw.between(2, 90)}): apparmor=\"STATUS\" operation=\"profile_load\" name=\"{draw.one(WORDS)}\"",
        ))


def continuous_integration(draw: Draw) -> Iterator[str]:
    clock = Clock(draw, datetime(2026, 4, 21, 14, 2, 55), 0.8)

    def line(text: str) -> str:
        return f"{clock.tick():%Y-%m-%dT%H:%M:%S.%f}0Z {text}"

    while True:
        job = draw.one(WORDS)
        yield line(f"##[group]Run job {job} ({draw.common(('ubuntu-24.04', 'windows-2022', 'macos-14'))})")
        for _ in range(draw.between(6, 40)):
            crate, version = f"{draw.one(WORDS)}-{draw.one(WORDS)}", f"{draw.below(4)}.{draw.below(20)}.{draw.below(30)}"
            yield line(draw.common((f"   Compiling {crate} v{version}", f"  Downloaded {crate} v{version}", f"    Checking {crate} v{version}")))
        if draw.chance(0.5):
            variable = draw.one(WORDS)
            source = f"src/{draw.one(WORDS)}.rs:{draw.between(3, 900)}:{draw.between(1, 80)}"
            yield line(f"warning: unused variable: `{variable}`")
            yield line(f"  --> {source}")
            yield line(f"   |     let {variable} = {draw.one(WORDS)}({draw.below(99)})?;")
            yield line(f"   |         {'^' * len(variable)} help: if this is intentional, prefix it with an underscore: `_{variable}`")
        for _ in range(draw.between(8, 50)):
            test = f"{draw.one(WORDS)}::{draw.one(WORDS)}_{draw.common(('round_trips', 'is_refused', 'keeps_order', 'survives_a_restart', 'matches_the_reference'))}"
            yield line(f"test {test} ... {draw.common(('ok', 'ok', 'ok', 'ok', 'ignored', 'FAILED'))}")
        yield line(f"test result: ok. {draw.between(10, 400)} passed; {draw.below(2)} failed; {draw.below(9)} ignored; finished in {draw.skewed(4):.2f}s")
        yield line(f"Cache saved with key: {job}-linux-{draw.hex(40)}")


def database(draw: Draw) -> Iterator[str]:
    clock = Clock(draw, datetime(2026, 6, 11, 2, 10, 44), 3)
    tables = [f"{draw.one(WORDS)}_{draw.one(('entries', 'history', 'totals', 'links'))}" for _ in range(9)]
    while True:
        pid, table, column = draw.between(1200, 64000), draw.common(tables), draw.one(WORDS)
        prefix = f"{clock.tick():%Y-%m-%d %H:%M:%S.%f}"[:-3] + f" UTC [{pid}] {draw.common(('app', 'report', 'postgres'))}@main "
        yield from draw.common((
            (f"{prefix}LOG:  duration: {draw.skewed(300):.3f} ms  execute <unnamed>: SELECT t.id, t.{column}, sum(l.amount) FROM {table} t JOIN {draw.common(tables)} l ON l.parent = t.id WHERE t.{column} = $1 AND l.booked >= $2 GROUP BY t.id ORDER BY t.id LIMIT {draw.between(1, 50) * 10}",
             f"{prefix}DETAIL:  parameters: $1 = '{draw.one(WORDS)}', $2 = '{draw.between(2020, 2026)}-{draw.between(1, 12):02}-{draw.between(1, 28):02}'"),
            (f"{prefix}LOG:  automatic vacuum of table \"main.public.{table}\": index scans: {draw.below(3)}",
             f"\tpages: {draw.below(90)} removed, {draw.between(10, 90000)} remain, {draw.below(400)} skipped due to pins",
             f"\ttuples: {draw.between(0, 9000)} removed, {draw.between(1000, 9000000)} remain, {draw.below(300)} are dead but not yet removable",
             f"\tsystem usage: CPU: user: {draw.skewed(0.2):.2f} s, system: {draw.skewed(0.1):.2f} s, elapsed: {draw.skewed(2):.2f} s"),
            (f"{prefix}LOG:  checkpoint complete: wrote {draw.between(10, 9000)} buffers ({draw.skewed(2):.1f}%); write={draw.skewed(60):.3f} s, sync={draw.skewed(0.05):.3f} s, total={draw.skewed(61):.3f} s",),
            (f"{prefix}ERROR:  duplicate key value violates unique constraint \"{table}_pkey\"",
             f"{prefix}DETAIL:  Key (id)=({draw.between(1000, 9999999)}) already exists.",
             f"{prefix}STATEMENT:  INSERT INTO {table} (id, {column}, created) VALUES ($1, $2, now())"),
            (f"{prefix}ERROR:  deadlock detected",
             f"{prefix}DETAIL:  Process {pid} waits for ShareLock on transaction {draw.between(100000, 999999)}; blocked by process {draw.between(1200, 64000)}."),
            (f"{prefix}LOG:  temporary file: path \"base/pgsql_tmp/pgsql_tmp{pid}.{draw.below(9)}\", size {draw.between(1000000, 900000000)}",),
        ))


def cluster_node(draw: Draw) -> Iterator[str]:
    clock = Clock(draw, datetime(2026, 7, 19, 17, 33, 8), 0.6)
    pods = [f"{draw.one(WORDS)}-{draw.hex(9)}-{draw.hex(5)}" for _ in range(14)]
    while True:
        pod, pid = draw.common(pods), draw.between(1400, 1420)
        level, file, message = draw.common((
            ("I", "kubelet.go", f'"SyncLoop (PLEG): event for pod" pod="shop/{pod}" event={{"ID":"{draw.hex(8)}-{draw.hex(4)}","Type":"{draw.one(("ContainerStarted", "ContainerDied"))}","Data":"{draw.hex(64)}"}}'),
            ("I", "reconciler_common.go", f'"operationExecutor.MountVolume started for volume \\"kube-api-access-{draw.hex(5)}\\" (UniqueName: \\"kubernetes.io/projected/{draw.hex(8)}\\") pod \\"{pod}\\"" pod="shop/{pod}"'),
            ("I", "prober.go", f'"Probe failed" probeType="{draw.one(("Readiness", "Liveness"))}" pod="shop/{pod}" containerName="{draw.one(WORDS)}" probeResult="failure" output="HTTP probe failed with statuscode: {draw.one((500, 502, 503))}"'),
            ("E", "pod_workers.go", f'"Error syncing pod, skipping" err="failed to \\"StartContainer\\" for \\"{draw.one(WORDS)}\\" with CrashLoopBackOff: \\"back-off {draw.one(("10s", "20s", "40s", "1m20s", "5m0s"))} restarting failed container\\"" pod="shop/{pod}"'),
            ("W", "eviction_manager.go", f'"Attempting to reclaim" resourceName="{draw.one(("memory", "ephemeral-storage"))}" available="{draw.between(90, 900)}Mi"'),
            ("I", "scope.go", f'"RemoveContainer" containerID="{draw.hex(64)}"'),
            ("E", "remote_image.go", f'"PullImage from image service failed" err="rpc error: code = NotFound desc = {draw.one(WORDS)}:{draw.below(4)}.{draw.below(30)}: not found"'),
        ))
        yield f"{level}{clock.tick():%m%d %H:%M:%S.%f} {pid:>7} {file}:{draw.between(40, 2400)}] {message}"


def model_training(draw: Draw) -> Iterator[str]:
    clock = Clock(draw, datetime(2026, 8, 3, 20, 15, 9), 1.1)
    step, loss = 0, 10.8
    while True:
        step += 10
        loss = max(2.1, loss * (0.985 + 0.02 * draw.unit()))
        stamp = f"[{clock.tick():%Y-%m-%d %H:%M:%S},{draw.below(1000):03}]"
        yield f"{stamp}[trainer][INFO] - step {step:>7} | loss {loss:.4f} | lr {3e-4 * min(1, step / 2000):.3e} | grad norm {draw.skewed(0.6):.3f} | {draw.between(41000, 47000)} tokens/s | mem {draw.unit() * 9 + 61:.2f} GiB"
        if draw.chance(0.12):
            yield f"{stamp}[data.loader][DEBUG] - shard {draw.one(WORDS)}-{draw.below(2048):05}.tar opened in {draw.skewed(120):.0f} ms, {draw.between(800, 9000)} samples, {draw.below(7)} skipped"
        if draw.chance(0.06):
            yield f"{stamp}[eval][INFO] - {draw.one(WORDS)}: accuracy {draw.unit():.4f} f1 {draw.unit():.4f} nll {draw.skewed(1.2):.4f} n={draw.between(200, 9000)}"
        if draw.chance(0.03):
            yield f"{stamp}[checkpoint][INFO] - saved step {step} to /checkpoints/{draw.one(WORDS)}/step_{step:08} ({draw.skewed(14):.1f} s, {draw.between(4, 40)} GiB)"
        if draw.chance(0.02):
            yield f"{stamp}[trainer][WARNING] - gradient overflow on rank {draw.below(64)}: skipping step, loss scale {2 ** draw.between(8, 16)}"


LOGS: dict[str, Callable[[Draw], Iterator[str]]] = {
    "web server": web_server,
    "system journal": system_journal,
    "events of services": service_events,
    "application server": application_server,
    "kernel at boot": kernel_boot,
    "continuous integration": continuous_integration,
    "database": database,
    "node of a cluster": cluster_node,
    "training of a model": model_training,
}


def log(name: str, characters: int) -> str:
    """The log of one simulated system, of at least so many characters."""
    lines: list[str] = []
    length = 0
    for line in LOGS[name](Draw(name)):
        lines.append(line)
        length += len(line) + 1
        if length >= characters:
            break
    return "\n".join(lines) + "\n"


def shuffle(order: str, text: str) -> str:
    """`text` with its parts in another order."""
    draw = Draw(f"{order}{len(text)}")
    if order == "sentences":
        flat = re.sub(r"\s+", " ", text)
        return " ".join(draw.shuffled(re.split(r"(?<=[.!?])\s+", flat))) + "\n"
    if order == "paragraphs":
        return "\n\n".join(draw.shuffled([part for part in re.split(r"\n\s*\n", text) if part.strip()])) + "\n"
    if order == "lines":
        return "\n".join(draw.shuffled(text.splitlines())) + "\n"
    if order == "sorted lines":
        return "\n".join(sorted(set(text.splitlines()))) + "\n"
    if order == "words":
        words = draw.shuffled(text.split())
        return "\n".join(" ".join(words[at : at + 12]) for at in range(0, len(words), 12)) + "\n"
    raise ValueError(f"expected an order, got {order!r}")
