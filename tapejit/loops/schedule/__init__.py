"""Scheduling: Steps in, a tree of loops out.

Steps that share an axis share a loop where their order allows it, so that values stay
in registers and memory is passed over as seldom as can be.

Start reading at `schedule.py`.
"""
