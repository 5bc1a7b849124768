"""Federations simulated in one thread: seeded schedules of members, faults, kills and late writes.

Every member runs the real `hubless.join` in a greenlet of its own. Each store operation and each
sleep goes back to the scheduler, so that a seed decides who goes next, what fails, who dies, and
when a write that nobody waits for any more lands all the same.

    python -m tests.support.schedules --mode async --seeds 0:5000
    python -m tests.support.schedules --mode sync --seed 17 --trace
    python -m tests.support.schedules --mode select --seeds 0:1000
"""
