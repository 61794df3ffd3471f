"""What runs: Executables, shared by all functions that trace to equal Graphs.

An `Executable` is a Graph ready to be called on arrays. Everything that calls one goes
through `executable_for`, so two functions with the same Graph have one Executable.

Start reading at `executable.py`.
"""
