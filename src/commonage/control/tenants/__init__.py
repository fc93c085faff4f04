"""Tenants, their members, and the limits for each user and tenant."""
