"""The messages that cross the network, as pydantic models: what the API takes and gives, what the SDK sees.

No logic lives here, and nothing of the domain: quantities travel as text on the way in (`"6GiB"`), as plain numbers
with their unit in the name on the way out (`memory_mib`).
"""
