"""`framekeeper run`: database, supervisor and gateway on one machine, without Docker."""

from framekeeper.launcher.run import run

__all__ = ["run"]
