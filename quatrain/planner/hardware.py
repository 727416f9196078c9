"""Accelerators as data: memory, matrix rate, bandwidth; further ones come from a JSON file. No torch.

Sources of the figures: vendors' datasheets (memory, dense bf16 rate, bandwidth, link) and, for `measured_tflops`, the
largest matrix products in the accelerator chapter of github.com/stas00/ml-engineering (commit 744d01e).
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from quatrain.errors import SettingError, nearest

GB, GIB = 1e9, float(2**30)


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator (or this machine's processor). Rates are per device; the link is one direction."""

    name: str
    memory_gb: float  # as sold, 1e9 bytes
    usable_gib: float  # what a process can have, 2^30 bytes
    tflops: float  # dense bf16 by the datasheet (fp16 or fp32 where there is no bf16)
    measured_tflops: float  # the largest matrix product seen; the datasheet's where none was found
    bandwidth_gb_s: float
    link_gb_s: float
    context_gib: float | None = None  # driver context and libraries; None: the allowance of planner/constants.py

    @property
    def usable_gb(self) -> float:
        """`usable_gib` in 1e9 bytes."""
        return self.usable_gib * GIB / GB


_ROWS = (
    # name, memory GB, usable GiB, TFLOP/s, measured, GB/s, link GB/s
    ("a100-40g", 40, 39.39, 312, 271, 1555, 300),
    ("a100-80g", 80, 79.15, 312, 271.2, 2039, 300),
    ("h100-80g", 80, 79.18, 989, 794.5, 3350, 450),
    ("h100-96g", 96, 94.5, 989, 794.5, 3350, 450),
    ("h100-pcie-80g", 80, 79.18, 756, 756, 2000, 63),
    ("h20-96g", 96, 95.0, 148, 148, 4000, 450),
    ("h200-141g", 141, 139.80, 989, 780, 4800, 450),
    ("b200-180g", 180, 178.36, 2250, 1745, 8000, 900),
    ("gb200-186g", 186, 184.0, 2500, 1822, 8000, 900),
    ("l4-24g", 24, 22.46, 121, 121, 300, 32),
    ("l40s-48g", 48, 44.92, 362, 362, 864, 32),
    ("a10g-24g", 24, 22.0, 70, 70, 600, 32),
    ("a6000-48g", 48, 47.40, 154.8, 154.8, 768, 32),
    ("rtx3090-24g", 24, 22.95, 71, 71, 936, 32),
    ("rtx4090-24g", 24, 23.5, 165.2, 165.2, 1008, 32),
    ("rtx5090-32g", 32, 30.27, 209.6, 209.6, 1792, 63),
    ("mi300x-192g", 192, 191.0, 1307, 668.4, 5300, 448),
    ("mi325x-256g", 256, 255.0, 1307, 784.9, 6000, 448),
    ("t4-16g", 16, 14.56, 65, 65, 320, 16, 0.1376),  # the context of all 79 runs of fitcheck-llm
)
CATALOGUE = {str(name): Device(str(name), *map(float, row)) for name, *row in _ROWS}
ALIASES = {name.rpartition("-")[0]: name for name in reversed(CATALOGUE)}  # `h100`: the first of a name in the table
CPU_TFLOPS, CPU_GB_S = 0.05, 20.0  # per core and per machine: a rough rate, replaced by what a run measures


def find_device(name: str, extra: Path | None = None) -> Device:
    """A device by name: of the catalogue, of the JSON file `extra`, or `cpu` for this machine.

    Raises SettingError for an unknown name (the nearest is named) or a file that cannot be read.
    """
    if name == "cpu":
        return this_machine()
    known = {**CATALOGUE, **(read_devices(extra) if extra else {})}
    key = name.lower()
    key = key if key in known else ALIASES.get(key, key)
    if key not in known:
        raise SettingError("--gpu", name, "a known device (or cpu)", f"{nearest(key, known)}; others: --hardware FILE")
    return known[key]


def read_devices(path: Path) -> dict[str, Device]:
    """Devices of a JSON file: {name: {memory_gb, usable_gib, tflops, bandwidth_gb_s, link_gb_s, ...}}."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: Device(name=name, measured_tflops=row.get("measured_tflops", row["tflops"]),
                         **{key: float(value) for key, value in row.items() if key != "measured_tflops"})
            for name, row in data.items()
        }  # fmt: skip
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise SettingError("--hardware", str(path), "a JSON file {name: {memory_gb, usable_gib, tflops, ...}}",
                           " ".join(str(error).split())[:200]) from None  # fmt: skip


def parse_gpu(text: str, extra: Path | None = None) -> tuple[Device, int]:
    """A device and how many of it: `h100-80g`, `h100-80gx8`, `h100-80g x 8`, `8 x h100`."""
    plain = re.sub(r"\s+", "", text.lower()).replace("\N{MULTIPLICATION SIGN}", "x")
    found = re.fullmatch(r"(?:(\d+)x)?(.+?)(?:[x*](\d+))?", plain)
    if found is None:
        return find_device(text, extra), 1
    count = int(found[1] or found[3] or 1)
    if (found[1] and found[3]) or count < 1:
        raise SettingError("--gpu", text, "NAME or NAMExCOUNT, for example h100-80gx8", "give one count above 0")
    return find_device(found[2], extra), count


def local_device() -> Device:
    """The first accelerator that the driver lists here and the catalogue knows, else this machine's processor."""
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        words = re.sub(r"[^a-z0-9]", "", file.read_text(encoding="utf-8", errors="replace").lower())
        known = [name for name in CATALOGUE if name.split("-")[0] in words]
        if known:
            return CATALOGUE[known[0]]
    return this_machine()


def this_machine() -> Device:
    """The processor, and the memory of the machine or of the control group that this process is in."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(file).read_text(encoding="ascii")))
        except (OSError, ValueError):  # not in a group, or without a limit (`max`)
            continue
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    rate = CPU_TFLOPS * cores
    return Device("cpu", total / GB, total / GIB, rate, rate, CPU_GB_S, CPU_GB_S, context_gib=0.0)
