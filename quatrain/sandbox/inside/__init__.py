"""What runs on the far side: the launcher, the fork server and the job. Standard library only, relative imports only.

The folder is bound into the sandbox's small root as `/packages/inside`, where no other part of the package exists.
"""
