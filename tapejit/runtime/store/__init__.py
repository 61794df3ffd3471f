"""The store: native code kept on disk, from one process to the next.

Object code comes in under a key and goes out again, checked. `store` finds, writes and
evicts entries, `key` says what code depends on, `file` is the format of an entry,
`folder` which folder may be trusted.

Start reading at `store.py`, then `key.py`.
"""
