"""Messages of the API as pydantic models, used by the API, the SDK and the hub's side.

They contain no logic. Durations, sizes and rates are numbers with the unit in the name (`time_limit_s`, `memory_mib`);
instants are unix seconds.
"""
