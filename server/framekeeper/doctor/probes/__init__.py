"""Small programs that try one thing with the engine's own Python, each in a process that may be lost.

They are started by `doctor.probing`, with the environment that a worker of the profile would get.
"""
