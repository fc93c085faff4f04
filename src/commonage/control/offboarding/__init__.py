"""Offboarding: renaming and removal of users and tenants, planned first and finished after a restart."""
