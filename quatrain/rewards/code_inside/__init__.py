"""What the verifier `code` runs inside the sandbox. Standard library only, relative imports only.

The folder is bound into the sandbox as `/packages/code_inside` and loaded before any candidate is there.
"""

from . import calls, suite

__all__ = ["calls", "suite"]
