"""The messages that cross the network, as pydantic models: what the API takes and gives, what the SDK sees.

No logic lives here, and nothing of the domain. Durations, sizes and rates are numbers with their unit in the name
(`time_limit_s`, `memory_mib`); times are unix seconds.
"""
