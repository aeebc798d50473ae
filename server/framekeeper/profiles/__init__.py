"""Profiles: schema, rules, and what a profile means for a process."""
