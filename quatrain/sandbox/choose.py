"""From settings to a backend that has been seen to isolate. Nothing here falls back to something weaker."""

import weakref
from dataclasses import dataclass
from typing import Literal

from quatrain.sandbox.canary import why_not
from quatrain.sandbox.image import find_packages
from quatrain.sandbox.job import Backend, Limits, SandboxError
from quatrain.sandbox.pool import Pool
from quatrain.sandbox.remote import Remote, why_not_remote
from quatrain.sandbox.worker import Layers

Isolation = Literal["namespace", "oci", "remote", "none_i_accept_the_risk"]


_built: "weakref.WeakSet[Pool | Remote]" = weakref.WeakSet()


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which backend: `runtime` names that of `oci`, `address` and `token_env` the service of `remote`."""

    isolation: Isolation = "namespace"
    runtime: str | None = None
    address: str | None = None
    token_env: str = "QUATRAIN_SANDBOX_TOKEN"


class CannotIsolate(SandboxError):
    """The chosen backend cannot do its work here; the message says what failed and what to do."""


def build_backend(
    choice: Choice,
    limits: Limits,
    *,
    workers: int,
    packages: tuple[str, ...] = (),
    own: tuple[tuple[str, str], ...] = (),
) -> Backend:
    """The chosen backend, with installed packages and packages (name, folder) of the caller's own.

    Raises CannotIsolate when a test program broke out or none could be started; SandboxError for a missing package.
    """
    if choice.isolation == "remote":
        backend: Pool | Remote = _build_remote(choice, limits, workers, [*packages, *(name for name, _ in own)])
    else:
        backend = _build_local(choice, limits, workers, (*own, *find_packages(packages).items()))
    _built.add(backend)
    return backend


def in_use() -> dict[str, str]:
    """Name of each backend that was built and not closed, with what stands between its programs and the machine."""
    return dict(sorted((one.name, one.isolates) for one in _built if not one.closed))


def _build_local(choice: Choice, limits: Limits, workers: int, packages: tuple[tuple[str, str], ...]) -> Pool:
    if choice.isolation == "none_i_accept_the_risk":
        return Pool(limits, workers=workers, packages=packages, layers=Layers(("limits",)))
    runtime = None
    if choice.isolation == "oci":
        runtime = (choice.runtime or "").strip()
        if not runtime:
            raise CannotIsolate("no runtime; set runtime: runsc, kata, runc, or the path of another one")
    if reason := why_not(runtime=runtime):
        raise CannotIsolate(reason)
    return Pool(limits, workers=workers, packages=packages, runtime=runtime)


def _build_remote(choice: Choice, limits: Limits, workers: int, packages: list[str]) -> Remote:
    if not choice.address:
        raise CannotIsolate("no address; set address: http://HOST:PORT of `python -m quatrain.sandbox.serve`")
    remote = Remote(choice.address, limits, token_env=choice.token_env, workers=workers)
    if reason := why_not_remote(remote, packages):
        remote.close()
        raise CannotIsolate(reason)
    return remote
