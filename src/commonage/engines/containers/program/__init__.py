"""What runs in a container: arguments, variables, secrets.

`program.py` merges all variables. A GPU share becomes variables in two places: `Devices.enforce` (package `gpu`)
returns the limits, and `gpu_variables.py` makes the GPUs visible. `session.py` is the default command of a session.
"""
