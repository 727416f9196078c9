"""A backend by its settings, and the record of it."""

from quatrain.methods.run_folder import environment
from quatrain.sandbox import Choice, Limits, build_backend, in_use
from tests.sandbox.machine import isolated


@isolated
def test_the_environment_of_a_run_names_the_backends_that_are_open() -> None:
    before = in_use()
    safe = build_backend(Choice(), Limits(), workers=1)
    risky = build_backend(Choice(isolation="none_i_accept_the_risk"), Limits(), workers=1)
    said = environment()["sandbox"]
    assert said["namespace"] == "namespaces, no capability, a list of system calls, limits; this machine's kernel"
    assert said["none"] == "nothing: a plain process with limits"
    safe.close()
    risky.close()
    assert in_use() == before
    assert ("sandbox" in environment()) == bool(before)
