"""The contract suite of stores. Inherit from `contract.StoreContract`; the other modules are parts of it."""
